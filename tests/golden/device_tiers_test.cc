// The runner for devices, with every policy and both residencies: the bits of the same policy over
// resident KV, whatever slots, chunks and prefetch; in a batch of mixed kinds, saved and resumed,
// after a prefix hit, mirrored, and run ahead. On the CPU its bits are those of the CPU's own
// runner, which tier_bits_test holds to the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/kernels/kernel_test_data.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/model_scenarios.h"
#include "tests/support/random_forecast.h"

namespace augur::engine {
namespace {

using memory::Residency;
using tests::DriverBackend;
using tests::ExpectSameLogits;
using tests::Logits;
using tests::ModelDriver;
using tests::ModelDriverOptions;
using tests::SameBits;

constexpr int kPrompt = kernels::kSanitized ? 600 : 1500;  // 10 or 24 blocks, the last one open
constexpr int kDecodes = kernels::kSanitized ? 45 : 70;    // over the end of a block
constexpr kernels::SelectionBudget kBudget{.top_k = 8, .init = 1, .local = 2};

class DeviceTiersTest : public testing::TestWithParam<DriverBackend> {
 protected:
  DeviceTiersTest() {
    heads_ = scratch_.path() + "/forecast.safetensors";
    tests::WriteRandomForecast(heads_, 6, 2 * 64, 320, 5);
  }

  ModelDriverOptions Options(DriverBackend backend = GetParam()) const {
    return {.folder = tests::SourceFolder() + "/deploy/models/demo-9m",
            .threads = 2,
            .backend = backend,
            .kv_dtype = kernels::DType::kBF16,
            .max_rows = 2048,
            .max_segments = 16,
            .max_context = 4096,
            .frames = 1200,
            .host_blocks = 1000,
            .staging_blocks = 32,
            .max_top_k = 32,
            .num_slots = kBudget.top_k,
            .forecast_heads = heads_,
            .infinigen_basis =
                tests::SourceFolder() + "/deploy/models/demo-9m/infinigen_basis.safetensors"};
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
    return {Choice(kForecast, kForecast), Choice(kSparse, kSparse), Choice(kDense, kInfinigen),
            Choice(kSparse, kDense)};
  }

