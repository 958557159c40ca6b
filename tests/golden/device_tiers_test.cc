// The runner for devices, with every policy and both residencies: the bits of the same policy over
// resident KV, whatever slots, chunks and prefetch; in a batch of mixed kinds, saved and resumed,
// after a prefix hit, mirrored, and run ahead. On the CPU its bits are those of the CPU's own
// runner, which tier_bits_test holds to the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/kernels/kernel_test_data.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/model_driver.h"
#include "tests/support/random_forecast.h"

namespace augur::engine {
namespace {

using memory::Residency;
using tests::DriverBackend;
using tests::ModelDriver;
using tests::ModelDriverOptions;
using tests::SameBits;
using Logits = std::vector<std::vector<float>>;

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
            .forecast_heads = heads_};
  }

  static std::vector<int32_t> Prompt(int tokens, uint32_t seed = 1) {
    std::mt19937 random(seed);
    std::vector<int32_t> prompt(tokens);
    // Repeated words, so that scores differ and decoding is not all noise.
    for (int i = 0; i < tokens; ++i) {
      prompt[i] = i >= 40 && random() % 3 == 0 ? prompt[random() % (i - 30)]
                                               : static_cast<int32_t>(3 + random() % 4000);
    }
    return prompt;
  }

  static AttentionChoice Choice(AttentionPolicy prefill, AttentionPolicy decode) {
    return {.prefill = prefill, .decode = decode, .budget = kBudget};
  }
  static std::vector<AttentionChoice> Choices() {
    using enum AttentionPolicy;
    if (kernels::kSanitized) return {Choice(kForecast, kForecast), Choice(kSparse, kDense)};
    return {Choice(kForecast, kForecast), Choice(kSparse, kSparse), Choice(kDense, kForecast),
            Choice(kSparse, kDense)};
  }

  static void ExpectSame(const Logits& found, const Logits& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_TRUE(SameBits(found[i], expected[i])) << "row " << i;
    }
  }

  tests::ScratchFolder scratch_;
  std::string heads_;
};

INSTANTIATE_TEST_SUITE_P(, DeviceTiersTest, testing::ValuesIn([] {
                           std::vector<DriverBackend> backends = tests::DriverBackendsHere();
                           std::erase(backends, DriverBackend::kCpu);
                           return backends;
                         }()),
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
      ExpectSame(expected, host.Complete(Prompt(kPrompt), 512, kDecodes, choice));
    }
    for (const Variant& variant : variants) {
      SCOPED_TRACE(choice.Fingerprint() + " slots " + std::to_string(variant.slots));
      ModelDriverOptions options = Options();
      options.num_slots = variant.slots;
      options.prefetch = variant.prefetch;
      ModelDriver tiered(options);
      ExpectSame(
          tiered.Complete(Prompt(kPrompt), variant.chunk, kDecodes, choice, Residency::kTiered),
          expected);
      if (kernels::kSanitized) break;
    }
  }
}

TEST_P(DeviceTiersTest, CrossingDenseLenWhileDecoding) {
  ModelDriver model(Options());
  AttentionChoice choice = Choice(AttentionPolicy::kForecast, AttentionPolicy::kForecast);
  choice.dense_len = 1000;
  const std::vector<int32_t> prompt = Prompt(980);
  const Logits expected = model.Complete(prompt, 512, 40, choice);
  ExpectSame(model.Complete(prompt, 256, 40, choice, Residency::kTiered), expected);
  EXPECT_FALSE(SameBits(expected[35], model.Complete(prompt, 512, 40)[35]));
}

TEST_P(DeviceTiersTest, SavedAndResumed) {
  for (const AttentionChoice& choice : Choices()) {
    SCOPED_TRACE(choice.Fingerprint());
    // Saved before the window ends that crosses into the open block.
    ModelDriver model(Options());
    const Logits expected = model.Complete(Prompt(kPrompt - 20), 512, 24, choice);
    auto sequence = model.Start(Prompt(kPrompt - 20), 24, choice, Residency::kTiered);
    model.StepOne(&sequence, 512);
    model.Save(sequence);
    // Another one's bytes in the frames that it left.
    model.Complete(Prompt(700, 9), 512, 3, choice, Residency::kTiered);
    model.Resume(sequence);
    Logits found = {model.Prefill(&sequence, 512)};
    for (int i = 0; i < 24; ++i) {
      found.push_back(model.Decode(&sequence, 1)[0]);
      if (i % 8 != 0) continue;
      const std::vector<int32_t> sampled = model.sampled();
      model.Save(sequence);
      model.Complete(Prompt(700, 10 + i), 512, 1, choice, Residency::kTiered);
      model.Resume(sequence);
      model.RestoreSampled(sampled);
    }
    ExpectSame(found, expected);
    model.Finish(sequence);
  }
}

