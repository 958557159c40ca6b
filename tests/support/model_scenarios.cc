#include "tests/support/model_scenarios.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>

namespace augur::tests {
namespace {

using memory::Residency;

void DecodeInto(ModelDriver* model, ModelDriver::Sequence* sequence, int steps, Logits* found) {
  for (std::vector<float>& row : model->Decode(sequence, steps)) found->push_back(std::move(row));
}

// Saves the sequence, lets another one with `prompt` use its frames, and resumes it.
void SaveAndResume(ModelDriver* model, const ModelDriver::Sequence& sequence,
                   const engine::AttentionChoice& choice, const std::vector<int32_t>& prompt,
                   int decodes) {
  const std::vector<int32_t> sampled = model->sampled();
  model->Save(sequence);
  model->Complete(prompt, 512, decodes, choice, Residency::kTiered);
  model->Resume(sequence);
  model->RestoreSampled(sampled);
}

}  // namespace

void ExpectSameLogits(const Logits& found, const Logits& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_TRUE(SameBits(found[i], expected[i])) << "row " << i;
  }
}

std::vector<int32_t> RepeatingPrompt(int tokens, uint32_t seed, int words) {
  std::mt19937 random(seed);
  std::vector<int32_t> prompt(tokens);
  for (int i = 0; i < tokens; ++i) {
    prompt[i] = i >= 40 && random() % 3 == 0 ? prompt[random() % (i - 30)]
                                             : static_cast<int32_t>(3 + random() % words);
  }
  return prompt;
}

Logits SavedAndResumed(ModelDriver* model, const std::vector<int32_t>& prompt,
                       const engine::AttentionChoice& choice, int decodes, int every,
                       const OtherPrompt& other) {
  auto sequence = model->Start(prompt, decodes, choice, Residency::kTiered);
  model->StepOne(&sequence, static_cast<int>(std::min<size_t>(512, prompt.size() / 128 * 64)));
  SaveAndResume(model, sequence, choice, other(9), 3);
  Logits found = {model->Prefill(&sequence, 512)};
  for (int i = 0; i < decodes; ++i) {
    DecodeInto(model, &sequence, 1, &found);
    if (i % every == 0) SaveAndResume(model, sequence, choice, other(10 + i), 1);
  }
  model->Finish(sequence);
  return found;
}

Logits MirroredFromTheDevice(ModelDriver* model, const std::vector<int32_t>& prompt,
                             const engine::AttentionChoice& choice, int decodes, int most_blocks,
                             const OtherPrompt& other) {
  auto sequence = model->Start(prompt, decodes, choice);
  Logits found = {model->Prefill(&sequence, 512)};
  DecodeInto(model, &sequence, 10, &found);
  const bool mirrors = model->kv().store()->BeginMirror(sequence.id, most_blocks);
  EXPECT_TRUE(mirrors);
  if (!mirrors) return found;
  DecodeInto(model, &sequence, 10, &found);
  SaveAndResume(model, sequence, choice, other(3), 2);
  DecodeInto(model, &sequence, decodes - 20, &found);
  model->Finish(sequence);
  return found;
}

void PublishPrompt(ModelDriver* model, const std::vector<int32_t>& prompt,
                   const engine::AttentionChoice& choice, Residency residency) {
  auto donor = model->Start(prompt, 0, choice, residency);
  model->Prefill(&donor, 512);
  model->PublishAll(donor);
  model->Finish(donor);
}

Logits AfterAPrefixHit(ModelDriver* model, const std::vector<int32_t>& prompt,
                       const engine::AttentionChoice& choice, Residency residency, int hits,
                       int decodes) {
  auto hit = model->Start(prompt, decodes, choice, residency, hits);
  Logits found = {model->Prefill(&hit, 512)};
  DecodeInto(model, &hit, decodes, &found);
  model->Finish(hit);
  return found;
}

std::vector<Logits> StepTogether(ModelDriver* model, std::vector<ModelDriver::Sequence>* sequences,
                                 int decodes, int max_rows) {
  std::vector<Logits> together(sequences->size());
  for (;;) {
    std::vector<ModelDriver::Part> parts;
    std::vector<size_t> who;
    int rows = 0;
    for (size_t i = 0; i < sequences->size(); ++i) {
      ModelDriver::Sequence& sequence = (*sequences)[i];
      const int missing = static_cast<int>(sequence.tokens.size()) - sequence.computed;
      if (missing == 0) continue;
      const int take = std::min(missing, missing > 1 ? 64 * (1 + static_cast<int>(i) % 3) : 1);
      if (rows + take > max_rows) continue;
      rows += take;
      parts.push_back({&sequence, take});
      who.push_back(i);
    }
    if (parts.empty()) return together;
    const Logits logits = model->Step(parts);
    const std::vector<int32_t> sampled = model->sampled();
    for (size_t p = 0; p < parts.size(); ++p) {
      ModelDriver::Sequence& sequence = *parts[p].sequence;
      if (sequence.computed < static_cast<int>(sequence.tokens.size())) continue;
      Logits& found = together[who[p]];
      found.push_back(logits[p]);
      if (static_cast<int>(found.size()) <= decodes) sequence.tokens.push_back(sampled[p]);
    }
  }
}

std::vector<std::vector<float>> DrawTogether(ModelDriver* model,
                                             std::vector<ModelDriver::Sequence>* sequences,
                                             int decodes) {
  const int batch = static_cast<int>(sequences->size());
  std::vector<std::vector<float>> told(batch);
  for (int step = 0;; ++step) {
    std::vector<ModelDriver::Part> parts;
    bool done = true;
    for (int i = 0; i < batch; ++i) {
      ModelDriver::Sequence& sequence = (*sequences)[i];
      const int tokens = static_cast<int>(sequence.tokens.size());
      const int missing = tokens - sequence.computed;
      if (tokens - sequence.prompt_tokens == decodes) continue;
      done = false;
      if (step % 11 == i && missing == 1) continue;  // waits
      parts.push_back({&sequence, std::min(missing, missing > 1 ? 64 * (1 + i % 2) : 1)});
    }
    if (done) return told;
    if (parts.empty()) continue;
    model->Step(parts);
    for (size_t p = 0; p < parts.size(); ++p) {
      ModelDriver::Sequence& sequence = *parts[p].sequence;
      if (sequence.computed < static_cast<int>(sequence.tokens.size())) continue;
      sequence.tokens.push_back(model->sampled()[p]);
      if (sequence.logprobs < 0) continue;
      told[&sequence - sequences->data()].push_back(model->outputs().logprobs[p].chosen.logprob);
    }
  }
}

}  // namespace augur::tests
