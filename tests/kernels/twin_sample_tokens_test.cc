// SampleTokens of every backend against a reference that sorts everything, in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/philox.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"
#include "tests/kernels/sampling_reference.h"
#include "tests/kernels/twin_tolerances.h"

namespace augur::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Row r of logits, [rows][vocab], by rule r.
std::vector<int32_t> Sample(Backend& backend, const std::vector<float>& logits,
                            const std::vector<SamplingRow>& rules) {
  const SharedArray<float> shared_logits(backend, logits);
  const SharedArray<SamplingRow> shared_rules(backend, rules);
  SharedArray<int32_t> tokens(backend, std::vector<int32_t>(rules.size(), -7));
  backend.SampleTokens({.logits = shared_logits.data(),
                        .params = shared_rules.data(),
                        .tokens = tokens.data(),
                        .rows = static_cast<int>(rules.size()),
                        .vocab = static_cast<int>(logits.size() / rules.size())});
  backend.Synchronize();
  return tokens.ToVector();
}

// One row of logits drawn from by `draws` rules that differ in position.
std::vector<int32_t> SampleMany(Backend& backend, const std::vector<float>& logits,
                                SamplingRow rule, int draws) {
  std::vector<float> many;
  many.reserve(logits.size() * draws);
  std::vector<SamplingRow> rules;
  for (int i = 0; i < draws; ++i) {
    rule.position = static_cast<uint32_t>(i);
    rules.push_back(rule);
    many.insert(many.end(), logits.begin(), logits.end());
  }
  return Sample(backend, many, rules);
}

// Tokens that may be drawn when those right at a cut are counted in.
std::vector<double> ExpectedWithMargin(const std::vector<float>& logits, SamplingRow rule) {
  if (rule.top_p < 1.0f) rule.top_p = std::min(1.0f, rule.top_p * (1.0f + 1e-6f));
  rule.min_p *= 1.0f - 1e-6f;
  return ExpectedProbabilities(logits, rule);
}

// Each draw is the token whose share of [0, 1), by rising id, holds the draw's random number.
void CheckDraws(Backend& backend, const std::vector<float>& logits, const SamplingRow& rule,
                int draws) {
  const std::vector<int32_t> tokens = SampleMany(backend, logits, rule, draws);
  const std::vector<double> p = ExpectedProbabilities(logits, rule);
  const std::vector<double> allowed = ExpectedWithMargin(logits, rule);
  std::vector<double> before(p.size() + 1, 0.0);
  for (size_t i = 0; i < p.size(); ++i) before[i + 1] = before[i] + p[i];
  for (int i = 0; i < draws; ++i) {
    const int32_t token = tokens[i];
    ASSERT_GE(token, 0);
    ASSERT_GT(allowed[token], 0.0) << "token " << token << " should have been dropped";
    const double uniform =
        PhiloxUniform(PhiloxPurpose::kSampleToken, rule.seed, rule.choice_index, i);
    ASSERT_GE(uniform, before[token] - kSamplingTolerance.At(1.0)) << token;
    ASSERT_LE(uniform, before[token + 1] + kSamplingTolerance.At(1.0)) << token;
  }
}

void CheckChiSquare(Backend& backend, const std::vector<float>& logits, const SamplingRow& rule) {
  const int draws = 2000;
  const std::vector<double> p = ExpectedProbabilities(logits, rule);
  std::vector<int> counts(p.size(), 0);
  for (const int32_t token : SampleMany(backend, logits, rule, draws)) {
    ASSERT_GE(token, 0);
    ++counts[token];
  }
  const ChiSquare chi_square = CompareCounts(p, counts);
  EXPECT_LT(chi_square.statistic, chi_square.limit);
}

std::string Describe(const SamplingRow& rule) {
  return " t " + std::to_string(rule.temperature) + " k " + std::to_string(rule.top_k) + " p " +
         std::to_string(rule.top_p) + " min " + std::to_string(rule.min_p);
}

SamplingRow Rule(float temperature, uint32_t top_k, float top_p, float min_p) {
  SamplingRow rule;
  rule.temperature = temperature;
  rule.top_k = top_k;
  rule.top_p = top_p;
  rule.min_p = min_p;
  rule.seed = 1234;
  return rule;
}

