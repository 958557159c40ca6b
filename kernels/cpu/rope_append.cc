#include "kernels/ops/rope_append.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/fp8_page.h"
#include "kernels/kv_page.h"

namespace augur::kernels {
namespace {

void CheckSegments(const RopeAppendParams& params) {
  int next_row = 0;
  for (int s = 0; s < params.num_segments; ++s) {
    const Segment& rows = params.segments[s].rows;
    AUGUR_CHECK(rows.first_row >= next_row && rows.num_rows >= 0);
    AUGUR_CHECK(rows.first_position >= 0 && params.segments[s].first_angle >= 0);
    next_row = rows.first_row + rows.num_rows;
  }
  AUGUR_CHECK(next_row <= params.rows);
}

// One token: norms its q and k heads, rotates its q, k and forecast heads, in place but for
// forecasts with a buffer of their own, then writes k and v to the token's place in each page.
void AppendRow(const RopeAppendParams& params, const IsaKernels& isa, const AppendSegment& segment,
               int row) {
  const int head_dim = params.head_dim;
  const int kv_heads = params.num_kv_heads;
  const int position = segment.rows.first_position + row - segment.rows.first_row;
  const size_t angle = size_t(segment.first_angle + position) * (head_dim / 2);
  const float* cos = params.cos + angle;
  const float* sin = params.sin + angle;
  float* heads = params.qkv + size_t(row) * params.row_stride;
  float* k = heads + params.num_q_heads * head_dim;
  float* v = k + kv_heads * head_dim;
  float* forecast = v + kv_heads * head_dim;
  if (params.q_norm != nullptr) {
    for (float* head = heads; head < v; head += head_dim) {
      const float* norm = head < k ? params.q_norm : params.k_norm;
      isa.rms_norm(head, norm, head, head_dim, params.norm_epsilon);
    }
  }
  for (float* head = heads; head < v; head += head_dim) isa.rotate(head, cos, sin, head_dim / 2);
  const int moved = params.forecasts == nullptr ? 0 : params.num_forecasts;
  float* forecasts = params.forecasts + size_t(row) * moved * head_dim;
  std::copy_n(forecast, moved * head_dim, forecasts);
  for (int head = 0; head < params.num_forecast_heads; ++head) {
    float* to = head < moved ? forecasts : forecast;
    isa.rotate(to + head * head_dim, cos, sin, head_dim / 2);
  }
  const int touched = position / kBlockTokens - segment.rows.first_position / kBlockTokens;
  const int block_stride = segment.block_stride == 0 ? kv_heads : segment.block_stride;
  std::byte* const* pages = segment.pages + params.pages_offset + int64_t{touched} * block_stride;
  const size_t entry_bytes = head_dim * BytesOf(params.dtype);
  for (int head = 0; head < kv_heads; ++head) {
    std::byte* page = pages[int64_t{head} * segment.head_stride];
    std::byte* entry = page + position % kBlockTokens * entry_bytes;
    isa.narrow(params.dtype, k + head * head_dim, entry, head_dim);
    std::byte* v_entry = entry + kBlockTokens * entry_bytes;
    isa.narrow(params.dtype, v + head * head_dim, v_entry, head_dim);
    if (!params.fp8_rows) continue;
    RoundRowToFp8(params.dtype, head_dim, entry);
    RoundRowToFp8(params.dtype, head_dim, v_entry);
  }
}

}  // namespace

void CpuBackend::RopeAppend(const RopeAppendParams& params) {
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim % 2 == 0 && params.num_kv_heads > 0);
  AUGUR_CHECK(params.num_q_heads >= 0 && params.num_forecast_heads >= 0);
  const int heads = params.num_q_heads + 2 * params.num_kv_heads + params.num_forecast_heads;
  const int64_t row_cost = int64_t{heads} * params.head_dim;
  AUGUR_CHECK(params.row_stride >= row_cost);
  AUGUR_CHECK(params.num_forecasts >= 0 && params.num_forecasts <= params.num_forecast_heads);
  AUGUR_CHECK((params.q_norm == nullptr) == (params.k_norm == nullptr));
  CheckSegments(params);
  ForRows(params.rows, row_cost, [&](int first, int end, int) {
    for (int s = 0; s < params.num_segments; ++s) {
      const Segment& rows = params.segments[s].rows;
      const int end_row = std::min(end, rows.first_row + rows.num_rows);
      for (int row = std::max(first, rows.first_row); row < end_row; ++row) {
        AppendRow(params, isa_, params.segments[s], row);
      }
    }
  });
}

}  // namespace augur::kernels
