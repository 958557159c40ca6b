// Sampled attention by numbers: the designs in double, Hotelling's test of the mean over thousands
// of draws, variances against their exact expressions, how they fall with the budget, and the
// offsets themselves. Seeds are fixed, so a test that passes once passes always.
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "kernels/philox.h"
#include "tests/kernels/hotelling.h"
#include "tests/kernels/sampled_case.h"
#include "tests/kernels/sampled_reference.h"

namespace augur::kernels {
namespace {

std::vector<double> Softmax(std::vector<float> scores) {
  std::vector<double> p(scores.begin(), scores.end());
  double sum = 0;
  for (double& value : p) sum += value = std::exp(value);
  for (double& value : p) value /= sum;
  return p;
}

void ExpectMeans(const std::vector<OffsetGroup>& groups, const std::vector<double>& p) {
  const std::vector<double> mean = MeanCoefficients(groups, static_cast<int>(p.size()));
  for (size_t j = 0; j < p.size(); ++j) ASSERT_NEAR(mean[j], p[j], 1e-12) << j;
}

// E[w_j] = p_j of the designs themselves, to 1e-12; tiles of 8 so that there are several.
TEST(SampledDesignTest, MeanCoefficientsInDouble) {
  for (const int n : {1, 2, 7, 8, 33, 64}) {
    for (const int samples : {1, 3, 16, 100}) {
      for (const float spread : {0.0f, 1.0f, 4.0f}) {
        std::vector<std::vector<double>> p, predicted;
        for (int g = 0; g < 4; ++g) {
          p.push_back(Softmax(RandomFloats(n, 10 * n + g, spread)));
          predicted.push_back(p.back());
          for (double& value : predicted.back()) value *= std::exp(0.4 * (g - 1));
        }
        for (int g = 0; g < 4; ++g) {
          ExpectMeans(GlobalDesign(p[g], samples), p[g]);
          ExpectMeans(FlashDesign(p[g], samples, 8), p[g]);
          ExpectMeans(SharedDesign(p, predicted, g, samples, 8), p[g]);
          // A control variate leaves the mean of what it is taken from.
          // iid: S chances of p_j, 1 / S each. Stratified: in each of S strata the part of row j's
          // interval that lies there.
          double begin = 0;
          for (int j = 0; j < n; ++j) {
            const double end = begin + p[g][j];
            double mean = 0;
            for (int m = 0; m < samples; ++m) {
              const double low = std::max(begin, double(m) / samples);
              const double high = std::min(end, double(m + 1) / samples);
              if (high > low) mean += (high - low) * samples / samples;
            }
            ASSERT_NEAR(mean, p[g][j], 1e-12);
            ASSERT_NEAR(samples * p[g][j] / samples, p[g][j], 1e-12);
            begin = end;
          }
        }
      }
    }
  }
}

// R independent draws with all of one head's errors, from rows at rising positions behind the list.
class Draws {
 public:
  // Heads of the case share scores unless they were set otherwise. keep_state: one chain of steps.
  Draws(SampledCase& list, ValueEstimator estimator, int samples, int count, bool keep_state) {
    const auto backend = MakeCpuBackend({2, CpuIsa::kAuto});
    const int batch = keep_state ? 1 : 40;
    const size_t width = size_t(list.heads) * list.head_dim;
    std::vector<float> q, out(batch * width);
    for (int i = 0; i < batch; ++i) q.insert(q.end(), list.q.begin(), list.q.end());
    std::vector<SampledCounts> counts(batch);
    for (int first = 0; first < count; first += batch) {
      std::vector<SampledSegment> segments;
      for (int i = 0; i < batch; ++i) {
        segments.push_back(list.Segment(i, samples, 77, list.n - 1 + first + i));
        segments.back().entry_rows = nullptr;
      }
      SampledAttentionParams params = list.Params(estimator, segments.data(), batch, out.data());
      params.q = q.data();
      params.rows = batch;
      params.counts = counts.data();
      backend->SampledAttention(params);
      for (int i = 0; i < batch && first + i < count; ++i) {
        outputs_.emplace_back(out.begin() + i * width, out.begin() + (i + 1) * width);
        distinct_.push_back(static_cast<double>(counts[i].distinct));
      }
    }
  }

