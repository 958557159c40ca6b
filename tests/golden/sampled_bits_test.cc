// Sampled attention in the model: a sequence and a seed give the same bits alone and in a batch of
// 32, wherever KV lies and however its values travel, computed again in a chunk after a preemption,
// saved and resumed, after a prefix hit; prompts are exact; and enough samples are exact attention.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/kernels/kernel_test_data.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/model_scenarios.h"
#include "tests/support/random_forecast.h"

namespace augur::engine {
namespace {

using memory::Residency;
using memory::ValueFetch;
using tests::ExpectSameLogits;
using tests::Logits;
using tests::ModelDriver;
using tests::ModelDriverOptions;
using tests::SameBits;

constexpr int kPrompt = kernels::kSanitized ? 600 : 940;
constexpr int kDecodes = kernels::kSanitized ? 12 : 30;  // over the end of a block
constexpr kernels::SelectionBudget kBudget{.top_k = 8, .init = 1, .local = 2};

class SampledBitsTest : public testing::Test {
 protected:
  SampledBitsTest() {
    heads_ = scratch_.path() + "/forecast.safetensors";
    tests::WriteRandomForecast(heads_, 6, 2 * 64, 320, 5);
  }

  ModelDriverOptions Options(ValueEstimator estimator = ValueEstimator::kShared) const {
    return {
        .folder = std::string(AUGUR_SOURCE_DIR) + "/deploy/models/demo-9m",
        .threads = 1,
        .kv_dtype = kernels::DType::kBF16,
        .max_rows = 1700,
        .max_segments = 32,
        .max_context = 4096,
        .frames = 1200,
        .host_blocks = 1000,
        .staging_blocks = 32,
        .max_top_k = 32,
        .num_slots = kBudget.top_k,
        .forecast_heads = heads_,
        .values = {.sampled = true,
                   .estimator = estimator,
                   .budget = estimator == ValueEstimator::kShared ? kernels::ValueBudget::kRows
                                                                  : kernels::ValueBudget::kDraws,
                   .samples = {48}}};
  }

  static std::vector<int32_t> Prompt(int tokens, uint32_t seed = 1) {
    return tests::RepeatingPrompt(tokens, seed, 4000);
  }

  static AttentionChoice Choice(AttentionPolicy policy) {
    return {.prefill = policy, .decode = policy, .budget = kBudget, .values = {.sampled = true}};
  }
  static std::vector<AttentionChoice> Choices() {
    if (kernels::kSanitized) return {Choice(AttentionPolicy::kSparse)};
    return {Choice(AttentionPolicy::kDense), Choice(AttentionPolicy::kSparse),
            Choice(AttentionPolicy::kForecast)};
  }
  // What is tried with which: the estimator that has a state with all policies, one without with
  // one.
  static std::vector<std::pair<ValueEstimator, AttentionChoice>> Pairs() {
    std::vector<std::pair<ValueEstimator, AttentionChoice>> pairs;
    for (const AttentionChoice& choice : Choices())
      pairs.push_back({ValueEstimator::kShared, choice});
    if (!kernels::kSanitized) {
      pairs.push_back({ValueEstimator::kProportional, Choice(AttentionPolicy::kSparse)});
    }
    return pairs;
  }

