// What sequences go through in tests of bits, step by step on a ModelDriver; each returns the
// logits of the prompt's last token and of every decoded one, to be compared with those of an
// undisturbed run.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/support/model_driver.h"

namespace augur::tests {

using Logits = std::vector<std::vector<float>>;

// A gtest assertion: the same rows, bit for bit.
void ExpectSameLogits(const Logits& found, const Logits& expected);

// Tokens 3 to 2 + words, with repeated words, so that scores differ and decoding is not all noise.
std::vector<int32_t> RepeatingPrompt(int tokens, uint32_t seed, int words);

// The prompt of a sequence that takes the frames another one has left, for a seed.
using OtherPrompt = std::function<std::vector<int32_t>(uint32_t seed)>;

// Tiered: saved after 512 tokens of the prompt and after every `every`-th decoded one, each time
// with another sequence's bytes in the frames that it left, and resumed.
Logits SavedAndResumed(ModelDriver* model, const std::vector<int32_t>& prompt,
                       const engine::AttentionChoice& choice, int decodes, int every,
                       const OtherPrompt& other);

// Begun on the device, written behind from the 10th decoded token on, saved after the 20th and
// resumed as a tiered sequence. most_blocks: in its life.
Logits MirroredFromTheDevice(ModelDriver* model, const std::vector<int32_t>& prompt,
                             const engine::AttentionChoice& choice, int decodes, int most_blocks,
                             const OtherPrompt& other);

// Computes the prompt and leaves its full blocks in the prefix cache.
void PublishPrompt(ModelDriver* model, const std::vector<int32_t>& prompt,
                   const engine::AttentionChoice& choice, memory::Residency residency);
// A sequence that takes `hits` of those blocks.
Logits AfterAPrefixHit(ModelDriver* model, const std::vector<int32_t>& prompt,
                       const engine::AttentionChoice& choice, memory::Residency residency, int hits,
                       int decodes);

// Steps the sequences together until each has decoded `decodes` tokens: in each step some prefill
// by blocks and those that are done decode, at most max_rows rows. The logits of each sequence.
std::vector<Logits> StepTogether(ModelDriver* model, std::vector<ModelDriver::Sequence>* sequences,
                                 int decodes, int max_rows);

// Likewise, until each has drawn `decodes` tokens, which it keeps; every one waits in a step now
// and then, so that what was run ahead for it was in vain. `model` may run ahead. Gives the drawn
// tokens' log probabilities of each sequence that has them told, whose bits are those of logits.
std::vector<std::vector<float>> DrawTogether(ModelDriver* model,
                                             std::vector<ModelDriver::Sequence>* sequences,
                                             int decodes);

}  // namespace augur::tests
