// Which rows of values sampled attention draws: the estimators of ops/sampled_attention.h on scores
// that lie in memory. Plain functions of scores, budget and draw key; kernels/README.md and
// engine/attention/sampling.md have the formulae.
//
// Thread: pure but for the memory they are given. Ownership: vectors keep their capacity. Failure:
// none.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/ops/sampled_attention.h"
#include "kernels/philox.h"

namespace augur::kernels {

// A query head's softmax over the entries of a list, as integers (value_weights.h).
struct HeadDistribution {
  const float* scores = nullptr;  // [entries][64], in powers of two
  std::vector<float> maxima;      // [entries]
  std::vector<uint64_t> sums;     // [entries] L
  std::vector<uint64_t> masses;   // [entries] M
  std::vector<uint64_t> prefix;   // [entries + 1] of masses
  float top = 0;                  // the largest score
  bool is_nan = false;            // some score is: nothing below means anything

  int entries() const { return static_cast<int>(maxima.size()); }
  uint64_t whole() const { return prefix.back(); }
  // Base-2 logarithm of the sum of 2^scores, over all entries and over the anchor's
  // (kNoLogAnchor where that is 0).
  float LogNorm() const;
  float LogAnchor() const;
};

// A row that was drawn, with the coefficient that its values get.
struct ValueDraw {
  int32_t place = 0;  // 64 * entry + token
  int32_t count = 0;
  float weight = 0;
};

// Where a head's random words come from.
struct DrawSource {
  AttentionDrawKey key;
  int64_t forced_offset = -1;  // SampledAttentionParams

  uint32_t Offset(uint32_t item) const {
    if (forced_offset >= 0) return static_cast<uint32_t>(forced_offset);
    return PhiloxAttention(PhiloxPurpose::kValueOffset, key, item).words[0];
  }
  uint32_t OffsetOfBlock(int32_t block) const { return Offset(1 + static_cast<uint32_t>(block)); }
};

void Measure(const IsaKernels& isa, const float* scores, int entries, HeadDistribution* head);

// Of one query head, ascending places. Every estimator but kShared.
void DrawValues(const IsaKernels& isa, ValueEstimator estimator, int samples,
                const HeadDistribution& head, const int32_t* blocks, const DrawSource& source,
                std::vector<ValueDraw>* draws);

// Draws for each query head that make `rows` distinct rows of the group in expectation, at most
// kMaxValueSamples. `scratch` keeps its capacity.
int DrawsForRows(const IsaKernels& isa, ValueEstimator estimator, int rows,
                 const std::vector<HeadDistribution>& group, std::vector<float>* scratch);

// kShared, a kv head: draws[head] have the same places for every head. `source` is the kv head's.
// The state becomes that for the next step.
void DrawShared(const IsaKernels& isa, ValueBudget budget, int samples,
                const std::vector<HeadDistribution>& group, const int32_t* blocks,
                const DrawSource& source, float* state, std::vector<std::vector<ValueDraw>>* draws);

}  // namespace augur::kernels
