// Sampled attention in double, by the formulae alone: rows fall between boundaries of expected
// counts, tiles have offsets of their own or share one, and means and variances are integrals over
// the offset of a function that is constant between breakpoints.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace augur::kernels {

// Rows that are drawn with one offset: expected counts rates[i], and the coefficient of a row that
// is drawn once.
struct OffsetGroup {
  std::vector<int> rows;
  std::vector<double> rates;
  std::vector<double> weights;
};

// Offsets in [0, 1) at which some count changes, with 0 and 1.
inline std::vector<double> Breakpoints(const OffsetGroup& group) {
  std::vector<double> points = {0.0, 1.0};
  double sum = 0;
  for (const double rate : group.rates) {
    sum += rate;
    const double point = std::ceil(sum) - sum;
    if (point > 0 && point < 1) points.push_back(point);
  }
  std::sort(points.begin(), points.end());
  return points;
}

inline std::vector<int> CountsAt(const OffsetGroup& group, double offset) {
  std::vector<int> counts;
  double sum = 0;
  for (const double rate : group.rates) {
    const double end = sum + rate;
    counts.push_back(static_cast<int>(std::floor(offset + end) - std::floor(offset + sum)));
    sum = end;
  }
  return counts;
}

// E[w_j], over all groups.
inline std::vector<double> MeanCoefficients(const std::vector<OffsetGroup>& groups, int n) {
  std::vector<double> mean(n, 0.0);
  for (const OffsetGroup& group : groups) {
    const std::vector<double> points = Breakpoints(group);
    for (size_t i = 0; i + 1 < points.size(); ++i) {
      const std::vector<int> counts = CountsAt(group, (points[i] + points[i + 1]) / 2);
      for (size_t r = 0; r < counts.size(); ++r) {
        mean[group.rows[r]] += (points[i + 1] - points[i]) * counts[r] * group.weights[r];
      }
    }
  }
  return mean;
}

// E |sum w_j V_j - mean|^2; groups are independent. values: [n][dim], from which each group's
// control variate has been taken.
inline double ExactVariance(const std::vector<OffsetGroup>& groups,
                            const std::vector<std::vector<double>>& values) {
  const size_t dim = values[0].size();
  double variance = 0;
  for (const OffsetGroup& group : groups) {
    const std::vector<double> points = Breakpoints(group);
    std::vector<double> first(dim, 0.0);
    double second = 0;
    for (size_t i = 0; i + 1 < points.size(); ++i) {
      const double share = points[i + 1] - points[i];
      const std::vector<int> counts = CountsAt(group, (points[i] + points[i + 1]) / 2);
      std::vector<double> out(dim, 0.0);
      for (size_t r = 0; r < counts.size(); ++r) {
        for (size_t c = 0; counts[r] > 0 && c < dim; ++c) {
          out[c] += counts[r] * group.weights[r] * values[group.rows[r]][c];
        }
      }
      for (size_t c = 0; c < dim; ++c) {
        first[c] += share * out[c];
        second += share * out[c] * out[c];
      }
    }
    for (const double value : first) second -= value * value;
    variance += second;
  }
  return variance;
}

// systematic and proportional: one offset through all rows.
inline std::vector<OffsetGroup> GlobalDesign(const std::vector<double>& p, int samples) {
  OffsetGroup group;
  for (size_t j = 0; j < p.size(); ++j) {
    group.rows.push_back(static_cast<int>(j));
    group.rates.push_back(samples * p[j]);
    group.weights.push_back(1.0 / samples);
  }
  return {group};
}

inline std::vector<OffsetGroup> FlashDesign(const std::vector<double>& p, int samples, int tile) {
  const int n = static_cast<int>(p.size()), tiles = (n + tile - 1) / tile;
  const int of_tile = std::max(1, samples / tiles);
  std::vector<OffsetGroup> groups(tiles);
  for (int t = 0; t < tiles; ++t) {
    const int end = std::min(n, (t + 1) * tile);
    double mass = 0;
    for (int j = t * tile; j < end; ++j) mass += p[j];
    for (int j = t * tile; j < end; ++j) {
      groups[t].rows.push_back(j);
      groups[t].rates.push_back(of_tile * p[j] / mass);
      groups[t].weights.push_back(mass / of_tile);
    }
  }
  return groups;
}

// shared, as head `g` sees it: predicted[g][j] are p_gj by the predicted normalisers.
inline std::vector<OffsetGroup> SharedDesign(const std::vector<std::vector<double>>& p,
                                             const std::vector<std::vector<double>>& predicted,
                                             int g, double lambda, int tile) {
  const int n = static_cast<int>(p[g].size()), tiles = (n + tile - 1) / tile;
  std::vector<OffsetGroup> groups(tiles);
  for (int j = 0; j < n; ++j) {
    double most = 0;
    for (const std::vector<double>& of_head : predicted) most = std::max(most, of_head[j]);
    const double pi = std::min(1.0, lambda * most);
    OffsetGroup& group = groups[j / tile];
    group.rows.push_back(j);
    group.rates.push_back(pi);
    group.weights.push_back(p[g][j] / pi);
  }
  return groups;
}

}  // namespace augur::kernels
