#pragma once
#include "kernels/ops/rope_append.h"
#include "kernels/paged_kv.h"

namespace augur::kernels {

// Causal attention of every row over the pages of its sequence, positions 0 to its own, prefill
// chunks and decode rows alike: out = softmax(scale * q K^T) V, query head h reading kv head h /
// (num_q_heads / num_kv_heads).
//
// Blocks are walked in ascending absolute order with one online-softmax update a block; every
// kAttentionGroupBlocks blocks form a group with a state of its own, and groups merge in ascending
// order. Work may be split only at group edges, so a row's bits do not depend on chunking, batch or
// threads.
inline constexpr int kAttentionGroupBlocks = 16;

struct PagedAttentionParams {
  const float* q = nullptr;  // [rows, num_q_heads * head_dim], rows q_stride apart, already rotated
  float* out = nullptr;      // [rows, num_q_heads * head_dim], dense
  const Segment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int rows = 0;
  int q_stride = 0;
  int num_q_heads = 0;
  int layer = 0;
  float scale = 1.0f;  // usually 1 / sqrt(head_dim)
  PagedKv kv;          // already holds the rows' own k and v
};

}  // namespace augur::kernels