  // Mean over the draws from `first` on.
  double distinct(size_t first = 0) const {
    return std::accumulate(distinct_.begin() + first, distinct_.end(), 0.0) /
           static_cast<double>(distinct_.size() - first);
  }
  size_t count() const { return outputs_.size(); }
  const std::vector<float>& output(size_t draw) const { return outputs_[draw]; }

  // Mean |error|^2 of `head`.
  double Variance(const std::vector<double>& exact, int head = 0) const {
    double sum = 0;
    for (const std::vector<float>& out : outputs_) {
      for (size_t c = 0; c < exact.size(); ++c) {
        const double error = out[head * exact.size() + c] - exact[c];
        sum += error * error;
      }
    }
    return sum / outputs_.size();
  }

  // Hotelling's statistic of the errors of heads [0, heads).
  double Hotelling(const std::vector<double>& exact, int heads) const {
    const size_t dim = exact.size();
    std::vector<std::vector<double>> errors;
    for (const std::vector<float>& out : outputs_) {
      for (int g = 0; g < heads; ++g) {
        errors.emplace_back(dim);
        for (size_t c = 0; c < dim; ++c) errors.back()[c] = out[g * dim + c] - exact[c];
      }
    }
    return HotellingStatistic(errors);
  }

 private:
  std::vector<std::vector<float>> outputs_;
  std::vector<double> distinct_;
};

constexpr int kDim = 16;

// Scores of heads that agree with `correlation`; values with a mean, or without.
SampledCase LongCase(int n, int heads, float spread, float correlation, bool has_mean) {
  SampledCase list(n, heads, kDim);
  const std::vector<float> scores = RandomFloats(size_t(n) * (heads + 1), 1);
  const float rest = std::sqrt(1 - correlation * correlation);
  list.SetScores([&](int g, int j) {
    return spread * (correlation * scores[j] + rest * scores[size_t(n) * (g + 1) + j]);
  });
  const std::vector<float> values = RandomFloats(size_t(n) * kDim, 2);
  list.SetValues([&](int j, int c) { return values[size_t(j) * kDim + c] + (has_mean ? 1 : 0); });
  return list;
}

struct HotellingCase {
  ValueEstimator estimator;
  int samples;
  float spread;
};

// 6,000 draws at 32K tokens. Query heads of equal scores draw independently, so a row gives four
// draws; where they share, one.
TEST(SampledStatisticsTest, HotellingFindsNoBiasButInLargestRemainder) {
  const int n = kSanitized ? 4096 : 32768;
  const int draws = kSanitized ? 1000 : 6000;
  const HotellingCase cases[] = {{ValueEstimator::kIid, 128, 2},
                                 {ValueEstimator::kStratified, 128, 2},
                                 {ValueEstimator::kSystematic, 128, 2},
                                 {ValueEstimator::kProportional, 128, 2},
                                 {ValueEstimator::kProportional, 128, 4},
                                 {ValueEstimator::kFlash, 512, 2},
                                 {ValueEstimator::kLargestRemainder, 128, 2}};
  for (const bool has_mean : {false, true}) {
    for (const HotellingCase& c : cases) {
      if (has_mean && c.estimator != ValueEstimator::kProportional &&
          c.estimator != ValueEstimator::kLargestRemainder) {
        continue;
      }
      SampledCase list = LongCase(n, 4, c.spread, 1.0f, has_mean);
      const Draws sample(list, c.estimator, c.samples, draws / 4, false);
      const double statistic = sample.Hotelling(list.ExactOutput(0), 4);
      if (c.estimator == ValueEstimator::kLargestRemainder) {
        EXPECT_GT(statistic, kChiSquare16At1e12) << "the negative control";
      } else {
        EXPECT_LT(statistic, kChiSquare16At1e4) << NameOf(c.estimator) << " " << c.spread;
      }
    }
  }
}

// One chain of steps, each with the state that the one before left, with and without the control
// variate; every head of the group has its own scores.
TEST(SampledStatisticsTest, HotellingOfSharedOverAChainOfSteps) {
  const int n = 32768;  // a shorter list has fewer distinct rows at the same budget
  const int draws = kSanitized ? 1000 : 6000;
  for (const bool has_sums : {false, true}) {
    SampledCase list = LongCase(n, 2, 2, 0.7f, true);
    list.has_sums = has_sums;
    const Draws sample(list, ValueEstimator::kShared, 128, draws, true);
    // The first step, which knows of no normaliser, reads more, and the second may.
    EXPECT_NEAR(sample.distinct(2), 128, 4);
    EXPECT_LT(sample.Hotelling(list.ExactOutput(0), 1), kChiSquare16At1e4) << has_sums;
  }
}

void ExpectVariance(const Draws& draws, double found, double expected, const char* what) {
  const double width = 4 / std::sqrt(draws.count() / 2.0);
  EXPECT_GT(found / expected, 1 - width) << what;
  EXPECT_LT(found / expected, 1 + width) << what;
}

TEST(SampledStatisticsTest, VarianceIsTheExactExpressions) {
  const int n = 256, samples = 24, count = kSanitized ? 1000 : 8000;
  SampledCase list = LongCase(n, 2, 2, 0.7f, true);
  std::vector<std::vector<double>> values(n);
  for (int j = 0; j < n; ++j) values[j].assign(list.value(j), list.value(j) + kDim);
  const std::vector<double> exact = list.ExactOutput(0);
  const std::vector<double> p = list.Probabilities(0);
  const auto measured = [&](ValueEstimator estimator, bool keep_state = false) {
    const Draws draws(list, estimator, samples, count, keep_state);
    return std::pair(draws, draws.Variance(exact));
  };
  // iid: (sum p |V|^2 - |mu|^2) / S; stratified: that of each stratum.
  double iid = 0, stratified = 0;
  for (int c = 0; c < kDim; ++c) {
    double second = 0;
    for (int j = 0; j < n; ++j) second += p[j] * values[j][c] * values[j][c];
    iid += (second - exact[c] * exact[c]) / samples;
    for (int m = 0; m < samples; ++m) {
      double begin = 0, of_first = 0, of_second = 0;
      for (int j = 0; j < n; ++j) {
        const double end = begin + p[j];
        const double part = std::max(
            0.0, std::min(end, (m + 1.0) / samples) - std::max(begin, double(m) / samples));
        of_first += part * samples * values[j][c];
        of_second += part * samples * values[j][c] * values[j][c];
        begin = end;
      }
      stratified += (of_second - of_first * of_first) / samples / samples;
    }
  }
  const auto check = [&](ValueEstimator estimator, double expected) {
    const auto [draws, variance] = measured(estimator);
    ExpectVariance(draws, variance, expected, NameOf(estimator));
  };
  check(ValueEstimator::kIid, iid);
  check(ValueEstimator::kStratified, stratified);
  EXPECT_LT(stratified, iid);
  check(ValueEstimator::kSystematic, ExactVariance(GlobalDesign(p, samples), values));
  check(ValueEstimator::kProportional, ExactVariance(GlobalDesign(p, samples), values));
  check(ValueEstimator::kFlash, ExactVariance(FlashDesign(p, samples, 64), values));
}

// With the normalisers predicted wrongly, plain and with block means as control variate.
TEST(SampledStatisticsTest, VarianceOfShared) {
  const int n = 256, count = kSanitized ? 1000 : 8000;
  const double lambda = 15;
  const std::vector<double> errors = {0.3, -0.2};
  for (const bool has_sums : {false, true}) {
    SampledCase list = LongCase(n, 2, 2, 0.7f, true);
    list.has_sums = has_sums;
    const std::vector<std::vector<double>> p = {list.Probabilities(0), list.Probabilities(1)};
    std::vector<std::vector<double>> predicted = p, values(n);
    for (int g = 0; g < 2; ++g) {
      for (double& value : predicted[g]) value *= std::exp(-errors[g]);
    }
    for (int j = 0; j < n; ++j) {
      values[j].assign(list.value(j), list.value(j) + kDim);
      for (int c = 0; has_sums && c < kDim; ++c) values[j][c] -= list.sums[j / 64][c] / 64.0;
    }
    const auto backend = MakeCpuBackend({1, CpuIsa::kAuto});
    const std::vector<double> exact = list.ExactOutput(1);
    double found = 0;
    for (int i = 0; i < count; ++i) {
      list.PredictState(errors, static_cast<float>(lambda));
      const std::vector<float> out = list.Run(*backend, ValueEstimator::kShared, 16, i);
      for (int c = 0; c < kDim; ++c) {
        const double error = out[kDim + c] - exact[c];
        found += error * error / count;
      }
    }
    const double expected = ExactVariance(SharedDesign(p, predicted, 1, lambda, 64), values);
    const double width = 4 / std::sqrt(count / 2.0);
    EXPECT_GT(found / expected, 1 - width) << has_sums;
    EXPECT_LT(found / expected, 1 + width) << has_sums;
  }
}

// log MSE over log S: -1 for iid, steeper for stratified and systematic.
TEST(SampledStatisticsTest, SlopeOverTheBudget) {
  const int n = 4096, count = kSanitized ? 100 : 400;
  SampledCase list = LongCase(n, 2, 2, 1.0f, false);
  const std::vector<double> exact = list.ExactOutput(0);
  std::map<ValueEstimator, double> slopes;
  for (const ValueEstimator estimator :
       {ValueEstimator::kIid, ValueEstimator::kStratified, ValueEstimator::kSystematic}) {
    std::vector<double> x, y;
    for (const int samples : {32, 64, 128, 256, 512, 1024}) {
      const Draws draws(list, estimator, samples, count, false);
      x.push_back(std::log(samples));
      y.push_back(std::log((draws.Variance(exact, 0) + draws.Variance(exact, 1)) / 2));
    }
    double mean_x = 0, mean_y = 0, above = 0, below = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      mean_x += x[i] / x.size();
      mean_y += y[i] / x.size();
    }
    for (size_t i = 0; i < x.size(); ++i) {
      above += (x[i] - mean_x) * (y[i] - mean_y);
      below += (x[i] - mean_x) * (x[i] - mean_x);
    }
    slopes[estimator] = above / below;
    std::printf("slope of %s: %.3f\n", NameOf(estimator), above / below);
  }
  EXPECT_NEAR(slopes[ValueEstimator::kIid], -1.0, 0.05);
  EXPECT_LT(slopes[ValueEstimator::kStratified], slopes[ValueEstimator::kIid] - 0.1);
  EXPECT_LT(slopes[ValueEstimator::kSystematic], slopes[ValueEstimator::kIid] - 0.1);
}

// Offsets are uniform, and those of neighbouring steps, layers, heads, blocks, choices and seeds
// know nothing of each other.
TEST(SampledStatisticsTest, OffsetsAreUniformAndUncorrelated) {
  const int count = 20000;
  const auto offset = [](int i, uint64_t seed, uint32_t choice, uint32_t layer, uint32_t head,
                         uint32_t item) {
    const AttentionDrawKey key{seed, choice, static_cast<uint32_t>(i), layer, head};
    return PhiloxAttention(PhiloxPurpose::kValueOffset, key, item).words[0] * 0x1p-32;
  };
  std::vector<double> base(count);
  for (int i = 0; i < count; ++i) base[i] = offset(i, 1, 0, 2, 3, 4);
  std::vector<double> sorted = base;
  std::sort(sorted.begin(), sorted.end());
  double distance = 0;
  for (int i = 0; i < count; ++i) {
    distance = std::max(distance, std::fabs(sorted[i] - (i + 0.5) / count));
  }
  EXPECT_LT(distance, 2.0 / std::sqrt(count));  // Kolmogorov-Smirnov, p about 7e-4
  const auto correlation = [&](const auto& other) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += (base[i] - 0.5) * (other(i) - 0.5) * 12 / count;
    return std::fabs(sum);
  };
  const double limit = 4 / std::sqrt(count);
  EXPECT_LT(correlation([&](int i) { return offset(i + 1, 1, 0, 2, 3, 4); }), limit);
  EXPECT_LT(correlation([&](int i) { return offset(i, 2, 0, 2, 3, 4); }), limit);
  EXPECT_LT(correlation([&](int i) { return offset(i, 1, 1, 2, 3, 4); }), limit);
  EXPECT_LT(correlation([&](int i) { return offset(i, 1, 0, 3, 3, 4); }), limit);
  EXPECT_LT(correlation([&](int i) { return offset(i, 1, 0, 2, 4, 4); }), limit);
  EXPECT_LT(correlation([&](int i) { return offset(i, 1, 0, 2, 3, 5); }), limit);
  EXPECT_GT(correlation([&](int i) { return offset(i, 1, 0, 2, 3, 4); }), 0.9);
}

}  // namespace
}  // namespace augur::kernels
