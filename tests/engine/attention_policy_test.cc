// Which policy a token has, and how a deployment's knobs meet a model's.
#include "engine/attention/attention_policy.h"

#include <gtest/gtest.h>

#include <climits>
#include <string>

namespace augur::engine {
namespace {

using enum AttentionPolicy;

TEST(AttentionPolicyTest, ATokensPolicyDependsOnItsPositionAlone) {
  AttentionChoice choice{.prefill = kSparse, .decode = kForecast};
  EXPECT_EQ(PolicyAt(choice, 0, 100), kSparse);
  EXPECT_EQ(PolicyAt(choice, 99, 100), kSparse);
  EXPECT_EQ(PolicyAt(choice, 100, 100), kForecast);
  EXPECT_EQ(NextPolicyChange(choice, 0, 100), 100);
  EXPECT_EQ(NextPolicyChange(choice, 100, 100), INT_MAX);
  choice = {.prefill = kSparse, .decode = kInfinigen};
  EXPECT_EQ(PolicyAt(choice, 99, 100), kSparse);
  EXPECT_EQ(PolicyAt(choice, 100, 100), kInfinigen);
}

// The prompt's length for all its tokens, the current length afterwards.
TEST(AttentionPolicyTest, BelowDenseLenEverythingIsDense) {
  AttentionChoice choice{.prefill = kSparse, .decode = kSparse};
  choice.dense_len = 128;
  EXPECT_EQ(PolicyAt(choice, 5, 127), kDense);
  EXPECT_EQ(PolicyAt(choice, 5, 128), kSparse);
  EXPECT_EQ(PolicyAt(choice, 126, 100), kDense);   // 127 tokens
  EXPECT_EQ(PolicyAt(choice, 127, 100), kSparse);  // 128
  EXPECT_EQ(NextPolicyChange(choice, 0, 100), 127);
  EXPECT_EQ(NextPolicyChange(choice, 0, 128), INT_MAX);
  for (int position = 0; position < 300; ++position) {
    const int next = NextPolicyChange(choice, position, 100);
    for (int at = position; at < std::min(next, 300); ++at) {
      ASSERT_EQ(PolicyAt(choice, at, 100), PolicyAt(choice, position, 100));
    }
    if (next != INT_MAX) {
      ASSERT_NE(PolicyAt(choice, next, 100), PolicyAt(choice, position, 100));
    }
  }
}

TEST(AttentionPolicyTest, FingerprintNamesEverything) {
  AttentionChoice choice;
  const std::string first = choice.Fingerprint();
  EXPECT_EQ(first, "dense/dense/25/1/8/-1");
  choice.budget.local = 9;
  EXPECT_NE(choice.Fingerprint(), first);
}

TEST(ResolveAttentionTest, SettingsThenModelThenBuiltIn) {
  auto resolved = ResolveAttention({}, std::nullopt);
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->choice.Fingerprint(), "dense/dense/25/1/8/-1");
  EXPECT_EQ(resolved->num_slots(), 50);
  // MiniCPM4's: window 2048, topk 64.
  const SparseConfig model{.budget = {.top_k = 96, .init = 1, .local = 33}, .dense_len = 8192};
  resolved = ResolveAttention({}, model);
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->choice.Fingerprint(), "sparse/sparse/96/1/33/8192");
  AttentionSettings settings;
  settings.decode = kDense;
  settings.top_k_blocks = 100;
  settings.max_top_k_blocks = 120;
  settings.dense_len = -1;
  settings.spare_slots = 0;
  resolved = ResolveAttention(settings, model);
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(resolved->choice.Fingerprint(), "sparse/dense/100/1/33/-1");
  EXPECT_EQ(resolved->num_slots(), 120);
}

std::string Refusal(const AttentionSettings& settings) {
  const auto resolved = ResolveAttention(settings, std::nullopt);
  return resolved.ok() ? "no error" : std::string(resolved.status().message());
}

TEST(ResolveValuesTest, OneNumberOrOneALayer) {
  ValueSettings settings{.sampled = true, .estimator = ValueEstimator::kShared, .samples = {64}};
  const auto same = ResolveValues(settings, 3, ResidencyMode::kTiered, false);
  ASSERT_TRUE(same.ok());
  EXPECT_EQ(same->samples, (std::vector<int>{64, 64, 64}));
  EXPECT_TRUE(same->needs_value_sums());
  settings = {.request_override = true, .estimator = ValueEstimator::kIid, .samples = {1, 2, 3}};
  const auto list = ResolveValues(settings, 3, ResidencyMode::kDevice, false);
  ASSERT_TRUE(list.ok());
  EXPECT_EQ(list->samples, settings.samples);
  EXPECT_FALSE(list->needs_value_sums());
  EXPECT_FALSE(ResolveValues({}, 3, ResidencyMode::kDevice, true)->offered());
  EXPECT_EQ(ParseSamples("5,6"), (std::vector<int>{5, 6}));
  for (const char* text : {"", "0", "-1", "5,", "5;6", "99999999999"}) {
    EXPECT_FALSE(ParseSamples(text)) << text;
  }
}

