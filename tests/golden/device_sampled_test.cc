// Sampled values where ops run on a device: the bits of a request do not depend on where its KV
// lies, how its values travel, what it is batched with, whether its step was recorded or run ahead,
// nor on preemptions; on the CPU they are those of the CPU's own runner.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/kernel_test_data.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/model_scenarios.h"
#include "tests/support/random_forecast.h"

namespace augur::engine {
namespace {

using memory::Residency;
using memory::ValueFetch;
using tests::DriverBackend;
using tests::ExpectSameLogits;
using tests::Logits;
using tests::ModelDriver;
using tests::ModelDriverOptions;
using tests::SameBits;

constexpr int kPrompt = kernels::kSanitized ? 420 : 560;  // the last block is open
constexpr int kDecodes = kernels::kSanitized ? 30 : 24;   // over the end of a block
constexpr kernels::SelectionBudget kBudget{.top_k = 5, .init = 1, .local = 2};

struct Case {
  ValueEstimator estimator;
  AttentionPolicy policy;
};

class DeviceSampledTest : public testing::TestWithParam<DriverBackend> {
 protected:
  DeviceSampledTest() {
    heads_ = scratch_.path() + "/forecast.safetensors";
    tests::WriteRandomForecast(heads_, 6, 2 * 64, 320, 5);
  }

  ModelDriverOptions Options(ValueEstimator estimator, DriverBackend backend = GetParam()) const {
    return {
        .folder = tests::SourceFolder() + "/deploy/models/demo-9m",
        .threads = 2,
        .backend = backend,
        .kv_dtype = kernels::DType::kBF16,
        .max_rows = 1100,
        .max_segments = 10,
        .max_context = 2048,
        .frames = 700,
        .host_blocks = 400,
        .staging_blocks = 32,
        .max_top_k = 16,
        .num_slots = kBudget.top_k,
        .forecast_heads = heads_,
        .values = {.sampled = true,
                   .request_override = true,
                   .estimator = estimator,
                   .budget = estimator == ValueEstimator::kShared ? kernels::ValueBudget::kRows
                                                                  : kernels::ValueBudget::kDraws,
                   .samples = {32, 48, 64, 40, 24, 96}}};
  }

  static std::vector<int32_t> Prompt(int tokens, uint32_t seed = 1) {
    return tests::RepeatingPrompt(tokens, seed, 4000);
  }
  static std::vector<int32_t> OtherPrompt(uint32_t seed) { return Prompt(200, seed); }

  static AttentionChoice Choice(AttentionPolicy policy) {
    return {.prefill = AttentionPolicy::kSparse,
            .decode = policy,
            .budget = kBudget,
            .values = {.sampled = true}};
  }
  static std::vector<Case> Cases() {
    using enum AttentionPolicy;
    if (kernels::kSanitized) return {{ValueEstimator::kShared, kForecast}};
    return {{ValueEstimator::kProportional, kForecast},
            {ValueEstimator::kFlash, kSparse},
            {ValueEstimator::kShared, kForecast},
            {ValueEstimator::kShared, kDense}};
  }
  static std::string NameOfCase(const Case& one) {
    return Choice(one.policy).Fingerprint() + " " + std::string(NameOf(one.estimator));
  }

