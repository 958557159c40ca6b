#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"
#include "kernels/ops/segment.h"

namespace augur::kernels {

// Eviction biases (NOSA, arXiv 2510.13602; SparDA's models/nosa): what is added to the logits of a
// token's key for all query heads of kv head m,
//
//   e[m] = gate[m] * softplus(weight[m] . v + bias[m])
//
// v the token's values of all kv heads one after another. The mean of e over the windows of
// compress_keys.h ranks blocks whatever the query is (SelectSegment::eviction_pages).
struct EvictionSegment {
  Segment rows;  // first_row is not read; num_rows 0: the segment is left out
  // Pages whose values are read, of the blocks that the rows fall into:
  // pages[i * block_stride + head * head_stride] for the i-th of them.
  const std::byte* const* pages = nullptr;
  // 64 biases of each block, by the same strides: of the block before the first one, then of those
  // blocks. The first entry is read where CompressSegment::pages' is, and may be null elsewhere.
  float* const* biases = nullptr;
  int block_stride = 0;  // 0: num_kv_heads
  int head_stride = 1;
  // [num_kv_heads][mean_page_stride]: pages of the sequence's means, of kKeyPageBlocks blocks each,
  // [kBlockWindows] a block, placed as compressed keys. Null: none are written.
  float* const* mean_pages = nullptr;
  int mean_page_stride = 0;
};

// Writes the bias of every row and the mean of every window that ends in one of the rows; others
// are left as they are. All in float32. The product is eight chains over each head's elements
// (element i in chain i mod 8; the heads follow each other in every chain), added as ((0 + 4) +
// (2 + 6)) + ((1 + 5) + (3 + 7)), on a device 32 likewise, added by halves; softplus(x) is x above
// 20, as torch has it; a mean is ((sum of 16) + (sum of 16)) / 32, ascending. Values are read as
// the page holds them: biases are a pure function of pages and weights, may be made again at any
// time, and do not depend on what calls their rows come in.
struct EvictionBiasParams {
  const float* gate = nullptr;                // [num_kv_heads]
  const float* weight = nullptr;              // [num_kv_heads][num_kv_heads * head_dim]
  const float* bias = nullptr;                // [num_kv_heads], null: none
  const EvictionSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;  // of the pages
  // Added to every segment's lists, in entries: those of several layers lie behind each other.
  int64_t pages_offset = 0;
  int64_t biases_offset = 0;
  int64_t means_offset = 0;
};

}  // namespace augur::kernels
