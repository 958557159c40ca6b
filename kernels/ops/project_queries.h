#pragma once
#include <cstdint>

#include "kernels/ops/segment.h"

namespace augur::kernels {

struct QuerySegment {
  Segment rows;                       // num_rows 0: the segment is left out
  const int32_t* channels = nullptr;  // [num_kv_heads][num_channels]: columns of the basis
  int first_angle = 0;                // row of cos and sin that position 0 turns by
};

// The queries that score partial keys (project_keys.h), one a kv head: the sum over the group's
// heads, ascending, turned by the row's position (RoPE is linear, so one turn serves the group; the
// half-split convention of rope_append.h), times the chosen columns of the basis, each product one
// chain over head_dim in ascending order on the CPU, eight on a device (element i in chain i mod
// 8). Rows outside of the segments are left alone.
struct ProjectQueriesParams {
  const float* q = nullptr;      // [rows, q_stride]: heads before RoPE, a group's side by side
  const float* basis = nullptr;  // [num_kv_heads][head_dim][head_dim], A row-major
  const QuerySegment* segments = nullptr;  // [num_segments]
  float* out = nullptr;                    // [rows][num_kv_heads][num_channels]
  int num_segments = 0;
  int q_stride = 0;
  int num_kv_heads = 0;
  int heads_per_group = 0;
  int head_dim = 0;
  int num_channels = 0;
  const float* cos = nullptr;   // [max(first_angle + position) + 1, head_dim / 2]
  const float* sin = nullptr;   // likewise
  int64_t channels_offset = 0;  // added to every segment's channels, in entries
};

}  // namespace augur::kernels