TEST(ResolveValuesTest, RefusesByKeyValueAndLimit) {
  const auto refusal = [](ValueSettings settings, ResidencyMode residency = ResidencyMode::kDevice,
                          bool on_device = false) {
    settings.sampled = true;
    const auto values = ResolveValues(settings, 6, residency, on_device);
    return values.ok() ? "no error" : std::string(values.status().message());
  };
  EXPECT_EQ(refusal({.samples = {1, 2, 3}}),
            "attention.values.samples: expected 1 number or one for each of the model's 6 layers, "
            "found 3");
  EXPECT_EQ(refusal({.samples = {5000}}),
            "attention.values.samples: expected 1 to 4096 (attention.values.max_samples), found "
            "5000");
  EXPECT_EQ(refusal({.samples = {0}}),
            "attention.values.samples: expected 1 to 4096 (attention.values.max_samples), found 0");
  EXPECT_EQ(refusal({.max_samples = 65537}),
            "attention.values.max_samples: expected 1 to 65536, found 65537");
  for (const ValueEstimator served :
       {ValueEstimator::kProportional, ValueEstimator::kFlash, ValueEstimator::kShared}) {
    EXPECT_EQ(refusal({.estimator = served}, ResidencyMode::kTiered, true), "no error");
  }
  EXPECT_EQ(refusal({.estimator = ValueEstimator::kIid}, ResidencyMode::kDevice, true),
            "attention.values.estimator: expected proportional, flash or shared with device: cuda, "
            "found iid; device: cpu serves it");
  ValueSettings rows{.estimator = ValueEstimator::kShared, .budget = kernels::ValueBudget::kRows};
  EXPECT_EQ(refusal(rows, ResidencyMode::kTiered, true), "no error");
  rows.estimator = ValueEstimator::kFlash;
  EXPECT_EQ(refusal(rows, ResidencyMode::kTiered, true),
            "attention.values.budget: expected draws with device: cuda and "
            "attention.values.estimator: flash, found rows; device: cpu serves it");
  const ValueSettings scores{.estimator = ValueEstimator::kBernoulliScores,
                             .budget = kernels::ValueBudget::kDraws};
  EXPECT_EQ(refusal(scores), "no error");
  EXPECT_NE(refusal(scores, ResidencyMode::kTiered)
                .find("residency: tiered, found "
                      "bernoulli_scores"),
            std::string::npos);
  EXPECT_NE(refusal({.estimator = ValueEstimator::kBernoulliScores,
                     .budget = kernels::ValueBudget::kRows})
                .find("expected draws"),
            std::string::npos);
}

TEST(ResolveAttentionTest, RefusesByKeyValueAndLimit) {
  AttentionSettings settings;
  settings.top_k_blocks = 8;
  EXPECT_EQ(Refusal(settings),
            "top_k_blocks: expected at least init_blocks + local_blocks = 9, found 8");
  settings = {};
  settings.max_top_k_blocks = 24;
  EXPECT_EQ(Refusal(settings), "max_top_k_blocks: expected at least top_k_blocks = 25, found 24");
  settings = {};
  settings.prefill = kInfinigen;
  EXPECT_NE(Refusal(settings).find("prefill_policy: expected dense, sparse or forecast"),
            std::string::npos);
  settings = {};
  settings.decode = kInfinigen;
  EXPECT_EQ(Refusal(settings),
            "decode_policy: infinigen needs infinigen_basis, a file that augur-infinigen-basis "
            "makes");
  settings.infinigen_basis = "file";
  EXPECT_EQ(Refusal(settings), "no error");
  settings = {};
  settings.prefill = kForecast;
  EXPECT_EQ(Refusal(settings),
            "prefill_policy: forecast needs forecast_heads, a file of trained heads "
            "(augur-train-forecast)");
  settings.forecast_heads = "file";
  EXPECT_EQ(Refusal(settings), "no error");
}

}  // namespace
}  // namespace augur::engine
