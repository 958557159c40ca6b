#pragma once
#include "kernels/ops/segment.h"

namespace augur::kernels {

// Prompt rows of one sequence and where their sums go.
struct ChannelSegment {
  Segment rows;           // first_position is not read
  float* sums = nullptr;  // [num_kv_heads][head_dim]
};

// How much each channel of a kv head's basis matters to the queries of a prompt (InfiniGen's
// partial weights, OSDI'24 Sec. 4.2, for groups of heads): to sums[c] of a kv head is added |q .
// A[:, c]| of each row and head of the group, one at a time, rows and then heads ascending; a
// product is one chain over head_dim in ascending order. So the sums of a prompt are the same bits
// whatever calls its rows come in.
struct SumChannelsParams {
  const float* q = nullptr;      // [rows, q_stride]: post-RoPE heads, a group's next to each other
  const float* basis = nullptr;  // [num_kv_heads][head_dim][head_dim], A row-major
  const ChannelSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int q_stride = 0;
  int num_kv_heads = 0;
  int heads_per_group = 0;
  int head_dim = 0;
};

}  // namespace augur::kernels
