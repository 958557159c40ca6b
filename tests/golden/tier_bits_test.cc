// Where KV lies must not show: the same policy gives the same bits under any residency, with any
// slots, spare slots and staging area that admit the request, with prefetch on and off, alone and
// in a batch of mixed policies, saved and resumed, after a prefix hit. And a budget of all blocks
// is dense attention.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "tests/kernels/kernel_test_data.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/model_scenarios.h"
#include "tests/support/random_forecast.h"

namespace augur::engine {
namespace {

using memory::Residency;
using tests::ExpectSameLogits;
using tests::Logits;
using tests::ModelDriver;
using tests::ModelDriverOptions;
using tests::SameBits;

constexpr int kPrompt = kernels::kSanitized ? 600 : 1500;  // 10 or 24 blocks, the last one open
constexpr int kDecodes =
    kernels::kSanitized ? 20 : 70;  // over the end of a block and several windows
constexpr kernels::SelectionBudget kBudget{.top_k = 8, .init = 1, .local = 2};
constexpr int kDenseLen = kernels::kSanitized ? 600 : 1000;  // more blocks than the budget

class TierBitsTest : public testing::Test {
 protected:
  TierBitsTest() {
    heads_ = scratch_.path() + "/forecast.safetensors";
    tests::WriteRandomForecast(heads_, 6, 2 * 64, 320, 5);
  }

  ModelDriverOptions Options() const {
    return {.folder = std::string(AUGUR_SOURCE_DIR) + "/deploy/models/demo-9m",
            .threads = 2,
            .kv_dtype = kernels::DType::kBF16,
            .max_rows = 1600,
            .max_segments = 32,
            .max_context = 4096,
            .frames = 1200,
            .host_blocks = 1000,
            .staging_blocks = 32,
            .max_top_k = 32,
            .num_slots = kBudget.top_k,
            .forecast_heads = heads_};
  }

  static std::vector<int32_t> Prompt(int tokens, uint32_t seed = 1) {
    return tests::RepeatingPrompt(tokens, seed, 4000);
  }
  static std::vector<int32_t> OtherPrompt(uint32_t seed) { return Prompt(700, seed); }

  static AttentionChoice Choice(AttentionPolicy prefill, AttentionPolicy decode) {
    return {.prefill = prefill, .decode = decode, .budget = kBudget};
  }
  static std::vector<AttentionChoice> Choices() {
    using enum AttentionPolicy;
    if (kernels::kSanitized) return {Choice(kForecast, kForecast), Choice(kSparse, kDense)};
    return {Choice(kDense, kDense), Choice(kSparse, kSparse), Choice(kForecast, kForecast),
            Choice(kDense, kForecast), Choice(kSparse, kDense)};
  }