  tests::ScratchFolder scratch_;
  std::string heads_;
};

INSTANTIATE_TEST_SUITE_P(, DeviceSampledTest, testing::ValuesIn(tests::DeviceBackendsHere()),
                         [](const auto& instance) { return std::string(NameOf(instance.param)); });

TEST_P(DeviceSampledTest, AnyResidencySlotsAndWayOfValues) {
  struct Variant {
    int slots, chunk;
    bool prefetch;
    ValueFetch fetch;
  };
  const Variant variants[] = {{kBudget.top_k, 256, true, ValueFetch::kAuto},
                              {kBudget.top_k + 2, 64, false, ValueFetch::kRows},
                              {3 * kBudget.top_k, 1024, true, ValueFetch::kWhole}};
  for (const Case& one : Cases()) {
    const AttentionChoice choice = Choice(one.policy);
    const Logits expected =
        ModelDriver(Options(one.estimator)).Complete(Prompt(kPrompt), 1024, kDecodes, choice);
    if (GetParam() == DriverBackend::kCpuAsDevice) {
      ModelDriver host(Options(one.estimator, DriverBackend::kCpu));
      ExpectSameLogits(expected, host.Complete(Prompt(kPrompt), 512, kDecodes, choice));
    }
    for (const Variant& variant : variants) {
      SCOPED_TRACE(NameOfCase(one) + ", " + std::string(NameOf(variant.fetch)));
      ModelDriverOptions options = Options(one.estimator);
      options.num_slots = variant.slots;
      options.prefetch = variant.prefetch;
      options.values.fetch = variant.fetch;
      ModelDriver tiered(options);
      ExpectSameLogits(
          tiered.Complete(Prompt(kPrompt), variant.chunk, kDecodes, choice, Residency::kTiered),
          expected);
      if (one.policy == AttentionPolicy::kDense) break;  // streams whole pages
      const memory::ResidencyStats& stats = *tiered.kv().stats();
      const bool whole = variant.fetch == ValueFetch::kWhole;
      EXPECT_EQ(stats.host_rows > 0, !whole);
      EXPECT_EQ(stats.row_bytes, stats.host_rows * 128);
      EXPECT_EQ(stats.key_bytes > 0, !whole);
      EXPECT_EQ(stats.page_bytes > 0, whole);
      EXPECT_TRUE(variant.fetch == ValueFetch::kAuto || stats.value_bytes == 0);
      EXPECT_GT(stats.sampled_draws, 0u);
      EXPECT_GE(stats.sampled_rows, stats.sampled_distinct_rows);
      if (kernels::kSanitized) break;
    }
  }
}

// Where a token is chosen again and again its block's values move in the end; how much they have
// cost until then is what the CPU's runner says.
TEST_P(DeviceSampledTest, ValuesMoveWhenTheyHaveCostAsMuch) {
  AttentionChoice choice = Choice(AttentionPolicy::kSparse);
  ModelDriverOptions options = Options(ValueEstimator::kProportional);
  options.values.samples = {128};
  options.num_slots = 7;
  const auto moved = [&](DriverBackend backend) {
    options.backend = backend;
    ModelDriver model(options);
    model.Complete(Prompt(560), 1024, 60, choice, Residency::kTiered);  // more blocks than slots
    const memory::ResidencyStats& stats = *model.kv().stats();
    EXPECT_GT(stats.value_bytes, 0u);
    return std::array<uint64_t, 4>{stats.key_bytes, stats.host_rows, stats.sampled_draws,
                                   stats.sampled_distinct_rows};
  };
  const auto found = moved(GetParam());
  if (GetParam() != DriverBackend::kCpuAsDevice) return;
  EXPECT_EQ(found, moved(DriverBackend::kCpu));
}

// Exact requests beside sampled ones, and after them in the same slots.
TEST_P(DeviceSampledTest, InABatchWithExactOnes) {
  for (const ValueEstimator estimator : {ValueEstimator::kProportional, ValueEstimator::kShared}) {
    if (kernels::kSanitized && estimator != ValueEstimator::kShared) continue;
    using enum AttentionPolicy;
    constexpr AttentionPolicy kPolicies[] = {kForecast, kSparse, kDense};
    const int batch = kernels::kSanitized ? 4 : 7;
    const auto prompt = [](int i) { return Prompt(180 + 31 * i, 100 + i); };
    const auto choice = [&](int i) {
      AttentionChoice own = Choice(kPolicies[i % 3]);
      own.values = {.sampled = i % 4 != 1, .samples = i % 5 == 2 ? 60 : 0};
      return own;
    };
    const auto residency = [](int i) {
      return i % 3 == 0 && i % 2 == 0 ? Residency::kDevice : Residency::kTiered;
    };
    const auto start = [&](ModelDriver* model, int i, Residency where) {
      ModelDriver::Sequence sequence = model->Start(prompt(i), kDecodes, choice(i), where);
      sequence.logprobs = 0;
      return sequence;
    };
    ModelDriver model(Options(estimator));
    std::vector<std::vector<float>> alone;
    for (int i = 0; i < batch; ++i) {
      std::vector<ModelDriver::Sequence> one = {start(&model, i, Residency::kDevice)};
      alone.push_back(tests::DrawTogether(&model, &one, kDecodes)[0]);
      model.Finish(one[0]);
    }
    for (const bool run_ahead : {false, true}) {
      ModelDriverOptions options = Options(estimator);
      options.run_ahead = run_ahead;
      ModelDriver batched(options);
      std::vector<ModelDriver::Sequence> sequences;
      for (int i = 0; i < batch; ++i) sequences.push_back(start(&batched, i, residency(i)));
      const auto together = tests::DrawTogether(&batched, &sequences, kDecodes);
      for (int i = 0; i < batch; ++i) {
        SCOPED_TRACE(testing::Message() << "sequence " << i << " " << choice(i).Fingerprint()
                                        << (run_ahead ? " ahead" : ""));
        EXPECT_TRUE(SameBits(together[i], alone[i]));
      }
    }
  }
}

// Histories as long as the model allows, in chunks that end anywhere, and beside others whose
// prompts are on their way: exact rows and sampled ones have the bits that they have alone.
TEST_P(DeviceSampledTest, LongHistoriesInAnyChunkAndCompany) {
  const bool is_long = GetParam() == DriverBackend::kCuda;
  const int tokens = is_long ? 7700 : 430, batch = is_long ? 9 : 3, decodes = is_long ? 24 : 8;
  ModelDriverOptions options = Options(ValueEstimator::kProportional);
  options.host_blocks = 0;
  options.values.samples = {64};
  if (is_long) {
    options.max_rows = 2100;
    options.max_context = 8192;
    options.frames = 1400;
  }
  for (const bool sampled : {false, true}) {
    AttentionChoice choice = Choice(AttentionPolicy::kDense);
    choice.prefill = AttentionPolicy::kDense;
    choice.values.sampled = sampled;
    SCOPED_TRACE(sampled ? "sampled" : "exact");
    const auto prompt = [&](int i) { return Prompt(tokens + 37 * i, 50 + i); };
    ModelDriver model(options);
    const Logits expected = model.Complete(prompt(0), 1024, decodes, choice);
    for (const int chunk : {is_long ? 2048 : 256, is_long ? 1000 : 100, 333, 61}) {
      SCOPED_TRACE(chunk);
      ExpectSameLogits(model.Complete(prompt(0), chunk, decodes, choice), expected);
    }
    const auto start = [&](int i) {
      ModelDriver::Sequence sequence = model.Start(prompt(i), decodes, choice);
      sequence.logprobs = 0;
      return sequence;
    };
    std::vector<ModelDriver::Sequence> sequences;
    for (int i = 0; i < batch; ++i) sequences.push_back(start(i));
    const auto together = tests::DrawTogether(&model, &sequences, decodes);
    for (const ModelDriver::Sequence& sequence : sequences) model.Finish(sequence);
    for (int i = 0; i < batch; ++i) {
      SCOPED_TRACE(i);
      std::vector<ModelDriver::Sequence> one = {start(i)};
      EXPECT_TRUE(SameBits(tests::DrawTogether(&model, &one, decodes)[0], together[i]));
      model.Finish(one[0]);
    }
  }
}

TEST_P(DeviceSampledTest, ComputedAgainInAChunk) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(NameOfCase(one));
    const AttentionChoice choice = Choice(one.policy);
    std::vector<int32_t> tokens = Prompt(kPrompt), generated;
    ModelDriver model(Options(one.estimator));
    const Logits expected =
        model.Complete(tokens, 512, kDecodes, choice, Residency::kDevice, &generated);
    tokens.insert(tokens.end(), generated.begin(), generated.end() - 4);
    for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
      ModelDriver::Sequence sequence = model.Start(tokens, 8, choice, residency);
      sequence.prompt_tokens = kPrompt;
      Logits found = {model.Prefill(&sequence, 1024)};
      for (auto& row : model.Decode(&sequence, 4)) found.push_back(row);
      ExpectSameLogits(found, {expected.end() - 5, expected.end()});
      model.Finish(sequence);
    }
  }
}

