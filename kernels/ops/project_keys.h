#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/ops/segment.h"

namespace augur::kernels {

// Partial keys (InfiniGen): of a token's key k the products k A[:, c] with some columns of its kv
// head's basis. A page-sized piece of memory holds those of 8 blocks when a quarter of the columns
// is chosen: [512][head_dim / 4].
inline constexpr int kPartialPageBlocks = 8;

struct ProjectSegment {
  Segment rows;  // first_row is not read
  // [blocks touched][num_kv_heads]: pages whose keys are read.
  const std::byte* const* pages = nullptr;
  // [blocks touched][num_kv_heads]: the block's partial keys, [64][num_channels] of dtype.
  std::byte* const* targets = nullptr;
  const int32_t* channels = nullptr;  // [num_kv_heads][num_channels]: columns of the basis
};

// Writes the partial key of every row, and of no other token: one chain over head_dim in ascending
// order in float32 over the key as the page holds it, rounded to dtype. So it is a pure function of
// page, basis and channels, and may be made again at any time.
struct ProjectKeysParams {
  const float* basis = nullptr;              // [num_kv_heads][head_dim][head_dim], A row-major
  const ProjectSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int num_channels = 0;
  DType dtype = DType::kF32;  // of pages and partial keys
};

}  // namespace augur::kernels