  tests::ScratchFolder scratch_;
  std::string heads_;
};

TEST_F(SampledBitsTest, AnyResidencySlotsStagingAndWayOfValues) {
  struct Variant {
    const char* name;
    int slots, staging, chunk;
    ValueFetch fetch;
    double places_per_second;
  };
  const Variant variants[] = {
      {"no spare slots, values move when it pays", kBudget.top_k, 32, 256, ValueFetch::kAuto, 0},
      {"rows only, smallest staging", kBudget.top_k, 16, 64, ValueFetch::kRows, 0},
      {"whole pages, spare slots", 3 * kBudget.top_k, 64, 4096, ValueFetch::kWhole, 0},
      {"slow link", kBudget.top_k + 1, 16, 512, ValueFetch::kAuto, 60000},
  };
  for (const auto& [estimator, choice] : Pairs()) {
    ModelDriver device(Options(estimator));
    {
      const Logits expected = device.Complete(Prompt(kPrompt), 4096, kDecodes, choice);
      for (const Variant& variant : variants) {
        SCOPED_TRACE(choice.Fingerprint() + ", " + std::string(NameOf(estimator)) + ", " +
                     variant.name);
        ModelDriverOptions options = Options(estimator);
        options.num_slots = variant.slots;
        options.staging_blocks = variant.staging;
        options.copies.places_per_second = variant.places_per_second;
        options.values.fetch = variant.fetch;
        ModelDriver tiered(options);
        ExpectSameLogits(
            tiered.Complete(Prompt(kPrompt), variant.chunk, kDecodes, choice, Residency::kTiered),
            expected);
        const memory::ResidencyStats& stats = *tiered.kv().stats();
        if (variant.fetch == ValueFetch::kWhole && choice.selects()) {
          EXPECT_EQ(stats.host_rows, 0u);
        } else {
          EXPECT_GT(stats.host_rows, 0u);
          EXPECT_GT(stats.key_bytes, 0u);
        }
        EXPECT_TRUE(variant.fetch == ValueFetch::kAuto || stats.value_bytes == 0);
        if (kernels::kSanitized) break;
      }
    }
  }
}

// Rows of values that are read in fp8 host pages are those of the slots.
TEST_F(SampledBitsTest, HostPagesInFp8) {
  ModelDriverOptions options = Options();
  options.host_fp8 = true;
  for (const AttentionChoice& choice : Choices()) {
    SCOPED_TRACE(choice.Fingerprint());
    const Logits expected = ModelDriver(options).Complete(Prompt(kPrompt), 4096, kDecodes, choice);
    for (const ValueFetch fetch : {ValueFetch::kRows, ValueFetch::kAuto}) {
      options.values.fetch = fetch;
      ModelDriver tiered(options);
      ExpectSameLogits(tiered.Complete(Prompt(kPrompt), 256, kDecodes, choice, Residency::kTiered),
                       expected);
      EXPECT_GT(tiered.kv().stats()->host_rows, 0u);
    }
  }
}

// Prompts do not sample, seeds and estimators differ, and a per-request budget is taken.
TEST_F(SampledBitsTest, WhatSamplesAndWhatDoesNot) {
  ModelDriver model(Options());
  AttentionChoice choice = Choice(AttentionPolicy::kSparse), exact = choice;
  exact.values = {};
  const Logits sampled = model.Complete(Prompt(kPrompt), 512, 3, choice);
  const Logits plain = model.Complete(Prompt(kPrompt), 512, 3, exact);
  EXPECT_TRUE(SameBits(sampled[0], plain[0])) << "the prompt's last token is exact";
  EXPECT_FALSE(SameBits(sampled[1], plain[1]));
  auto other = model.Start(Prompt(kPrompt), 2, choice);
  other.seed = 9;
  model.Prefill(&other, 512);
  EXPECT_FALSE(SameBits(model.Decode(&other, 1)[0], sampled[1]));
  model.Finish(other);
  choice.values.samples = 300;
  EXPECT_FALSE(SameBits(model.Complete(Prompt(kPrompt), 512, 3, choice)[1], sampled[1]));
}

TEST_F(SampledBitsTest, EnoughSamplesAreExactAttention) {
  for (const ValueEstimator estimator :
       {ValueEstimator::kSystematic, ValueEstimator::kShared, ValueEstimator::kBernoulliScores,
        ValueEstimator::kBernoulliScoresGroup}) {
    ModelDriverOptions options = Options(estimator);
    options.values.samples = {60000};
    options.values.max_samples = 65536;
    options.values.budget = kernels::ValueBudget::kDraws;
    ModelDriver model(options);
    for (const AttentionChoice& choice : Choices()) {
      AttentionChoice exact = choice;
      exact.values = {};
      std::vector<int32_t> tokens, expected_tokens;
      const Logits found = model.Complete(Prompt(600), 512, 8, choice, Residency::kDevice, &tokens);
      const Logits expected =
          model.Complete(Prompt(600), 512, 8, exact, Residency::kDevice, &expected_tokens);
      EXPECT_EQ(tokens, expected_tokens);
      for (size_t row = 0; row < found.size(); ++row) {
        double worst = 0, largest = 0;
        for (size_t i = 0; i < found[row].size(); ++i) {
          worst = std::max(worst, std::fabs(double{found[row][i]} - expected[row][i]));
          largest = std::max(largest, std::fabs(double{expected[row][i]}));
        }
        EXPECT_LT(worst / largest, 0.02) << NameOf(estimator) << " row " << row;
      }
    }
  }
}

TEST_F(SampledBitsTest, ComputedAgainInAChunk) {
  for (const auto& [estimator, choice] : Pairs()) {
    {
      SCOPED_TRACE(choice.Fingerprint() + std::string(NameOf(estimator)));
      ModelDriver model(Options(estimator));
      const Logits expected = model.Complete(Prompt(kPrompt), 512, kDecodes, choice);
      auto first = model.Start(Prompt(kPrompt), kDecodes, choice);
      model.Prefill(&first, 512);
      model.Decode(&first, kDecodes - 4);
      const std::vector<int32_t> tokens = first.tokens;
      model.Finish(first);
      for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
        auto again = model.Start(tokens, 8, choice, residency);
        again.prompt_tokens = kPrompt;
        Logits found = {model.Prefill(&again, 4096)};
        for (auto& row : model.Decode(&again, 4)) found.push_back(row);
        ASSERT_EQ(found.size(), 5u);
        for (int i = 0; i < 5; ++i) {
          EXPECT_TRUE(SameBits(found[i], expected[kDecodes - 4 + i])) << i;
        }
        model.Finish(again);
      }
    }
  }
}

TEST_F(SampledBitsTest, SavedAndResumedAndMirrored) {
  for (const auto& [estimator, choice] : Pairs()) {
    {
      SCOPED_TRACE(choice.Fingerprint() + std::string(NameOf(estimator)));
      ModelDriver model(Options(estimator));
      const Logits expected = model.Complete(Prompt(kPrompt), 512, 24, choice);
      for (const bool mirrored : {false, true}) {
        if (mirrored && choice.decode == AttentionPolicy::kDense) continue;
        auto sequence = model.Start(Prompt(kPrompt), 24, choice,
                                    mirrored ? Residency::kDevice : Residency::kTiered);
        Logits found = {model.Prefill(&sequence, 512)};
        for (int i = 0; i < 24; ++i) {
          found.push_back(model.Decode(&sequence, 1)[0]);
          if (i % 5 != 0 || (mirrored && i == 0)) continue;
          if (mirrored && i == 5) {
            ASSERT_TRUE(model.kv().store()->BeginMirror(sequence.id, (kPrompt + 24) / 64 + 1));
          }
          const std::vector<int32_t> sampled = model.sampled();
          model.Save(sequence);
          // Another one's bytes in the frames that it left.
          model.Complete(Prompt(700, 10 + i), 512, 1, choice, Residency::kTiered);
          model.Resume(sequence);
          model.RestoreSampled(sampled);
        }
        ExpectSameLogits(found, expected);
        model.Finish(sequence);
      }
    }
  }
}

TEST_F(SampledBitsTest, AfterAPrefixHit) {
  for (const auto& [estimator, choice] : Pairs()) {
    {
      for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
        SCOPED_TRACE(choice.Fingerprint() + std::string(NameOf(estimator)));
        ModelDriver model(Options(estimator));
        const Logits expected = model.Complete(Prompt(kPrompt), 512, 20, choice);
        // The donor does not sample: the cache's key does not name the mode.
        AttentionChoice exact = choice;
        exact.values = {};
        tests::PublishPrompt(&model, Prompt(kPrompt), exact, residency);
        for (const int hits : {1, (kPrompt - 1) / 64}) {
          ExpectSameLogits(
              tests::AfterAPrefixHit(&model, Prompt(kPrompt), choice, residency, hits, 20),
              expected);
        }
      }
    }
  }
}