TEST_P(DeviceSampledTest, SavedResumedMirroredAndHit) {
  for (const Case& one : Cases()) {
    if (one.policy == AttentionPolicy::kDense) continue;
    SCOPED_TRACE(NameOfCase(one));
    const AttentionChoice choice = Choice(one.policy);
    ModelDriver model(Options(one.estimator));
    const std::vector<int32_t> prompt = Prompt(kPrompt - 20);
    const Logits expected = model.Complete(prompt, 512, 24, choice);
    ExpectSameLogits(tests::SavedAndResumed(&model, prompt, choice, 24, 11, OtherPrompt), expected);
    ExpectSameLogits(tests::MirroredFromTheDevice(&model, prompt, choice, 24, 25, OtherPrompt),
                     expected);
    // The donor does not sample: the cache's key does not name the mode.
    AttentionChoice exact = choice;
    exact.values = {};
    for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
      ModelDriver cached(Options(one.estimator));
      tests::PublishPrompt(&cached, prompt, exact, residency);
      for (const int hits : {1, (kPrompt - 21) / 64}) {
        Logits hit = tests::AfterAPrefixHit(&cached, prompt, choice, residency, hits, 8);
        ExpectSameLogits(hit, {expected.begin(), expected.begin() + 9});
      }
    }
  }
}

TEST_P(DeviceSampledTest, HostPagesInFp8) {
  for (const Case& one : Cases()) {
    SCOPED_TRACE(NameOfCase(one));
    ModelDriverOptions options = Options(one.estimator);
    options.host_fp8 = true;
    const AttentionChoice choice = Choice(one.policy);
    ModelDriver model(options);
    const Logits expected = model.Complete(Prompt(kPrompt), 1024, 20, choice);
    ExpectSameLogits(model.Complete(Prompt(kPrompt), 256, 20, choice, Residency::kTiered),
                     expected);
    if (one.policy != AttentionPolicy::kDense) {
      EXPECT_GT(model.kv().stats()->host_rows, 0u);
    }
    EXPECT_FALSE(
        SameBits(ModelDriver(Options(one.estimator)).Complete(Prompt(kPrompt), 1024, 0, choice)[0],
                 expected[0]))
        << "rows are rounded";
  }
}

}  // namespace
}  // namespace augur::engine
