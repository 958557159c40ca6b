// What SampleTokens must draw from, for its tests on the CPU alone and on every backend.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/ops/sample_tokens.h"

namespace augur::kernels {

// The probabilities that the rule means, by the plainest means: sort everything, in double.
inline std::vector<double> ExpectedProbabilities(const std::vector<float>& logits,
                                                 const SamplingRow& rule) {
  const int vocab = static_cast<int>(logits.size());
  std::vector<int> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  std::vector<double> weight(vocab);
  for (int i = 0; i < vocab; ++i) {
    weight[i] = std::exp((double(logits[i]) - logits[order[0]]) / rule.temperature);
  }
  if (rule.top_k != 0 && rule.top_k < order.size()) order.resize(rule.top_k);
  double total = 0.0;
  for (const int i : order) total += weight[i];
  if (rule.top_p < 1.0f) {
    double sum = 0.0;
    size_t kept = 0;
    while (kept < order.size() && sum < rule.top_p * total) sum += weight[order[kept++]];
    order.resize(kept);
  }
  std::vector<double> p(vocab, 0.0);
  total = 0.0;
  for (const int i : order) {
    if (weight[i] >= rule.min_p) total += p[i] = weight[i];
  }
  for (double& value : p) value /= total;
  return p;
}

struct ChiSquare {
  double statistic = 0.0;
  // Four standard deviations above the mean; seeds are fixed, so it holds or it does not.
  double limit = 0.0;
};

// How often each token was drawn against its probability.
inline ChiSquare CompareCounts(const std::vector<double>& p, const std::vector<int>& counts) {
  const double draws = std::accumulate(counts.begin(), counts.end(), 0.0);
  double statistic = 0.0, rest_expected = 0.0, rest_seen = 0.0;
  int cells = 0;
  const auto add_cell = [&](double expected, double seen) {
    statistic += (seen - expected) * (seen - expected) / expected;
    ++cells;
  };
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] * draws >= 5.0) {
      add_cell(p[i] * draws, counts[i]);
    } else {  // too few for a cell of their own
      rest_expected += p[i] * draws;
      rest_seen += counts[i];
    }
  }
  if (rest_expected > 1.0) add_cell(rest_expected, rest_seen);
  const double freedom = std::max(1, cells - 1);
  return {statistic, freedom + 4.0 * std::sqrt(2.0 * freedom) + 4.0};
}

}  // namespace augur::kernels
