#pragma once
#include <cstdint>

#include "kernels/paged_kv.h"

namespace augur::kernels {

// Consecutive rows of a step that belong to one sequence.
struct Segment {
  int first_row = 0;
  int num_rows = 0;
  int first_position = 0;  // absolute position in the sequence of first_row's token
  const int32_t* block_table =
      nullptr;  // [ceil((first_position + num_rows) / 64)] block of each 64 tokens
};

// Rotates q and k of every row by its position (the Hugging Face half-split convention: element i
// pairs with i + head_dim/2) and writes k and v, rounded to the pool's dtype, into the pages of
// `layer`. q stays in qkv.
struct RopeAppendParams {
  float* qkv =
      nullptr;  // [rows, (num_q_heads + 2 * num_kv_heads) * head_dim]: q heads, k heads, v heads
  const Segment* segments = nullptr;  // [num_segments], in row order, covering rows [0, rows)
  int num_segments = 0;
  int rows = 0;
  int num_q_heads = 0;
  int layer = 0;
  PagedKv kv;                  // gives num_kv_heads and head_dim
  const float* cos = nullptr;  // [max_position, head_dim / 2]
  const float* sin = nullptr;  // [max_position, head_dim / 2]
};

}  // namespace augur::kernels