TEST(TwinSampleTokensTest, DrawsFromTheDistribution) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int vocab : {97, 64}) {
      const std::vector<float> logits = RandomFloats(vocab, 1, 1.5f);
      for (const float temperature : {0.3f, 1.0f, 2.5f}) {
        for (const uint32_t top_k : {0u, 5u, 40u, 97u, 5000u}) {
          for (const float top_p : {1.0f, 0.9f, 0.3f}) {
            for (const float min_p : {0.0f, 0.1f}) {
              if (kSanitized && temperature != 1.0f) continue;
              const SamplingRow rule = Rule(temperature, top_k, top_p, min_p);
              SCOPED_TRACE(name + Describe(rule));
              CheckDraws(*backend, logits, rule, 200);
              CheckChiSquare(*backend, logits, rule);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
    }
  }
}

// The shape of a trained model's logits: a wide bell and a few tokens far above it.
std::vector<float> PeakedLogits(int vocab) {
  std::vector<float> logits = RandomFloats(vocab, 11, 2.0f);
  for (int i = 0; i < 40 && i < vocab; ++i) {
    logits[(size_t{7919} * i + 13) % vocab] = 14.0f - 0.3f * static_cast<float>(i);
  }
  return logits;
}

TEST(TwinSampleTokensTest, VocabulariesOfEverySize) {
  const SamplingRow rules[] = {
      Rule(1.0f, 0, 1.0f, 0.0f),     Rule(0.7f, 0, 0.95f, 0.0f),   Rule(1.0f, 50, 1.0f, 0.0f),
      Rule(1.0f, 50, 0.9f, 0.0f),    Rule(1.3f, 0, 1.0f, 0.02f),   Rule(1.0f, 3000, 0.99f, 0.0f),
      Rule(1.5f, 0, 0.999f, 0.001f), Rule(1e30f, 0, 0.5f, 0.0f),   Rule(100.0f, 777, 0.7f, 0.5f),
      Rule(0.05f, 0, 0.9f, 0.0f),    Rule(1.0f, 20000, 1.0f, 0.0f)};
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int vocab : {1, 2, 63, 65, 1000, 4097, 32000, 131072, 200019}) {
      const std::vector<float> peaked = PeakedLogits(vocab);
      const std::vector<float> flat = RandomFloats(vocab, 2, 0.2f);
      for (const SamplingRow& rule : rules) {
        SCOPED_TRACE(name + " vocab " + std::to_string(vocab) + Describe(rule));
        CheckDraws(*backend, peaked, rule, 6);
        CheckDraws(*backend, flat, rule, 6);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Cuts among more equal tokens than the device sorts: lower ids are kept.
TEST(TwinSampleTokensTest, TiesAtACutGoToLowerIds) {
  const int vocab = 10000;
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    SCOPED_TRACE(name);
    std::vector<float> logits(vocab, 0.0f);
    for (int i = 0; i < vocab; i += 2) logits[i] = -0.0f;  // equal to 0
    const auto highest = [&](const SamplingRow& rule) {
      const std::vector<int32_t> tokens = SampleMany(*backend, logits, rule, 200);
      return *std::max_element(tokens.begin(), tokens.end());
    };
    EXPECT_EQ(highest(Rule(1.0f, 3, 1.0f, 0.0f)), 2);
    const int of_3000 = highest(Rule(1.0f, 3000, 1.0f, 0.0f));
    EXPECT_TRUE(of_3000 < 3000 && of_3000 > 2800) << of_3000;
    const int of_half = highest(Rule(1.0f, 0, 0.5f, 0.0f));
    EXPECT_TRUE(of_half < 5000 && of_half > 4700) << of_half;
    const int of_both = highest(Rule(1.0f, 6000, 0.5f, 0.0f));
    EXPECT_TRUE(of_both < 3000 && of_both > 2800) << of_both;
    for (int i = 0; i < vocab; ++i) logits[i] = i % 2 == 0 ? 1.0f : -1.0f;
    CheckDraws(*backend, logits, Rule(1.0f, 7500, 1.0f, 0.0f), 100);
    CheckDraws(*backend, logits, Rule(1.0f, 0, 0.95f, 0.0f), 100);
    CheckDraws(*backend, logits, Rule(1.0f, 7500, 0.5f, 0.0f), 100);
  }
}

// Logits in which halving the keys, or the values, alone takes long.
TEST(TwinSampleTokensTest, LogitsOfManyMagnitudes) {
  const int vocab = 20000;
  std::vector<float> logits(vocab);
  for (int i = 0; i < vocab; ++i) {
    logits[i] = std::ldexp(i % 3 == 0 ? -1.0f : 1.0f, i * 7 % 140 - 135) *
                (1.0f + static_cast<float>(i) * 1e-6f);
  }
  logits[777] = -kInfinity;
  logits[778] = -3e38f;
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const uint32_t top_k : {100u, 5000u, 12000u, 19998u, 19999u}) {
      SCOPED_TRACE(name + " " + std::to_string(top_k));
      CheckDraws(*backend, logits, Rule(1.0f, top_k, 1.0f, 0.0f), 20);
      CheckDraws(*backend, logits, Rule(1.0f, top_k, 0.6f, 0.0f), 20);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(TwinSampleTokensTest, GreedyTakesTheLowestOfEqualIds) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int vocab : {100, 97, 1031, 131072}) {
      std::vector<float> logits = RandomFloats(vocab, 5);
      const int last = vocab - 1;
      for (const int place : {last, vocab / 2, 17, 16, 0}) {  // each lower than those before
        logits[place] = 9.0f;
        SCOPED_TRACE(name + " vocab " + std::to_string(vocab));
        EXPECT_EQ(Sample(*backend, logits, {Rule(0.0f, 0, 1.0f, 0.0f)})[0], place);
        EXPECT_EQ(Sample(*backend, logits, {Rule(1.0f, 1, 1.0f, 0.0f)})[0], place);
        EXPECT_EQ(Sample(*backend, logits, {Rule(1.0f, 0, 1e-6f, 0.0f)})[0], place);
      }
    }
  }
}

TEST(TwinSampleTokensTest, NotFiniteRowsSaySo) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int vocab : {37, 4096}) {
      for (const int place : {0, 5, 16, 36, vocab - 1}) {
        for (const float temperature : {0.0f, 1.0f}) {
          const std::vector<float> clean = RandomFloats(vocab, 1);
          std::vector<float> rows;
          for (const float bad : {float(NAN), kInfinity, -kInfinity, 0.0f}) {
            std::vector<float> row = clean;
            if (bad != 0.0f) row[place] = bad;
            rows.insert(rows.end(), row.begin(), row.end());
          }
          rows.insert(rows.end(), vocab, -kInfinity);
          const SamplingRow rule = Rule(temperature, 0, 1.0f, 0.0f);
          const std::vector<int32_t> tokens = Sample(*backend, rows, std::vector(5, rule));
          EXPECT_EQ(tokens[0], kNotFinite) << name;
          EXPECT_EQ(tokens[1], kNotFinite) << name;
          EXPECT_GE(tokens[2], 0) << name;  // a forbidden token
          EXPECT_NE(tokens[2], place) << name;
          EXPECT_GE(tokens[3], 0) << name;
          EXPECT_EQ(tokens[4], kNotFinite) << name;
        }
      }
    }
  }
}