  tests::ScratchFolder scratch_;
  std::string heads_;
};

TEST_F(TierBitsTest, AnyResidencySlotsStagingChunksAndPrefetch) {
  ModelDriver device(Options());
  struct Variant {
    const char* name;
    int slots, staging, chunk, copy_threads;
    bool prefetch;
    double places_per_second;
  };
  const Variant variants[] = {
      {"no spare slots", kBudget.top_k, 32, 256, 1, true, 0},
      {"fetch on need, smallest staging", kBudget.top_k, 16, 64, 1, false, 0},
      {"spare slots, two copiers, whole prompt", 3 * kBudget.top_k, 64, 4096, 2, true, 0},
      {"slow link", kBudget.top_k + 1, 16, 512, 1, true, 20000},
  };
  for (const AttentionChoice& choice : Choices()) {
    const Logits expected = device.Complete(Prompt(kPrompt), 4096, kDecodes, choice);
    ExpectSameLogits(device.Complete(Prompt(kPrompt), 64, kDecodes, choice), expected);
    for (const Variant& variant : variants) {
      SCOPED_TRACE(choice.Fingerprint() + ", " + variant.name);
      ModelDriverOptions options = Options();
      options.num_slots = variant.slots;
      options.staging_blocks = variant.staging;
      options.prefetch = variant.prefetch;
      options.copies.num_threads = variant.copy_threads;
      options.copies.places_per_second = variant.places_per_second;
      ModelDriver tiered(options);
      ExpectSameLogits(
          tiered.Complete(Prompt(kPrompt), variant.chunk, kDecodes, choice, Residency::kTiered),
          expected);
      if (kernels::kSanitized) break;
    }
  }
}

// Selected blocks are counted, so that nothing passes here by attending to everything.
TEST_F(TierBitsTest, PoliciesSelectAsManyBlocksAsTheyMay) {
  for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
    ModelDriver model(Options());
    std::set<std::vector<int32_t>> lists;
    for (const AttentionPolicy policy : {AttentionPolicy::kSparse, AttentionPolicy::kForecast}) {
      auto sequence = model.Start(Prompt(kPrompt), 8, Choice(policy, policy), residency);
      model.Prefill(&sequence, 512);
      model.Decode(&sequence, 3);
      const int last_block = (sequence.computed - 1) / 64;
      for (int layer = 4; layer < 6; ++layer) {
        for (int head = 0; head < 2; ++head) {
          const auto chosen = model.layer_worker().chosen(layer, 0, head);
          ASSERT_EQ(chosen.size(), static_cast<size_t>(kBudget.top_k));
          EXPECT_EQ(chosen[0], 0);
          EXPECT_EQ(chosen[6], last_block - 1);
          EXPECT_EQ(chosen[7], last_block);
          lists.emplace(chosen.begin(), chosen.end());
        }
      }
      model.Finish(sequence);
    }
    EXPECT_GT(lists.size(), 4u) << "layers, heads and policies choose alike";
  }
}

TEST_F(TierBitsTest, ABudgetOfAllBlocksIsDense) {
  ModelDriverOptions options = Options();
  options.num_slots = 32;
  ModelDriver model(options);
  const std::vector<int32_t> prompt = Prompt(kPrompt);
  const Logits dense = model.Complete(prompt, 512, 8);
  for (const AttentionPolicy policy : {AttentionPolicy::kSparse, AttentionPolicy::kForecast}) {
    AttentionChoice all = Choice(policy, policy);
    all.budget.top_k = 32;
    for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
      SCOPED_TRACE(all.Fingerprint());
      ExpectSameLogits(model.Complete(prompt, 512, 8, all, residency), dense);
      auto sequence = model.Start(prompt, 1, all, residency);
      model.Prefill(&sequence, 512);
      model.Decode(&sequence, 1);
      EXPECT_EQ(model.layer_worker().chosen(5, 0, 1).size(), static_cast<size_t>(kPrompt / 64 + 1));
      model.Finish(sequence);
    }
    // And a smaller budget is not.
    EXPECT_FALSE(SameBits(model.Complete(prompt, 512, 0, Choice(policy, policy))[0], dense[0]));
  }
}

// Below dense_len everything is read, from it on blocks are chosen; a decoding sequence crosses it.
TEST_F(TierBitsTest, CrossingDenseLenWhileDecoding) {
  ModelDriver model(Options());
  for (const AttentionPolicy policy : {AttentionPolicy::kSparse, AttentionPolicy::kForecast}) {
    AttentionChoice choice = Choice(policy, policy);
    choice.dense_len = kDenseLen;
    const std::vector<int32_t> prompt = Prompt(kDenseLen - 20);
    const Logits expected = model.Complete(prompt, 512, 60, choice);
    const Logits dense = model.Complete(prompt, 512, 60);
    const Logits tiered = model.Complete(prompt, 256, 60, choice, Residency::kTiered);
    ExpectSameLogits(tiered, expected);
    for (int i = 0; i < 20; ++i) EXPECT_TRUE(SameBits(expected[i], dense[i])) << i;
    EXPECT_FALSE(SameBits(expected[25], dense[25]));
    // Computed again as one prefill after a preemption, past the crossing.
    auto again = model.Start(prompt, 61, choice);
    model.Prefill(&again, 512);
    model.Decode(&again, 40);
    std::vector<int32_t> tokens = again.tokens;
    model.Finish(again);
    auto resumed = model.Start(tokens, 20, choice);
    resumed.prompt_tokens = kDenseLen - 20;
    EXPECT_TRUE(SameBits(model.Prefill(&resumed, 4096), expected[40]));
    model.Finish(resumed);
  }
}

TEST_F(TierBitsTest, SavedAndResumed) {
  for (const AttentionChoice& choice : Choices()) {
    SCOPED_TRACE(choice.Fingerprint());
    ModelDriver model(Options());
    const Logits expected = model.Complete(Prompt(kPrompt), 512, 24, choice);
    ExpectSameLogits(tests::SavedAndResumed(&model, Prompt(kPrompt), choice, 24, 5, OtherPrompt),
                     expected);
  }
}

