// CountTokens and AdjustLogits of every backend against slow references, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"
#include "tests/kernels/sampling_reference.h"

namespace augur::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What a slot holds, told from its sequence alone.
struct RuledSequence {
  std::vector<int32_t> prompt, generated, ends, allowed;
  std::map<int32_t, float> bias;

  std::vector<uint32_t> Words(int vocab) const {
    std::vector<uint32_t> words(vocab, 0);
    for (const int32_t token : prompt) words[token] |= kTokenInPrompt;
    for (const int32_t token : generated) ++words[token];
    for (const int32_t token : ends) words[token] |= kTokenEnds;
    return words;
  }
  std::vector<float> Bias(int vocab) const {
    std::vector<float> all(vocab, allowed.empty() ? 0.0f : -kInfinity);
    for (const int32_t token : allowed) all[token] = 0.0f;
    for (const auto& [token, value] : bias) all[token] += value;
    return all;
  }
};

std::vector<int> TimesOfEach(const std::vector<int32_t>& tokens, int vocab) {
  std::vector<int> times(vocab, 0);
  for (const int32_t token : tokens) ++times[token];
  return times;
}

// The rules one after the other over the whole row, each from the lists of tokens.
std::vector<float> Reference(std::vector<float> row, const RuledSequence& sequence,
                             const LogitRule& rule) {
  const int vocab = static_cast<int>(row.size());
  const std::vector<int> prompt = TimesOfEach(sequence.prompt, vocab);
  const std::vector<int> generated = TimesOfEach(sequence.generated, vocab);
  const std::vector<int> allowed = TimesOfEach(sequence.allowed, vocab);
  const std::vector<int> ends = TimesOfEach(sequence.ends, vocab);
  for (int i = 0; i < vocab && rule.has_bias != 0; ++i) {
    if (!sequence.allowed.empty() && allowed[i] == 0) row[i] += -kInfinity;
    if (sequence.bias.contains(i)) row[i] += sequence.bias.at(i);
  }
  for (int i = 0; i < vocab && rule.holds_ends != 0; ++i) {
    if (ends[i] > 0) row[i] = -kInfinity;
  }
  for (int i = 0; i < vocab; ++i) {
    if (prompt[i] == 0 && generated[i] == 0) continue;
    row[i] = row[i] > 0 ? row[i] / rule.repetition : row[i] * rule.repetition;
  }
  for (int i = 0; i < vocab; ++i) row[i] -= rule.frequency * static_cast<float>(generated[i]);
  for (int i = 0; i < vocab; ++i) row[i] -= generated[i] > 0 ? rule.presence : 0.0f;
  return row;
}

std::vector<int32_t> SomeTokens(std::mt19937* random, int count, int vocab) {
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) token = static_cast<int32_t>((*random)() % vocab);
  return tokens;
}

struct RuledRow {
  RuledSequence sequence;
  LogitRule rule;
};

std::vector<RuledRow> RandomRows(int rows, int vocab) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> uniform(-2.0f, 2.0f);
  std::vector<RuledRow> all(rows);
  for (int r = 0; r < rows; ++r) {
    auto& [sequence, rule] = all[r];
    sequence.prompt = SomeTokens(&random, 1 + random() % 200, vocab);
    sequence.generated = SomeTokens(&random, random() % 100, 1 + vocab / 3);  // some many times
    sequence.ends = SomeTokens(&random, r % 4, vocab);
    if (r % 5 == 1) sequence.allowed = SomeTokens(&random, 1 + vocab / 2, vocab);
    for (const int32_t token : SomeTokens(&random, r % 7, vocab)) {
      sequence.bias[token] = 50.0f * uniform(random);
    }
    rule.slot = r % 6 == 5 ? -1 : rows - 1 - r;
    rule.repetition = r % 3 == 0 ? 1.0f : 0.3f + std::fabs(uniform(random));
    rule.frequency = r % 4 == 0 ? 0.0f : uniform(random);
    rule.presence = r % 2 == 0 ? 0.0f : uniform(random);
    rule.has_bias = r % 5 == 0 ? 0 : 1;
    rule.holds_ends = r % 2;
  }
  return all;
}

