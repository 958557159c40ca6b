#include "kernels/ops/sample_tokens.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/kernels/kernel_test_data.h"
#include "tests/kernels/sampling_reference.h"

namespace augur::kernels {
namespace {

std::vector<int32_t> Sample(Backend& backend, const std::vector<float>& logits,
                            const std::vector<SamplingRow>& rules) {
  std::vector<int32_t> tokens(rules.size(), -7);
  SampleTokensParams params;
  params.logits = logits.data();
  params.params = rules.data();
  params.tokens = tokens.data();
  params.rows = static_cast<int>(rules.size());
  params.vocab = static_cast<int>(logits.size() / rules.size());
  backend.SampleTokens(params);
  return tokens;
}

int32_t SampleOne(const std::vector<float>& logits, const SamplingRow& rule) {
  return Sample(*MakeCpuBackend({1}), logits, {rule})[0];
}

// Draws at many positions and compares the counts: chi-square, and nothing outside the kept set.
void CheckDistribution(const std::vector<float>& logits, SamplingRow rule) {
  const std::vector<double> p = ExpectedProbabilities(logits, rule);
  const int draws = kSanitized ? 2000 : 20000;
  const int vocab = static_cast<int>(logits.size());
  std::vector<int> counts(vocab, 0);
  std::vector<float> many;
  std::vector<SamplingRow> rules;
  for (int i = 0; i < draws; ++i) {
    rule.position = static_cast<uint32_t>(i);
    rules.push_back(rule);
    many.insert(many.end(), logits.begin(), logits.end());
  }
  for (const int32_t token : Sample(*MakeCpuBackend({2}), many, rules)) {
    ASSERT_GE(token, 0);
    ASSERT_GT(p[token], 0.0) << "token " << token << " should have been dropped";
    ++counts[token];
  }
  const ChiSquare chi_square = CompareCounts(p, counts);
  EXPECT_LT(chi_square.statistic, chi_square.limit)
      << "k " << rule.top_k << " p " << rule.top_p << " min " << rule.min_p;
}

TEST(SampleTokensTest, DrawsFromTheDistribution) {
  const std::vector<float> logits = RandomFloats(97, 1, 1.5f);
  for (const float temperature : {0.3f, 1.0f, 2.5f}) {
    for (const uint32_t top_k : {0u, 5u, 40u, 97u, 5000u}) {
      for (const float top_p : {1.0f, 0.9f, 0.3f}) {
        for (const float min_p : {0.0f, 0.1f}) {
          if (kSanitized && temperature != 1.0f) continue;
          SamplingRow rule;
          rule.temperature = temperature;
          rule.top_k = top_k;
          rule.top_p = top_p;
          rule.min_p = min_p;
          rule.seed = 1234;
          CheckDistribution(logits, rule);
        }
      }
    }
  }
}

// A nucleus wider than one sorting step, in a large vocabulary.
TEST(SampleTokensTest, AWideNucleusIsExact) {
  const int vocab = 6000;
  const std::vector<float> logits = RandomFloats(vocab, 2, 0.2f);
  SamplingRow rule;
  rule.top_p = 0.8f;
  rule.seed = 3;
  const std::vector<double> p = ExpectedProbabilities(logits, rule);
  const auto backend = MakeCpuBackend({2});
  for (rule.position = 0; rule.position < 300; ++rule.position) {
    ASSERT_GT(p[Sample(*backend, logits, {rule})[0]], 0.0);
  }
}

TEST(SampleTokensTest, GreedyTakesTheLowestOfEqualIds) {
  std::vector<float> logits(100, 1.0f);
  logits[40] = 3.0f;
  logits[17] = 3.0f;
  logits[99] = 3.0f;
  SamplingRow rule;
  rule.temperature = 0.0f;
  EXPECT_EQ(SampleOne(logits, rule), 17);
  rule.temperature = 1.0f;
  rule.top_k = 1;
  EXPECT_EQ(SampleOne(logits, rule), 17);
  rule.top_k = 0;
  rule.top_p = 1e-6f;
  EXPECT_EQ(SampleOne(logits, rule), 17);
}

TEST(SampleTokensTest, TiesAtACutGoToLowerIds) {
  std::vector<float> logits(50, 0.0f);
  SamplingRow rule;
  rule.top_k = 3;
  for (rule.position = 0; rule.position < 200; ++rule.position) {
    ASSERT_LT(SampleOne(logits, rule), 3);
  }
}

TEST(SampleTokensTest, NotFiniteRowsSaySo) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const auto backend = MakeCpuBackend({2});
  for (const int place : {0, 5, 16, 36}) {
    for (const float temperature : {0.0f, 1.0f}) {
      SamplingRow rule;
      rule.temperature = temperature;
      const std::vector<float> clean = RandomFloats(37, 1);
      std::vector<float> rows;
      for (const float bad : {NAN, kInfinity, -kInfinity, 0.0f}) {
        std::vector<float> row = clean;
        if (bad != 0.0f) row[place] = bad;
        rows.insert(rows.end(), row.begin(), row.end());
      }
      rows.insert(rows.end(), 37, -kInfinity);
      const std::vector<int32_t> tokens = Sample(*backend, rows, std::vector(5, rule));
      EXPECT_EQ(tokens[0], kNotFinite);
      EXPECT_EQ(tokens[1], kNotFinite);
      EXPECT_NE(tokens[2], kNotFinite);  // a forbidden token
      EXPECT_NE(tokens[2], place);
      EXPECT_NE(tokens[3], kNotFinite);
      EXPECT_EQ(tokens[4], kNotFinite);
    }
  }
}

TEST(SampleTokensTest, ARowDrawsTheSameAloneInABatchAndOnEveryIsa) {
  const int vocab = 1031, rows = 40;
  const std::vector<float> logits = RandomFloats(size_t(vocab) * rows, 9, 2.0f);
  std::vector<SamplingRow> rules(rows);
  for (int i = 0; i < rows; ++i) {
    rules[i].temperature = i % 5 == 0 ? 0.0f : 0.5f + 0.1f * static_cast<float>(i);
    rules[i].top_k = i % 3 == 0 ? 20 : 0;
    rules[i].top_p = i % 4 == 0 ? 0.8f : 1.0f;
    rules[i].min_p = i % 7 == 0 ? 0.05f : 0.0f;
    rules[i].seed = 1000 + i;
    rules[i].choice_index = i % 2;
    rules[i].position = 5 * i;
  }
  const std::vector<int32_t> expected = Sample(*MakeCpuBackend({1}), logits, rules);
  for (const CpuIsa isa : IsasHere()) {
    const auto backend = MakeCpuBackend({2, isa});
    EXPECT_EQ(Sample(*backend, logits, rules), expected) << backend->Describe();
    for (int i = 0; i < rows; ++i) {
      const std::vector<float> row(logits.begin() + i * vocab, logits.begin() + (i + 1) * vocab);
      EXPECT_EQ(Sample(*backend, row, {rules[i]})[0], expected[i]);
    }
  }
}

TEST(SampleTokensTest, ExtremeTemperatures) {
  const std::vector<float> logits = RandomFloats(100, 1);
  SamplingRow rule;
  rule.temperature = 1e-40f;
  const int32_t best =
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  EXPECT_EQ(SampleOne(logits, rule), best);
  rule.temperature = 100.0f;
  EXPECT_NE(SampleOne(logits, rule), kNotFinite);
}

}  // namespace
}  // namespace augur::kernels