// Under `auto`: begun on the device, written behind, saved, resumed as a tiered sequence.
TEST_P(DeviceTiersTest, MirroredFromTheDevice) {
  const AttentionChoice choice = Choice(AttentionPolicy::kForecast, AttentionPolicy::kForecast);
  ModelDriver model(Options());
  const Logits expected = model.Complete(Prompt(kPrompt), 512, 40, choice);
  auto sequence = model.Start(Prompt(kPrompt), 40, choice);
  Logits found = {model.Prefill(&sequence, 512)};
  for (auto& row : model.Decode(&sequence, 10)) found.push_back(row);
  ASSERT_TRUE(model.kv().store()->BeginMirror(sequence.id, 25));
  for (auto& row : model.Decode(&sequence, 10)) found.push_back(row);
  const std::vector<int32_t> sampled = model.sampled();
  model.Save(sequence);
  model.Complete(Prompt(700, 3), 512, 2, choice, Residency::kTiered);
  model.Resume(sequence);
  model.RestoreSampled(sampled);
  for (auto& row : model.Decode(&sequence, 20)) found.push_back(row);
  ExpectSame(found, expected);
  model.Finish(sequence);
}

TEST_P(DeviceTiersTest, AfterAPrefixHit) {
  for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
    const AttentionChoice choice = Choice(AttentionPolicy::kForecast, AttentionPolicy::kForecast);
    ModelDriver model(Options());
    const Logits expected = model.Complete(Prompt(kPrompt), 512, 20, choice);
    auto donor = model.Start(Prompt(kPrompt), 0, choice, residency);
    model.Prefill(&donor, 512);
    model.PublishAll(donor);
    model.Finish(donor);
    for (const int hits : {1, (kPrompt - 1) / 128, (kPrompt - 1) / 64}) {
      auto hit = model.Start(Prompt(kPrompt), 20, choice, residency, hits);
      Logits found = {model.Prefill(&hit, 512)};
      for (auto& row : model.Decode(&hit, 20)) found.push_back(row);
      ExpectSame(found, expected);
      model.Finish(hit);
    }
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
    ModelDriver batched(options);
    std::vector<ModelDriver::Sequence> sequences;
    for (int i = 0; i < batch; ++i) {
      sequences.push_back(batched.Start(prompt(i), decodes, choice(i), residency(i)));
    }
    const auto drawn = [](const ModelDriver::Sequence& sequence) {
      return static_cast<int>(sequence.tokens.size()) - sequence.prompt_tokens;
    };
    for (int step = 0;; ++step) {
      std::vector<ModelDriver::Part> parts;
      bool done = true;
      for (int i = 0; i < batch; ++i) {
        auto& sequence = sequences[i];
        const int missing = static_cast<int>(sequence.tokens.size()) - sequence.computed;
        if (drawn(sequence) == decodes) continue;
        done = false;
        if (step % 11 == i && missing == 1) continue;  // waits
        parts.push_back({&sequence, std::min(missing, missing > 1 ? 64 * (1 + i % 2) : 1)});
      }
      if (done) break;
      if (parts.empty()) continue;
      batched.Step(parts);
      for (size_t p = 0; p < parts.size(); ++p) {
        auto& sequence = *parts[p].sequence;
        if (sequence.computed < static_cast<int>(sequence.tokens.size())) continue;
        sequence.tokens.push_back(batched.sampled()[p]);
      }
    }
    for (int i = 0; i < batch; ++i) {
      SCOPED_TRACE(testing::Message() << "sequence " << i << " " << choice(i).Fingerprint());
      const auto first = sequences[i].tokens.begin() + sequences[i].prompt_tokens;
      EXPECT_EQ(std::vector<int32_t>(first, sequences[i].tokens.end()), alone[i]);
    }
  }
}

}  // namespace
}  // namespace augur::engine