TEST(TwinAdjustLogitsTest, EveryRuleIsTheReferencesBitForBit) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int vocab : {1, 97, 4096, 32001}) {
      const int rows = kSanitized ? 12 : 30;
      const std::vector<RuledRow> all = RandomRows(rows, vocab);
      std::vector<float> logits = RandomFloats(size_t(rows) * vocab, 3, 4.0f);
      logits[vocab / 2] = -kInfinity;
      std::vector<uint32_t> words(logits.size(), 0xdeadbeef);
      std::vector<float> bias(logits.size(), NAN);
      std::vector<LogitRule> rules;
      for (const auto& [sequence, rule] : all) {
        rules.push_back(rule);
        if (rule.slot < 0) continue;
        const auto row_words = sequence.Words(vocab);
        std::copy(row_words.begin(), row_words.end(), words.begin() + size_t(rule.slot) * vocab);
        if (rule.has_bias == 0) continue;  // nobody reads it: it stays NaN
        const auto row_bias = sequence.Bias(vocab);
        std::copy(row_bias.begin(), row_bias.end(), bias.begin() + size_t(rule.slot) * vocab);
      }
      const SharedArray<float> shared_logits(*backend, logits), shared_bias(*backend, bias);
      const SharedArray<uint32_t> shared_words(*backend, words);
      const SharedArray<LogitRule> shared_rules(*backend, rules);
      SharedArray<float> out(*backend, logits.size());
      backend->AdjustLogits({.logits = shared_logits.data(),
                             .rules = shared_rules.data(),
                             .bias = shared_bias.data(),
                             .words = shared_words.data(),
                             .out = out.data(),
                             .rows = rows,
                             .vocab = vocab});
      backend->Synchronize();
      for (int r = 0; r < rows; ++r) {
        const auto begin = logits.begin() + size_t(r) * vocab;
        std::vector<float> expected(begin, begin + vocab);
        if (rules[r].slot >= 0) expected = Reference(expected, all[r].sequence, rules[r]);
        EXPECT_TRUE(SameBits(out.data() + size_t(r) * vocab, expected.data(), vocab))
            << name << " vocab " << vocab << " row " << r;
      }
    }
  }
}

// A rule must not make a row look good that is not.
TEST(TwinAdjustLogitsTest, WhatIsNotFiniteStaysSo) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    const std::vector<float> logits = {NAN, kInfinity, 1.0f, NAN, kInfinity};
    const SharedArray<float> shared_logits(*backend, logits);
    const SharedArray<float> bias(
        *backend, std::vector<float>{-kInfinity, -kInfinity, -kInfinity, 0.0f, 0.0f});
    const SharedArray<uint32_t> words(
        *backend, std::vector<uint32_t>{0, 0, 0, kTokenEnds, kTokenEnds | kTokenInPrompt | 3});
    const SharedArray<LogitRule> rules(
        *backend, std::vector<LogitRule>{{.slot = 0, .has_bias = 1, .holds_ends = 1}});
    SharedArray<float> out(*backend, logits.size());
    backend->AdjustLogits({.logits = shared_logits.data(),
                           .rules = rules.data(),
                           .bias = bias.data(),
                           .words = words.data(),
                           .out = out.data(),
                           .rows = 1,
                           .vocab = 5});
    backend->Synchronize();
    for (const int i : {0, 1, 3, 4}) EXPECT_TRUE(std::isnan(out[i])) << name << " " << i;
    EXPECT_EQ(out[2], -kInfinity);
  }
}

// Rows are counted once, in their order, whatever is run twice or late; ids that are none count as
// none.
TEST(TwinAdjustLogitsTest, TokensAreCountedOnce) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    const int vocab = 50, slots = 3;
    SharedArray<uint32_t> words(*backend, std::vector<uint32_t>(slots * vocab, kTokenInPrompt));
    SharedArray<int32_t> counted(*backend, std::vector<int32_t>{10, 20, 30});
    const SharedArray<int32_t> token_ids(*backend, std::vector<int32_t>{7, 8, 49, -1, 50});
    const auto count = [&, &backend = backend](std::vector<LogitRule> rules,
                                               std::vector<int32_t> row_ids) {
      const SharedArray<LogitRule> shared_rules(*backend, rules);
      const SharedArray<int32_t> shared_ids(*backend, row_ids);
      backend->CountTokens({.rules = shared_rules.data(),
                            .row_ids = shared_ids.data(),
                            .token_ids = token_ids.data(),
                            .words = words.data(),
                            .counted = counted.data(),
                            .rows = static_cast<int>(rules.size()),
                            .vocab = vocab});
      backend->Synchronize();
    };
    count({{.slot = 2, .position = 30}, {}, {.slot = 0, .position = 10}}, {2, 0, 1});
    EXPECT_EQ(words[2 * vocab + 49], kTokenInPrompt + 1) << name;
    EXPECT_EQ(words[8], kTokenInPrompt + 1);
    count({{.slot = 2, .position = 30}, {.slot = 1, .position = 19}}, {2, 0});  // again; long known
    EXPECT_EQ(words[2 * vocab + 49], kTokenInPrompt + 1);
    count({{.slot = 2, .position = 31}, {.slot = 1, .position = 20}}, {2, 3});
    EXPECT_EQ(words[2 * vocab + 49], kTokenInPrompt + 2);
    count({{.slot = 1, .position = 21}}, {4});
    EXPECT_EQ(counted.ToVector(), (std::vector<int32_t>{11, 22, 32}));
    uint32_t sum = 0;
    for (size_t i = 0; i < words.size(); ++i) sum += words[i] & kTokenCountMask;
    EXPECT_EQ(sum, 3u);
  }
}

