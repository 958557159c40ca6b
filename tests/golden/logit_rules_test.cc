// Rules of sequences through both runners: what they make of the model's logits is what a slow
// reference makes of them, with the same bits alone, in a batch, behind a step run ahead, after a
// preemption and where everything is computed again.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "tests/support/model_driver.h"
#include "tests/support/model_scenarios.h"

namespace augur::engine {
namespace {

using tests::DriverBackend;
using tests::ModelDriver;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int kVocab = 384;

std::unique_ptr<ModelDriver> Model(DriverBackend backend, bool run_ahead = false) {
  return std::make_unique<ModelDriver>(
      tests::ModelDriverOptions{.folder = tests::SourceFolder() + "/tests/golden/models/llama",
                                .threads = 2,
                                .backend = backend,
                                .run_ahead = run_ahead,
                                .max_rows = 256,
                                .max_segments = 12,
                                .host_blocks = backend == DriverBackend::kCpu ? 200 : 0});
}

LogitRules Penalties() {
  return {.repetition_penalty = 1.7f, .presence_penalty = 0.6f, .frequency_penalty = 0.9f};
}

// One of each kind and some together.
std::vector<LogitRules> AllKinds() {
  std::vector<LogitRules> kinds = {Penalties()};
  kinds.push_back({.repetition_penalty = 0.5f});
  kinds.push_back({.frequency_penalty = -1.5f});
  kinds.push_back({.bias = {{5, 3.5f}, {17, -100.0f}, {383, 100.0f / 64}}});
  LogitRules few = Penalties();
  for (TokenId id = 0; id < 40; ++id) few.allowed.push_back(9 * id);
  few.bias = {{18, 2.0f}, {1, 50.0f}};
  kinds.push_back(few);
  LogitRules held;
  for (TokenId id = 0; id < kVocab; id += 2) held.ending.push_back(id);
  held.min_tokens = 20;
  kinds.push_back(held);
  held.presence_penalty = 2.0f;
  kinds.push_back(held);
  return kinds;
}

// From the sequence's tokens alone.
std::vector<float> Reference(std::vector<float> row, const LogitRules& rules,
                             std::span<const int32_t> prompt, std::span<const int32_t> generated) {
  const auto has = [](const auto& ids, TokenId id) {
    return std::find(ids.begin(), ids.end(), id) != ids.end();
  };
  for (TokenId id = 0; id < kVocab; ++id) {
    float& x = row[id];
    if (!rules.allowed.empty() && !has(rules.allowed, id)) x = -kInfinity;
    for (const auto& [biased, bias] : rules.bias) x += biased == id ? bias : 0.0f;
    if (static_cast<int>(generated.size()) < rules.min_tokens && has(rules.ending, id)) {
      x = -kInfinity;
    }
    const auto times = std::count(generated.begin(), generated.end(), id);
    if (times > 0 || has(prompt, id)) {
      x = x > 0 ? x / rules.repetition_penalty : x * rules.repetition_penalty;
    }
    if (times > 0) x -= rules.frequency_penalty * static_cast<float>(times);
    if (times > 0) x -= rules.presence_penalty;
  }
  return row;
}

std::vector<int32_t> Prompt(uint32_t seed) {
  return tests::RepeatingPrompt(30 + 37 * static_cast<int>(seed % 5), seed, 60);
}

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> adjusted;  // of each, where rules applied
};

ModelDriver::Sequence Start(ModelDriver* model, uint32_t seed, const LogitRules* rules, int room) {
  ModelDriver::Sequence sequence = model->Start(Prompt(seed), room);
  sequence.seed = seed;
  sequence.temperature = 1.3f;
  sequence.rules = rules;
  return sequence;
}

// Alone. `after`: called with the sequence behind every token.
template <class After>
Drawn RunWith(ModelDriver* model, uint32_t seed, const LogitRules& rules, int tokens,
              After&& after) {
  ModelDriver::Sequence sequence = Start(model, seed, &rules, tokens);
  Drawn drawn;
  model->Prefill(&sequence, 64);
  for (int i = 0;; ++i) {
    drawn.tokens.push_back(model->sampled()[0]);
    if (rules.ApplyAt(i)) drawn.adjusted.push_back(model->Adjusted()[0]);
    sequence.tokens.push_back(drawn.tokens.back());
    if (i + 1 == tokens) break;
    after(&sequence);
    // One row, or all of them where the sequence has begun anew.
    while (sequence.computed + 1 < static_cast<int>(sequence.tokens.size())) {
      const int left = static_cast<int>(sequence.tokens.size()) - sequence.computed;
      model->StepOne(&sequence, std::min(left - 1, 64));
    }
    model->StepOne(&sequence, 1);
  }
  model->Finish(sequence);
  return drawn;
}

Drawn RunAlone(ModelDriver* model, uint32_t seed, const LogitRules& rules, int tokens) {
  return RunWith(model, seed, rules, tokens, [](ModelDriver::Sequence*) {});
}

void ExpectSame(const Drawn& found, const Drawn& expected) {
  EXPECT_EQ(found.tokens, expected.tokens);
  ASSERT_EQ(found.adjusted.size(), expected.adjusted.size());
  for (size_t i = 0; i < found.adjusted.size(); ++i) {
    ASSERT_TRUE(tests::SameBits(found.adjusted[i], expected.adjusted[i])) << "token " << i;
  }
}

TEST(LogitRulesTest, EveryKindIsTheReferences) {
  for (const DriverBackend backend : tests::DriverBackendsHere()) {
    const auto model = Model(backend);
    uint32_t seed = 1;
    for (const LogitRules& rules : AllKinds()) {
      SCOPED_TRACE(testing::Message() << tests::NameOf(backend) << " kind " << seed);
      ModelDriver::Sequence sequence = Start(model.get(), seed++, &rules, 40);
      std::vector<float> logits = model->Prefill(&sequence, 64);
      for (int i = 0; i < 40; ++i) {
        const std::span<const int32_t> all(sequence.tokens);
        const std::vector<float> expected = Reference(
            logits, rules, all.first(sequence.prompt_tokens), all.subspan(sequence.prompt_tokens));
        if (rules.ApplyAt(i)) {
          ASSERT_TRUE(tests::SameBits(model->Adjusted()[0], expected)) << "token " << i;
        }
        const int32_t token = model->sampled()[0];
        ASSERT_GE(token, 0);
        ASSERT_GT(expected[token], -kInfinity);
        sequence.tokens.push_back(token);
        logits = model->StepOne(&sequence, 1);
      }
      model->Finish(sequence);
    }
  }
}

// Beside others, with rules and without, in an order that changes.
TEST(LogitRulesTest, ABatchDrawsWhatEachDrawsAlone) {
  const std::vector<LogitRules> kinds = AllKinds();
  const int tokens = 30;
  for (const DriverBackend backend : tests::DriverBackendsHere()) {
    SCOPED_TRACE(tests::NameOf(backend));
    const auto model = Model(backend);
    std::vector<Drawn> alone;
    for (uint32_t i = 0; i < 10; ++i) {
      const LogitRules rules = i < kinds.size() ? kinds[i] : LogitRules{};
      alone.push_back(RunAlone(model.get(), i, rules, tokens));
    }
    std::vector<ModelDriver::Sequence> sequences;
    for (uint32_t i = 0; i < 10; ++i) {
      const LogitRules* rules = i < kinds.size() ? &kinds[i] : nullptr;
      sequences.push_back(Start(model.get(), i, rules, tokens));
    }
    std::vector<Drawn> together(10);
    for (int step = 0; step < 10 + tokens; ++step) {
      std::vector<ModelDriver::Part> parts;
      for (ModelDriver::Sequence& sequence : sequences) {
        const int left = static_cast<int>(sequence.tokens.size()) - sequence.computed;
        const bool is_done =
            static_cast<int>(sequence.tokens.size()) - sequence.prompt_tokens == tokens;
        if (!is_done) parts.push_back({&sequence, std::min(left, 20)});
      }
      if (parts.empty()) break;
      if (step % 2 == 1) std::reverse(parts.begin(), parts.end());
      model->Step(parts);
      const bool has_rules = std::any_of(parts.begin(), parts.end(), [&](const auto& part) {
        const auto& sequence = *part.sequence;
        return sequence.rules != nullptr &&
               sequence.rules->ApplyAt(sequence.computed - sequence.prompt_tokens);
      });
      const auto adjusted = has_rules ? model->Adjusted() : std::vector<std::vector<float>>();
      for (size_t i = 0; i < parts.size(); ++i) {
        ModelDriver::Sequence& sequence = *parts[i].sequence;
        if (sequence.computed < static_cast<int>(sequence.tokens.size())) continue;
        Drawn& drawn = together[&sequence - sequences.data()];
        const int generated = sequence.computed - sequence.prompt_tokens;
        drawn.tokens.push_back(model->sampled()[i]);
        if (sequence.rules != nullptr && sequence.rules->ApplyAt(generated)) {
          drawn.adjusted.push_back(adjusted[i]);
        }
        sequence.tokens.push_back(drawn.tokens.back());
      }
    }
    for (size_t i = 0; i < sequences.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "sequence " << i);
      ExpectSame(together[i], alone[i]);
      model->Finish(sequences[i]);
    }
  }
}