// 32 sequences of all policies, half of them sampled, and both residencies.
TEST_F(SampledBitsTest, InABatchOf32) {
  ModelDriver model(Options());
  const std::vector<AttentionChoice> choices = Choices();
  const int batch = kernels::kSanitized ? 6 : 32;
  std::vector<Logits> alone(batch);
  const auto prompt = [](int i) { return Prompt(200 + 37 * i, 100 + i); };
  const auto choice = [&](int i) {
    AttentionChoice own = choices[i % choices.size()];
    own.values.sampled = i % 4 != 3;
    return own;
  };
  const auto residency = [](int i) { return i % 3 == 0 ? Residency::kDevice : Residency::kTiered; };
  for (int i = 0; i < batch; ++i) {
    auto sequence = model.Start(prompt(i), 6, choice(i));
    sequence.seed = 1000 + i;
    alone[i] = {model.Prefill(&sequence, 512)};
    for (auto& row : model.Decode(&sequence, 6)) alone[i].push_back(row);
    model.Finish(sequence);
  }
  std::vector<ModelDriver::Sequence> sequences;
  for (int i = 0; i < batch; ++i) {
    sequences.push_back(model.Start(prompt(i), 6, choice(i), residency(i)));
    sequences.back().seed = 1000 + i;
  }
  const std::vector<Logits> together = tests::StepTogether(&model, &sequences, 6, 1600);
  for (int i = 0; i < batch; ++i) {
    SCOPED_TRACE(testing::Message() << "sequence " << i << " " << choice(i).Fingerprint());
    ExpectSameLogits(together[i], alone[i]);
  }
}

}  // namespace
}  // namespace augur::engine
