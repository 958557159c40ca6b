#pragma once
#include <cstdint>

namespace augur::kernels {

inline constexpr int kMaxTopLogprobs = 20;

struct RankedLogprob {
  int32_t token = -1;
  float logprob = 0.0f;  // natural logarithm
};

// Of one row. A row with a NaN or without a finite maximum has NaN for every logprob.
struct TokenLogprobsRow {
  RankedLogprob chosen;
  int32_t rank = 0;                    // of chosen, from 1
  RankedLogprob top[kMaxTopLogprobs];  // by rank; as many as were asked for and the vocabulary has
};

// out[r]: the probability of tokens[r], and of the most probable tokens, under the softmax of
// logits[r] alone, whatever was done to the row before a token was drawn. Ranks go by falling
// logit, ties by rising id, as SampleTokens orders them.
struct TopLogprobsParams {
  const float* logits = nullptr;  // [rows, vocab]
  const int32_t* tokens =
      nullptr;                   // [rows]; one outside of the vocabulary (kNotFinite): NaN, rank 0
  const int32_t* top = nullptr;  // [rows]: how many, up to kMaxTopLogprobs; -1: the row is left out
  TokenLogprobsRow* out = nullptr;  // [rows]
  int rows = 0;
  int vocab = 0;
};

}  // namespace augur::kernels
