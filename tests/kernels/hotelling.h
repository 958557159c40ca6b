// Hotelling's test that the mean of vectors is 0, whatever the covariance of their components.
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/check.h"

namespace augur::kernels {

// Quantiles of chi-square with 16 degrees of freedom: P(beyond) = 1e-4, 1e-6, 1e-12.
inline constexpr double kChiSquare16At1e4 = 45.92;
inline constexpr double kChiSquare16At1e6 = 58.32;
inline constexpr double kChiSquare16At1e12 = 92.16;

// R mean' C^-1 mean of R errors with equally many components, C their covariance: chi-square of as
// many degrees of freedom as components under the hypothesis that their mean is 0, where R is far
// more than that. Errors of a bias of b standard deviations a component add R b^2 a component.
inline double HotellingStatistic(const std::vector<std::vector<double>>& errors) {
  AUGUR_CHECK(!errors.empty());
  const size_t dim = errors[0].size();
  std::vector<double> mean(dim, 0.0);
  for (const std::vector<double>& error : errors) {
    for (size_t c = 0; c < dim; ++c) mean[c] += error[c] / errors.size();
  }
  std::vector<std::vector<double>> square(dim, std::vector<double>(dim, 0.0));
  for (const std::vector<double>& error : errors) {
    for (size_t a = 0; a < dim; ++a) {
      for (size_t b = 0; b < dim; ++b) {
        square[a][b] += (error[a] - mean[a]) * (error[b] - mean[b]) / (errors.size() - 1);
      }
    }
  }
  // C x = mean by elimination; C is positive definite.
  std::vector<double> x = mean;
  for (size_t k = 0; k < dim; ++k) {
    AUGUR_CHECK(square[k][k] > 0);
    for (size_t i = k + 1; i < dim; ++i) {
      const double factor = square[i][k] / square[k][k];
      for (size_t j = k; j < dim; ++j) square[i][j] -= factor * square[k][j];
      x[i] -= factor * x[k];
    }
  }
  double statistic = 0;
  for (size_t k = dim; k-- > 0;) {
    for (size_t j = k + 1; j < dim; ++j) x[k] -= square[k][j] * x[j];
    x[k] /= square[k][k];
    statistic += mean[k] * x[k];
  }
  return statistic * errors.size();
}

}  // namespace augur::kernels