// Under `auto`: begun on the device, written behind, saved, resumed as a tiered sequence.
TEST_F(TierBitsTest, MirroredFromTheDevice) {
  for (const AttentionPolicy policy : {AttentionPolicy::kSparse, AttentionPolicy::kForecast}) {
    const AttentionChoice choice = Choice(policy, policy);
    ModelDriver model(Options());
    const Logits expected = model.Complete(Prompt(kPrompt), 512, 40, choice);
    ExpectSameLogits(
        tests::MirroredFromTheDevice(&model, Prompt(kPrompt), choice, 40, 25, OtherPrompt),
        expected);
  }
}

TEST_F(TierBitsTest, AfterAPrefixHit) {
  for (const AttentionChoice& choice : Choices()) {
    for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
      SCOPED_TRACE(choice.Fingerprint());
      ModelDriver model(Options());
      const Logits expected = model.Complete(Prompt(kPrompt), 512, 20, choice);
      tests::PublishPrompt(&model, Prompt(kPrompt), choice, residency);
      for (const int hits : {(kPrompt - 1) / 128, 1, (kPrompt - 1) / 64}) {
        ExpectSameLogits(
            tests::AfterAPrefixHit(&model, Prompt(kPrompt), choice, residency, hits, 20), expected);
        if (kernels::kSanitized) break;
      }
    }
  }
}

// Rows are rounded when they are appended, whatever the residency, so that what a token reads does
// not depend on what has been in the host pool.
TEST_F(TierBitsTest, HostPagesInFp8) {
  ModelDriverOptions options = Options();
  options.host_fp8 = true;
  options.num_slots = kBudget.top_k + 1;
  const std::vector<int32_t> prompt = Prompt(kPrompt / 64 * 64 + 60);
  constexpr int kFew = 12;  // over the end of a block
  using enum AttentionPolicy;
  for (const AttentionChoice& choice : {Choice(kForecast, kForecast), Choice(kSparse, kDense)}) {
    SCOPED_TRACE(choice.Fingerprint());
    ModelDriver model(options);
    const Logits expected = model.Complete(prompt, 4096, kFew, choice);
    EXPECT_FALSE(SameBits(ModelDriver(Options()).Complete(prompt, 4096, 0, choice)[0], expected[0]))
        << "rows are rounded";
    ExpectSameLogits(model.Complete(prompt, 256, kFew, choice, Residency::kTiered), expected);
    if (choice.decode == kDense) continue;
    ExpectSameLogits(tests::SavedAndResumed(&model, prompt, choice, kFew, 4, OtherPrompt),
                     expected);
    tests::PublishPrompt(&model, prompt, choice, Residency::kTiered);
    ExpectSameLogits(
        tests::AfterAPrefixHit(&model, prompt, choice, Residency::kTiered, kPrompt / 64, kFew),
        expected);
  }
}

// 32 sequences of all policies and both residencies step together; each has the bits that it has
// alone.
TEST_F(TierBitsTest, InABatchOfMixedPolicies) {
  ModelDriver model(Options());
  const std::vector<AttentionChoice> choices = Choices();
  const int batch = kernels::kSanitized ? 6 : 32;
  std::vector<Logits> alone(batch);
  const auto prompt = [](int i) { return Prompt(200 + 37 * i, 100 + i); };
  const auto choice = [&](int i) { return choices[i % choices.size()]; };
  const auto residency = [](int i) { return i % 3 == 0 ? Residency::kDevice : Residency::kTiered; };
  for (int i = 0; i < batch; ++i) alone[i] = model.Complete(prompt(i), 512, 6, choice(i));
  std::vector<ModelDriver::Sequence> sequences;
  for (int i = 0; i < batch; ++i) {
    sequences.push_back(model.Start(prompt(i), 6, choice(i), residency(i)));
  }
  const std::vector<Logits> together = tests::StepTogether(&model, &sequences, 6, 1600);
  for (int i = 0; i < batch; ++i) {
    SCOPED_TRACE(testing::Message() << "sequence " << i << " " << choice(i).Fingerprint());
    ExpectSameLogits(together[i], alone[i]);
  }
}

}  // namespace
}  // namespace augur::engine