// Thrown out and computed again from the first token, others in its slot meanwhile.
TEST(LogitRulesTest, ComputedAgainItDrawsTheSame) {
  for (const DriverBackend backend : tests::DriverBackendsHere()) {
    SCOPED_TRACE(tests::NameOf(backend));
    const auto model = Model(backend);
    for (const LogitRules& rules : AllKinds()) {
      const Drawn expected = RunAlone(model.get(), 9, rules, 40);
      const Drawn again = RunWith(model.get(), 9, rules, 40, [&](ModelDriver::Sequence* sequence) {
        if (sequence->tokens.size() % 13 != 0) return;
        model->Finish(*sequence);
        RunAlone(model.get(), 3, Penalties(), 3);
        const std::vector<int32_t> tokens = sequence->tokens;
        const int prompt = sequence->prompt_tokens;
        *sequence = model->Start(tokens, 40);
        sequence->prompt_tokens = prompt;
        sequence->seed = 9;
        sequence->temperature = 1.3f;
        sequence->rules = &rules;
      });
      ExpectSame(again, expected);
    }
  }
}

// Saved on the host and resumed, by the runner for the CPU.
TEST(LogitRulesTest, SavedAndResumedItDrawsTheSame) {
  const auto model = Model(DriverBackend::kCpu);
  for (const LogitRules& rules : AllKinds()) {
    const Drawn expected = RunAlone(model.get(), 4, rules, 40);
    ModelDriver::Sequence sequence = model->Start(Prompt(4), 40, {}, memory::Residency::kTiered);
    sequence.seed = 4;
    sequence.temperature = 1.3f;
    sequence.rules = &rules;
    Drawn drawn;
    model->Prefill(&sequence, 64);
    for (int i = 0; i < 40; ++i) {
      drawn.tokens.push_back(model->sampled()[0]);
      if (rules.ApplyAt(i)) drawn.adjusted.push_back(model->Adjusted()[0]);
      sequence.tokens.push_back(drawn.tokens.back());
      if (i % 9 == 4) {
        model->Save(sequence);
        RunAlone(model.get(), 3, Penalties(), 3);
        model->Resume(sequence);
      }
      if (i + 1 < 40) model->StepOne(&sequence, 1);
    }
    model->Finish(sequence);
    ExpectSame(drawn, expected);
  }
}