// `draws` tokens of one row under a rule and a bias; each draw is a row of its own.
std::vector<int> DrawCounts(Backend& backend, const std::vector<float>& logits,
                            const RuledSequence& sequence, const LogitRule& rule,
                            SamplingRow sampling, int draws) {
  const int vocab = static_cast<int>(logits.size());
  std::vector<float> many;
  std::vector<SamplingRow> samplings;
  for (int i = 0; i < draws; ++i) {
    many.insert(many.end(), logits.begin(), logits.end());
    sampling.position = i;
    samplings.push_back(sampling);
  }
  const SharedArray<float> shared_logits(backend, many), bias(backend, sequence.Bias(vocab));
  const SharedArray<uint32_t> words(backend, sequence.Words(vocab));
  const SharedArray<LogitRule> rules(backend, std::vector<LogitRule>(draws, rule));
  const SharedArray<SamplingRow> shared_samplings(backend, samplings);
  SharedArray<float> adjusted(backend, many.size());
  SharedArray<int32_t> tokens(backend, static_cast<size_t>(draws));
  backend.AdjustLogits({.logits = shared_logits.data(),
                        .rules = rules.data(),
                        .bias = bias.data(),
                        .words = words.data(),
                        .out = adjusted.data(),
                        .rows = draws,
                        .vocab = vocab});
  backend.SampleTokens({.logits = adjusted.data(),
                        .params = shared_samplings.data(),
                        .tokens = tokens.data(),
                        .rows = draws,
                        .vocab = vocab});
  backend.Synchronize();
  std::vector<int> counts(vocab, 0);
  for (int i = 0; i < draws; ++i) ++counts.at(tokens[i]);
  return counts;
}

// Rules, temperature and filters together, and that the test would see a small bias too many.
TEST(TwinAdjustLogitsTest, DrawsFollowTheDistributionAndAPlantedBiasDoesNot) {
  const int vocab = 97, draws = 20000;
  std::mt19937 random(3);
  RuledSequence sequence;
  sequence.prompt = SomeTokens(&random, 30, vocab);
  sequence.generated = SomeTokens(&random, 40, vocab / 2);
  sequence.bias = {{3, 1.5f}, {60, -4.0f}};
  sequence.ends = {10, 11};
  const LogitRule rule{.slot = 0,
                       .repetition = 1.3f,
                       .frequency = 0.4f,
                       .presence = 0.3f,
                       .has_bias = 1,
                       .holds_ends = 1};
  const std::vector<float> logits = RandomFloats(vocab, 1, 1.5f);
  const std::vector<float> adjusted = Reference(logits, sequence, rule);
  RuledSequence planted = sequence;
  const auto best = std::max_element(adjusted.begin(), adjusted.end()) - adjusted.begin();
  planted.bias[static_cast<int32_t>(best)] += 0.4f;
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const uint32_t top_k : {0u, 30u}) {
      for (const float top_p : {1.0f, 0.9f}) {
        for (const float min_p : {0.0f, 0.05f}) {
          SamplingRow sampling{.temperature = 1.2f, .top_k = top_k, .top_p = top_p, .min_p = min_p};
          sampling.seed = 99;
          const std::vector<double> p = ExpectedProbabilities(adjusted, sampling);
          const ChiSquare right =
              CompareCounts(p, DrawCounts(*backend, logits, sequence, rule, sampling, draws));
          EXPECT_LT(right.statistic, right.limit) << name << " " << top_k << " " << top_p;
          const ChiSquare biased =
              CompareCounts(p, DrawCounts(*backend, logits, planted, rule, sampling, draws));
          EXPECT_GT(biased.statistic, biased.limit) << name << " " << top_k << " " << top_p;
        }
      }
    }
  }
}

}  // namespace
}  // namespace augur::kernels
