#pragma once
#include <cstddef>

#include "kernels/dtype.h"
#include "kernels/fp8_page.h"
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

struct WindowRange {
  int begin = 0;
  int end = 0;

  AUGUR_HOST_DEVICE constexpr int count() const { return end - begin; }
};

// Windows that end in the rows, of which there is one at least.
AUGUR_HOST_DEVICE constexpr WindowRange WindowsEndingIn(const Segment& rows) {
  return {rows.first_position == 0 ? 0 : CompleteWindows(rows.first_position - 1),
          CompleteWindows(rows.first_position + rows.num_rows - 1)};
}

struct CompressSegment {
  Segment rows;
  // Pages whose keys are read: of the block before the first one that the rows fall into, then of
  // those blocks: pages[i * block_stride + head * head_stride] for the i-th of them. Of the block
  // before the last 16 keys are read when the first window asks for them; its entry is not looked
  // at where that cannot be (block 0, or rows that begin behind offset 15 of their block).
  const std::byte* const* pages = nullptr;
  int block_stride = 0;  // 0: num_kv_heads
  int head_stride = 1;
  // [num_kv_heads][key_page_stride]: pages of the sequence's compressed keys, of kKeyPageBlocks
  // blocks each, [kBlockWindows][head_dim] of dtype a block.
  std::byte* const* key_pages = nullptr;
  int key_page_stride = 0;
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
  // Added to every segment's `pages` and `key_pages`, in entries.
  int64_t pages_offset = 0;
  int64_t key_pages_offset = 0;
  Fp8Pages fp8 = {};  // pages that are read may be such
};

}  // namespace augur::kernels
