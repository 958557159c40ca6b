#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/ops/page_copy.h"

namespace augur::kernels {

// Copies of one segment between two lists of pages, [num_kv_heads][stride] each.
struct PageRange {
  std::byte* const* from = nullptr;
  std::byte* const* to = nullptr;
  int from_stride = 0;
  int to_stride = 0;
  int num_blocks = 0;
  int first_copy = 0;  // where the segment's copies begin
};

// copies[first_copy + head * num_blocks + i] = {from[head * from_stride + i], to[head * to_stride +
// i]} for each segment, kv head and i < num_blocks. Segments' copies do not overlap.
struct ListPageCopiesParams {
  const PageRange* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int num_kv_heads = 0;
  int max_blocks = 0;  // of any segment, at most: what the host knows
  PageCopy* copies = nullptr;
  int64_t from_offset = 0;  // added to every segment's `from`, in entries
  int64_t to_offset = 0;    // likewise
};

}  // namespace augur::kernels