  tests::ScratchFolder scratch_;
  std::string heads_;
};

INSTANTIATE_TEST_SUITE_P(, DeviceTiersTest, testing::ValuesIn(tests::DeviceBackendsHere()),
                         [](const auto& instance) { return std::string(NameOf(instance.param)); });

TEST_P(DeviceTiersTest, AnyResidencySlotsChunksAndPrefetch) {
  struct Variant {
    int slots, chunk;
    bool prefetch;
  };
  const Variant variants[] = {
      {kBudget.top_k, 256, true}, {3 * kBudget.top_k, 4096, true}, {kBudget.top_k + 1, 64, false}};
  ModelDriver resident(Options());
  for (const AttentionChoice& choice : Choices()) {
    const Logits expected = resident.Complete(Prompt(kPrompt), 4096, kDecodes, choice);
    if (GetParam() == DriverBackend::kCpuAsDevice) {
      ModelDriver host(Options(DriverBackend::kCpu));
      ExpectSameLogits(expected, host.Complete(Prompt(kPrompt), 512, kDecodes, choice));
    }
    for (const Variant& variant : variants) {
      SCOPED_TRACE(choice.Fingerprint() + " slots " + std::to_string(variant.slots));
      ModelDriverOptions options = Options();
      options.num_slots = variant.slots;
      options.prefetch = variant.prefetch;
      ModelDriver tiered(options);
      ExpectSameLogits(
          tiered.Complete(Prompt(kPrompt), variant.chunk, kDecodes, choice, Residency::kTiered),
          expected);
      if (kernels::kSanitized) break;
    }
  }
}

TEST_P(DeviceTiersTest, CrossingDenseLenWhileDecoding) {
  ModelDriver model(Options());
  for (const AttentionPolicy policy : {AttentionPolicy::kForecast, AttentionPolicy::kInfinigen}) {
    AttentionChoice choice = Choice(AttentionPolicy::kForecast, policy);
    choice.dense_len = 1000;
    const std::vector<int32_t> prompt = Prompt(980);
    const Logits expected = model.Complete(prompt, 512, 40, choice);
    ExpectSameLogits(model.Complete(prompt, 256, 40, choice, Residency::kTiered), expected);
    EXPECT_FALSE(SameBits(expected[35], model.Complete(prompt, 512, 40)[35]));
  }
}

// After a preemption that kept nothing: generated tokens come in a chunk, some of them behind
// blocks that the same chunk begins, and choose what they chose one by one.
TEST_P(DeviceTiersTest, ComputedAgainInAChunk) {
  for (const AttentionPolicy policy : {AttentionPolicy::kForecast, AttentionPolicy::kInfinigen}) {
    const AttentionChoice choice = Choice(AttentionPolicy::kForecast, policy);
    constexpr int kGenerated = 300;  // more blocks than the local window
    std::vector<int32_t> tokens = Prompt(700);
    const int prompt_tokens = static_cast<int>(tokens.size());
    ModelDriver model(Options());
    std::vector<int32_t> generated;
    const Logits expected =
        model.Complete(tokens, 512, kGenerated, choice, Residency::kDevice, &generated);
    tokens.insert(tokens.end(), generated.begin(), generated.end());
    for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
      ModelDriver::Sequence sequence = model.Start(tokens, 8, choice, residency);
      sequence.prompt_tokens = prompt_tokens;
      EXPECT_TRUE(SameBits(model.Prefill(&sequence, 1024), expected.back()))
          << choice.Fingerprint();
      model.Finish(sequence);
    }
  }
}

TEST_P(DeviceTiersTest, SavedAndResumed) {
  for (const AttentionChoice& choice : Choices()) {
    SCOPED_TRACE(choice.Fingerprint());
    // Saved before the window ends that crosses into the open block.
    const std::vector<int32_t> prompt = Prompt(kPrompt - 20);
    ModelDriver model(Options());
    const Logits expected = model.Complete(prompt, 512, 24, choice);
    ExpectSameLogits(tests::SavedAndResumed(&model, prompt, choice, 24, 8, OtherPrompt), expected);
  }
}

// Under `auto`: begun on the device, written behind, saved, resumed as a tiered sequence.
TEST_P(DeviceTiersTest, MirroredFromTheDevice) {
  for (const AttentionPolicy policy : {AttentionPolicy::kForecast, AttentionPolicy::kInfinigen}) {
    const AttentionChoice choice = Choice(AttentionPolicy::kForecast, policy);
    ModelDriver model(Options());
    const Logits expected = model.Complete(Prompt(kPrompt), 512, 40, choice);
    ExpectSameLogits(
        tests::MirroredFromTheDevice(&model, Prompt(kPrompt), choice, 40, 25, OtherPrompt),
        expected);
  }
}

TEST_P(DeviceTiersTest, AfterAPrefixHit) {
  for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
    const AttentionChoice choice = Choice(AttentionPolicy::kForecast, AttentionPolicy::kForecast);
    ModelDriver model(Options());
    const Logits expected = model.Complete(Prompt(kPrompt), 512, 20, choice);
    tests::PublishPrompt(&model, Prompt(kPrompt), choice, residency);
    for (const int hits : {1, (kPrompt - 1) / 128, (kPrompt - 1) / 64}) {
      ExpectSameLogits(tests::AfterAPrefixHit(&model, Prompt(kPrompt), choice, residency, hits, 20),
                       expected);
    }
  }
}

