#pragma once
#include <cstdint>

#include "kernels/ops/segment.h"

namespace augur::kernels {

// Rows whose sum a device takes by itself.
inline constexpr int kSumRunRows = 32;

// Prompt rows of one sequence and where their sums go.
struct ChannelSegment {
  Segment rows;           // first_position is not read; num_rows 0: the segment is left out
  float* sums = nullptr;  // [num_kv_heads][head_dim]
};

// How much each channel of a kv head's basis matters to the queries of a prompt (InfiniGen's
// partial weights, OSDI'24 Sec. 4.2, for groups of heads): to sums[c] of a kv head is added |q .
// A[:, c]| of each row and head of the group, rows and then heads ascending; a product is one chain
// over head_dim in ascending order. On the CPU each is added by itself, so the sums of a prompt are
// the same bits whatever calls its rows come in. A device first adds up those of kSumRunRows rows,
// counted from the segment's first: there, too, where all segments of a prompt but its last one are
// whole runs.
struct SumChannelsParams {
  const float* q = nullptr;      // [rows, q_stride]: post-RoPE heads, a group's next to each other
  const float* basis = nullptr;  // [num_kv_heads][head_dim][head_dim], A row-major
  const ChannelSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int rows = 0;  // that q has: of all segments, at most; the CPU does not ask
  int q_stride = 0;
  int num_kv_heads = 0;
  int heads_per_group = 0;
  int head_dim = 0;
  int64_t sums_offset = 0;  // added to every segment's sums, in entries
  // On a device: [SumRuns(rows, num_segments)][num_kv_heads][head_dim].
  float* runs = nullptr;
};

// Runs of so many rows in so many segments, at most.
constexpr int SumRuns(int rows, int num_segments) { return rows / kSumRunRows + num_segments; }

}  // namespace augur::kernels
