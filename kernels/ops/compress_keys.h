#pragma once
#include <cstddef>

#include "kernels/dtype.h"
#include "kernels/host_device.h"
#include "kernels/ops/segment.h"

namespace augur::kernels {

// Compressed keys (InfLLM-V2; SparDA Sec. 3.1): window j is the mean of the post-RoPE keys of
// tokens [16 j, 16 j + 32), for complete windows only. A window belongs to the block in which it
// ends, so block b has windows 4b - 1 to 4b + 2, and block 0 lacks its first.
inline constexpr int kWindowStride = 16;
inline constexpr int kWindowTokens = 32;
inline constexpr int kBlockWindows = 4;
// A page-sized piece of memory holds the compressed keys of 32 blocks: [128][head_dim].
inline constexpr int kKeyPageBlocks = 32;

// Windows that are complete for the token at `position`.
AUGUR_HOST_DEVICE constexpr int CompleteWindows(int position) {
  return position + 1 < kWindowTokens ? 0 : (position + 1 - kWindowTokens) / kWindowStride + 1;
}

struct CompressSegment {
  Segment rows;
  // [1 + blocks touched][num_kv_heads]: pages whose keys are read. Entry 0 is the block before the
  // first one touched, of which the last 16 keys are read when the first window asks for them; may
  // be null where it does not (block 0, or rows that begin behind offset 15 of their block).
  const std::byte* const* pages = nullptr;
  // [blocks touched][num_kv_heads]: the block's compressed keys, [kBlockWindows][head_dim] of
  // dtype.
  std::byte* const* keys = nullptr;
};

// Writes every window that ends in one of the rows: ((sum of 16) + (sum of 16)) / 32, each sum one
// ascending chain in float32 over the keys as the page holds them, rounded to dtype. Other windows
// are left as they are.
struct CompressKeysParams {
  const CompressSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;  // of pages and compressed keys
};

}  // namespace augur::kernels