// Rows are rounded when they are appended, whatever the residency, so that what a token reads does
// not depend on what has been in the host pool.
TEST_P(DeviceTiersTest, HostPagesInFp8) {
  ModelDriverOptions options = Options();
  options.host_fp8 = true;
  options.num_slots = kBudget.top_k + 1;
  const std::vector<int32_t> prompt = Prompt(kPrompt / 64 * 64 + 60);
  constexpr int kFew = 24;  // over the end of a block
  using enum AttentionPolicy;
  for (const AttentionChoice& choice :
       {Choice(kForecast, kForecast), Choice(kSparse, kDense), Choice(kDense, kInfinigen)}) {
    SCOPED_TRACE(choice.Fingerprint());
    ModelDriver model(options);
    const Logits expected = model.Complete(prompt, 4096, kFew, choice);
    if (GetParam() == DriverBackend::kCpuAsDevice) {
      ModelDriverOptions on_host = Options(DriverBackend::kCpu);
      on_host.host_fp8 = true;
      ExpectSameLogits(expected, ModelDriver(on_host).Complete(prompt, 512, kFew, choice));
    }
    EXPECT_FALSE(SameBits(ModelDriver(Options()).Complete(prompt, 4096, 0, choice)[0], expected[0]))
        << "rows are rounded";
    ExpectSameLogits(model.Complete(prompt, 256, kFew, choice, Residency::kTiered), expected);
    if (choice.decode == kDense) continue;
    ExpectSameLogits(tests::SavedAndResumed(&model, prompt, choice, kFew, 11, OtherPrompt),
                     expected);
    ExpectSameLogits(tests::MirroredFromTheDevice(&model, prompt, choice, kFew, 25, OtherPrompt),
                     expected);
    if (choice.decode == kInfinigen) continue;  // takes nothing from the prefix cache
    tests::PublishPrompt(&model, prompt, choice, Residency::kTiered);
    ExpectSameLogits(
        tests::AfterAPrefixHit(&model, prompt, choice, Residency::kTiered, kPrompt / 64, kFew),
        expected);
  }
}

// Sequences of all policies and both residencies step together, with and without running ahead;
// each draws what it draws alone.
TEST_P(DeviceTiersTest, InABatchOfMixedPolicies) {
  const std::vector<AttentionChoice> choices = Choices();
  const int batch = kernels::kSanitized ? 5 : 15;
  const int decodes = 70;
  const auto prompt = [](int i) { return Prompt(180 + 41 * i, 100 + i); };
  const auto choice = [&](int i) { return choices[i % choices.size()]; };
  const auto residency = [](int i) { return i % 3 == 0 ? Residency::kDevice : Residency::kTiered; };
  std::vector<std::vector<int32_t>> alone(batch);
  ModelDriver model(Options());
  for (int i = 0; i < batch; ++i) {
    model.Complete(prompt(i), 512, decodes, choice(i), Residency::kDevice, &alone[i]);
  }
  for (const bool run_ahead : {false, true}) {
    ModelDriverOptions options = Options();
    options.run_ahead = run_ahead;
    options.copy_ctas = {.min_ctas = 1, .max_ctas = 8};
    ModelDriver batched(options);
    std::vector<ModelDriver::Sequence> sequences;
    for (int i = 0; i < batch; ++i) {
      sequences.push_back(batched.Start(prompt(i), decodes, choice(i), residency(i)));
    }
    tests::DrawTogether(&batched, &sequences, decodes);
    for (int i = 0; i < batch; ++i) {
      SCOPED_TRACE(testing::Message() << "sequence " << i << " " << choice(i).Fingerprint());
      const auto first = sequences[i].tokens.begin() + sequences[i].prompt_tokens;
      EXPECT_EQ(std::vector<int32_t>(first, sequences[i].tokens.end()), alone[i]);
    }
  }
}

