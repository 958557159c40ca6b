#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/ops/segment.h"

namespace augur::kernels {

// Where the k and v of a segment's rows go.
struct AppendSegment {
  Segment rows;
  // Page of each 64-token block that the rows fall into, from block first_position / 64 on:
  // pages[i * block_stride + head * head_stride] for the i-th of them.
  std::byte* const* pages = nullptr;
  int block_stride = 0;  // 0: num_kv_heads
  int head_stride = 1;
  int first_angle = 0;  // row of cos and sin that position 0 turns by: sequences may differ in it
};

// Where there are q_norm and k_norm, first norms each q and k head by itself: x / sqrt(mean(x^2) +
// epsilon) * weight. Rotates q, k and forecast heads of every row by the row's position (the
// Hugging Face half-split convention: element i pairs with i + head_dim/2) and writes k and v,
// rounded to dtype, into their pages. q and forecast heads stay in qkv, unless `forecasts` is
// given: then the first num_forecasts of the forecast heads go there instead, and qkv's are left as
// they were.
struct RopeAppendParams {
  float* qkv = nullptr;  // [rows, row_stride]: q heads, k heads, v heads, forecast heads, the rest
  // [num_segments], in row order; rows outside of them are left alone.
  const AppendSegment* segments = nullptr;
  int num_segments = 0;
  int rows = 0;
  int row_stride =
      0;  // floats; at least (num_q_heads + 2 num_kv_heads + num_forecast_heads) * head_dim
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int num_forecast_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;      // of the pages
  const float* cos = nullptr;     // [max(first_angle + position) + 1, head_dim / 2]
  const float* sin = nullptr;     // likewise
  int64_t pages_offset = 0;       // added to every segment's `pages`, in entries
  float* forecasts = nullptr;     // [rows, num_forecasts * head_dim], may be null
  int num_forecasts = 0;          // at most num_forecast_heads
  const float* q_norm = nullptr;  // [head_dim], with k_norm; may be null
  const float* k_norm = nullptr;
  float norm_epsilon = 1e-6f;
  // k and v of each row and head, as their pages have them, are rounded to what an fp8 page can
  // hold (kernels/fp8_page.h).
  bool fp8_rows = false;
};

}  // namespace augur::kernels
