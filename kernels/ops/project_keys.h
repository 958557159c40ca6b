#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/fp8_page.h"
#include "kernels/ops/segment.h"

namespace augur::kernels {

// Partial keys (InfiniGen): of a token's key k the products k A[:, c] with some columns of its kv
// head's basis. A page-sized piece of memory holds those of 8 blocks when a quarter of the columns
// is chosen: [512][head_dim / 4].
inline constexpr int kPartialPageBlocks = 8;

struct ProjectSegment {
  Segment rows;  // first_row is not read; num_rows 0: the segment is left out
  // Pages whose keys are read, of the blocks that the rows fall into:
  // pages[i * block_stride + head * head_stride] for the i-th of them.
  const std::byte* const* pages = nullptr;
  int block_stride = 0;  // 0: num_kv_heads
  int head_stride = 1;
  // [num_kv_heads][target_stride]: pages of the sequence's partial keys, of kPartialPageBlocks
  // blocks each, [64][num_channels] of dtype a block.
  std::byte* const* targets = nullptr;
  int target_stride = 0;
  const int32_t* channels = nullptr;  // [num_kv_heads][num_channels]: columns of the basis
};

// Writes the partial key of every row, and of no other token, in float32 over the key as the page
// holds it, rounded to dtype: one chain over head_dim in ascending order on the CPU, eight on a
// device (element i in chain i mod 8). So it is a pure function of page, basis and channels, and
// may be made again at any time.
struct ProjectKeysParams {
  const float* basis = nullptr;              // [num_kv_heads][head_dim][head_dim], A row-major
  const ProjectSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int num_channels = 0;
  DType dtype = DType::kF32;  // of pages and partial keys
  // Added to every segment's lists, in entries: those of several layers lie behind each other.
  int64_t pages_offset = 0;
  int64_t targets_offset = 0;
  int64_t channels_offset = 0;
  Fp8Pages fp8 = {};  // pages that are read may be such
};

}  // namespace augur::kernels
