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
  Segment rows;  // tokens to add; their values are in the pages. num_rows 0: left out
  // Pages [K 64 x head_dim][V 64 x head_dim] of dtype of the blocks that the rows fall into:
  // pages[i * block_stride + head * head_stride] for the i-th of them; and likewise each one's
  // sums, head_dim floats: read and written.
  const std::byte* const* pages = nullptr;
  float* const* sums = nullptr;
  int block_stride = 0;  // 0: num_kv_heads
  int head_stride = 1;
};

struct SumValuesParams {
  const SumValuesSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;
  // Added to every segment's lists, in entries: those of several layers lie behind each other.
  int64_t pages_offset = 0;
  int64_t sums_offset = 0;
};

}  // namespace augur::kernels
