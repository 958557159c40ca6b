#pragma once
#include <cstdint>

namespace augur::kernels {

// What the rules of a sequence need to know of a token, in one word.
inline constexpr uint32_t kTokenInPrompt = uint32_t{1} << 31;
inline constexpr uint32_t kTokenEnds = uint32_t{1} << 30;    // of the sequence
inline constexpr uint32_t kTokenCountMask = kTokenEnds - 1;  // how often it was generated

// How one row's logits are changed before its token is drawn; what a sequence knows of its tokens
// is in a slot of the state. In this order, as vLLM has it (vllm/v1/sample/sampler.py):
//
//   x += bias[token]                                   has_bias; -infinity: the token is not
//   allowed x = -infinity where the token ends the sequence    holds_ends (min_tokens) x = x > 0 ?
//   x / repetition : x * repetition        of tokens in the prompt or generated (CTRL,
//                                                      arXiv 1909.05858, section 4.1)
//   x -= frequency * times generated
//   x -= presence                                      of tokens generated
//
// Temperature and filters follow in SampleTokens. Each step is rounded once, so that all backends
// give the same bits. What is not finite stays so: a rule never makes a NaN or +infinity look good.
struct LogitRule {
  int32_t slot = -1;     // -1: none, the row stays as it is
  int32_t position = 0;  // of the row's input token, the last one known
  float repetition = 1.0f;
  float frequency = 0.0f;
  float presence = 0.0f;
  int32_t has_bias = 0;
  int32_t holds_ends = 0;
  bool operator==(const LogitRule&) const = default;
};

// Counts each row's input token in its slot, once however often a row is run: `counted` says up to
// which position that is done.
struct CountTokensParams {
  const LogitRule* rules = nullptr;    // [rows], slots all different
  const int32_t* row_ids = nullptr;    // [rows]: places in token_ids
  const int32_t* token_ids = nullptr;  // one outside of the vocabulary counts as none
  uint32_t* words = nullptr;           // [slots, vocab]
  int32_t* counted = nullptr;          // [slots]: tokens from the sequence's begin
  int rows = 0;
  int vocab = 0;
};

// out[r] = logits[r] changed by rules[r].
struct AdjustLogitsParams {
  const float* logits = nullptr;     // [rows, vocab]
  const LogitRule* rules = nullptr;  // [rows]
  const float* bias = nullptr;       // [slots, vocab]
  const uint32_t* words = nullptr;   // [slots, vocab]
  float* out = nullptr;              // [rows, vocab], not `logits`
  int rows = 0;
  int vocab = 0;
};

}  // namespace augur::kernels
