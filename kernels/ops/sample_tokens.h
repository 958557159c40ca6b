#pragma once
#include <cstdint>

namespace augur::kernels {

// One row's sampling rule. Randomness comes from Philox4x32-10 keyed by (seed, choice_index,
// position): the draw depends on nothing else, so a row samples the same token alone, in a batch or
// after a preemption.
struct SamplingRow {
  float temperature = 1.0f;  // 0: greedy, the highest logit, ties to the lower id
  uint32_t top_k = 0;        // 0: off
  float top_p = 1.0f;        // 1: off; nucleus in order of falling probability, at least one token
  float min_p = 0.0f;        // 0: off; drops tokens below min_p * the highest probability
  uint64_t seed = 0;
  uint32_t choice_index = 0;
  uint32_t position = 0;  // position in the sequence that the sampled token will take
};

inline constexpr int32_t kNotFinite = -1;

// tokens[r] = a draw from row r, or kNotFinite when the row holds a NaN or has no finite maximum.
struct SampleTokensParams {
  const float* logits = nullptr;        // [rows, vocab]
  const SamplingRow* params = nullptr;  // [rows]
  int32_t* tokens = nullptr;            // [rows]
  int rows = 0;
  int vocab = 0;
};

}  // namespace augur::kernels
