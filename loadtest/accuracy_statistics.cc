#include "loadtest/accuracy_statistics.h"

#include <algorithm>
#include <cmath>

namespace augur::loadtest {
namespace {

constexpr double kZ = 1.959963984540054;  // 97.5 % of the normal distribution lie below

}  // namespace

Interval WilsonInterval(int64_t right, int64_t n) {
  if (n <= 0) return {0, 1};
  const auto count = static_cast<double>(n);
  const double share = static_cast<double>(right) / count;
  const double weight = 1 + kZ * kZ / count;
  const double centre = (share + kZ * kZ / (2 * count)) / weight;
  const double half =
      kZ / weight * std::sqrt(share * (1 - share) / count + kZ * kZ / (4 * count * count));
  // At the ends the bound is the share itself, but for rounding.
  return {right == 0 ? 0 : centre - half, right == n ? 1 : centre + half};
}

PairedDifference ComparePaired(const std::vector<bool>& here, const std::vector<bool>& baseline) {
  PairedDifference result;
  result.n = static_cast<int64_t>(std::min(here.size(), baseline.size()));
  for (size_t i = 0; i < static_cast<size_t>(result.n); ++i) {
    if (here[i] && !baseline[i]) ++result.gained;
    if (!here[i] && baseline[i]) ++result.lost;
  }
  if (result.n == 0) {
    result.interval = {-1, 1};
    return result;
  }
  const auto net = static_cast<double>(result.gained - result.lost);
  const auto disagreements = static_cast<double>(result.gained + result.lost);
  result.difference = net / static_cast<double>(result.n);
  const double n = static_cast<double>(result.n) + 2;  // half a question in each of four cells
  const double half = kZ * std::sqrt(disagreements + 1 - net * net / n) / n;
  result.interval = {std::max(-1.0, net / n - half), std::min(1.0, net / n + half)};
  return result;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace augur::loadtest