// One edge of the order after another is left out, while what it orders comes late: the answers are
// no longer the resident ones. With all edges they are, however late.
TEST_P(DeviceTiersTest, EveryMissingEdgeOfTheOrderShows) {
  using enum OrderingEdge;
  const bool on_device = GetParam() == DriverBackend::kCuda;
  const std::vector<int32_t> prompt = Prompt(on_device ? kPrompt : 600);
  const int decodes = on_device ? 24 : 4;
  const AttentionChoice choice = Choice(AttentionPolicy::kForecast, AttentionPolicy::kForecast);
  ModelDriver resident(Options());
  const Logits expected = resident.Complete(prompt, 4096, decodes, choice);
  for (const OrderingEdge edge : {kListBeforeCopy, kCopyBeforeRead, kTwoLists, kReadBeforeHistory,
                                  kSpillBeforeHistory, kWriteBeforeFetch}) {
    for (const OrderingEdge missing : {kNone, edge}) {
      // The CPU computes one op after another, in the order in which they are called.
      const bool in_order = missing == kNone || (!on_device && edge != kTwoLists);
      if (!on_device && (missing == kNone || kernels::kSanitized)) continue;
      SCOPED_TRACE(testing::Message() << "edge " << static_cast<int>(edge)
                                      << (missing == kNone ? " kept" : " missing"));
      ModelDriverOptions options = Options();
      options.ordering = {.missing = missing,
                          .delayed = edge,
                          .delay_ns = edge == kWriteBeforeFetch ? 20'000'000 : 500'000};
      ModelDriver tiered(options);
      // A prompt in one piece has nothing on the host but what its last step writes.
      const int chunk = edge == kWriteBeforeFetch ? 4096 : 256;
      const Logits found = tiered.Complete(prompt, chunk, decodes, choice, Residency::kTiered);
      if (in_order) {
        ExpectSameLogits(found, expected);
        continue;
      }
      size_t same = 0;
      for (size_t i = 0; i < found.size(); ++i) same += SameBits(found[i], expected[i]) ? 1 : 0;
      EXPECT_LT(same, found.size());
    }
  }
}

// The next rows of every sequence: 128 of its prompt, or one; whoever has none left draws a token.
void StepAll(ModelDriver* driver, std::vector<ModelDriver::Sequence>* sequences) {
  std::vector<ModelDriver::Part> parts;
  for (ModelDriver::Sequence& sequence : *sequences) {
    const int missing = static_cast<int>(sequence.tokens.size()) - sequence.computed;
    parts.push_back({&sequence, std::min(missing, 128)});
  }
  driver->Step(parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    ModelDriver::Sequence& sequence = (*sequences)[i];
    if (sequence.computed < static_cast<int>(sequence.tokens.size())) continue;
    sequence.tokens.push_back(driver->sampled()[i]);
  }
}

// Pages move by the ten thousand under a full batch that runs ahead, while the number of CTAs that
// copy changes: every token is the resident one.
TEST_P(DeviceTiersTest, ManyMovesUnderLoadChangeNothing) {
  const bool on_device = GetParam() == DriverBackend::kCuda;
  const uint64_t moves = on_device ? 100'000 : kernels::kSanitized ? 100 : 1'000;
  const int batch = on_device ? 16 : 3;
  constexpr int kRoom = 2000;
  const AttentionChoice choices[] = {Choice(AttentionPolicy::kForecast, AttentionPolicy::kForecast),
                                     Choice(AttentionPolicy::kSparse, AttentionPolicy::kSparse)};
  ModelDriverOptions options = Options();
  options.run_ahead = true;
  options.copy_ctas = {.min_ctas = 1, .max_ctas = 8};
  ModelDriver tiered(options), resident(options);
  std::vector<ModelDriver::Sequence> moving, staying;
  for (int i = 0; i < batch; ++i) {
    const std::vector<int32_t> prompt = Prompt(640 + 20 * i, 300 + i);
    moving.push_back(tiered.Start(prompt, kRoom, choices[i % 2], Residency::kTiered));
    staying.push_back(resident.Start(prompt, kRoom, choices[i % 2]));
  }
  const memory::ResidencyStats& stats = *tiered.kv().stats();
  uint64_t moved = 0;
  for (int step = 0; moved < moves && step + 1 < kRoom; ++step) {
    StepAll(&tiered, &moving);
    StepAll(&resident, &staying);
    for (int i = 0; i < batch; ++i) {
      ASSERT_EQ(moving[i].tokens.back(), staying[i].tokens.back())
          << "sequence " << i << " step " << step;
    }
    moved = 0;
    for (int layer = 0; layer < stats.num_layers; ++layer) {
      moved += stats.layers[layer].fetched_blocks;
    }
  }
  EXPECT_GE(moved, moves);
}

}  // namespace
}  // namespace augur::engine