TEST(TwinSampleTokensTest, ExtremeTemperaturesAndForbiddenTokens) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    std::vector<float> logits = RandomFloats(1000, 1);
    for (int i = 0; i < 1000; i += 2) logits[i] = -kInfinity;
    const int best =
        static_cast<int>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    for (const int32_t token : SampleMany(*backend, logits, Rule(1e-40f, 0, 1.0f, 0.0f), 50)) {
      EXPECT_EQ(token, best) << name;
    }
    for (const float temperature : {100.0f, 1e30f, 3e38f}) {
      for (const uint32_t top_k : {0u, 700u}) {  // more than are allowed
        for (const int32_t token :
             SampleMany(*backend, logits, Rule(temperature, top_k, 1.0f, 0.0f), 50)) {
          EXPECT_EQ(token % 2, 1) << name;
        }
      }
    }
  }
}

TEST(TwinSampleTokensTest, ARowDrawsTheSameAloneInABatchAndAgain) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int vocab : {1031, 32000}) {
      const int rows = 40;
      const std::vector<float> logits = RandomFloats(size_t(vocab) * rows, 9, 2.0f);
      std::vector<SamplingRow> rules(rows);
      for (int i = 0; i < rows; ++i) {
        rules[i].temperature = i % 5 == 0 ? 0.0f : 0.5f + 0.1f * static_cast<float>(i);
        rules[i].top_k = i % 3 == 0 ? 20 + 200 * i : 0;
        rules[i].top_p = i % 4 == 0 ? 0.8f : 1.0f;
        rules[i].min_p = i % 7 == 0 ? 0.05f : 0.0f;
        rules[i].seed = 1000 + i;
        rules[i].choice_index = i % 2;
        rules[i].position = 5 * i;
      }
      const std::vector<int32_t> expected = Sample(*backend, logits, rules);
      EXPECT_EQ(Sample(*backend, logits, rules), expected) << name;
      for (int i = 0; i < rows; ++i) {
        const auto row = logits.begin() + size_t(i) * vocab;
        EXPECT_EQ(Sample(*backend, std::vector<float>(row, row + vocab), {rules[i]})[0],
                  expected[i])
            << name << " row " << i;
      }
    }
  }
}

}  // namespace
}  // namespace augur::kernels
