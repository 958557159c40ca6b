#pragma once
#include <cstddef>

#include "kernels/dtype.h"
#include "kernels/kv_page.h"
#include "kernels/ops/segment.h"

namespace augur::kernels {

// Sums of the values of a block's tokens, for sampled attention's control variate: one chain of
// additions in the order of tokens, whoever adds which of them. A block's sum goes on from what its
// earlier tokens left (an own place for it may be given), or begins at 0 with the block.
struct SumValuesSegment {
  Segment rows;  // tokens to add; their values are in the pages
  // [blocks of the rows][num_kv_heads]: pages [K 64 x head_dim][V 64 x head_dim] of dtype.
  const std::byte* const* pages = nullptr;
  float* const* sums = nullptr;  // likewise, head_dim floats each: read and written
};

struct SumValuesParams {
  const SumValuesSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;
};

}  // namespace augur::kernels