// Steps run ahead count tokens that the host has not seen; some are run in vain, by sequences that
// wait or end.
TEST(LogitRulesTest, RunAheadItDrawsTheSame) {
  const std::vector<LogitRules> kinds = AllKinds();
  for (const DriverBackend backend : tests::DriverBackendsHere()) {
    if (backend == DriverBackend::kCpu) continue;
    SCOPED_TRACE(tests::NameOf(backend));
    std::vector<std::vector<int32_t>> expected;
    {
      const auto waiting = Model(backend);
      for (uint32_t i = 0; i < 60; ++i) {
        expected.push_back(
            RunAlone(waiting.get(), i, i % 8 == 7 ? LogitRules{} : kinds[i % 8], 45).tokens);
      }
    }
    const auto model = Model(backend, /*run_ahead=*/true);
    std::mt19937 random(5);
    std::vector<std::unique_ptr<ModelDriver::Sequence>> running;
    uint32_t next = 0;
    for (int step = 0; step < 300; ++step) {
      if (running.size() < 9 && next < expected.size() && random() % 3 == 0) {
        running.push_back(std::make_unique<ModelDriver::Sequence>(
            Start(model.get(), next, next % 8 == 7 ? nullptr : &kinds[next % 8], 45)));
        ++next;
      }
      std::vector<ModelDriver::Part> parts;
      for (auto& sequence : running) {
        const int left = static_cast<int>(sequence->tokens.size()) - sequence->computed;
        if (random() % 12 != 0) parts.push_back({sequence.get(), std::min(left, 64)});
      }
      if (parts.empty()) continue;
      model->Step(parts);
      for (size_t i = 0; i < parts.size(); ++i) {
        ModelDriver::Sequence& sequence = *parts[i].sequence;
        if (sequence.computed < static_cast<int>(sequence.tokens.size())) continue;
        const size_t place = sequence.tokens.size() - sequence.prompt_tokens;
        ASSERT_EQ(model->sampled()[i], expected[sequence.seed][place])
            << "sequence " << sequence.seed << ", token " << place;
        sequence.tokens.push_back(model->sampled()[i]);
      }
      std::erase_if(running, [&](const auto& sequence) {
        const size_t generated = sequence->tokens.size() - sequence->prompt_tokens;
        if (generated < 45 && random() % 60 != 0) return false;
        model->Finish(*sequence);
        return true;
      });
    }
    EXPECT_EQ(next, expected.size());
    EXPECT_GT(model->rows_foreseen(), 400);
  }
}

}  // namespace
}  // namespace augur::engine
