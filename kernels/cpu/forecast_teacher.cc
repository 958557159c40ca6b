#include "kernels/cpu/forecast_teacher.h"

#include <algorithm>
#include <bit>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/elements.h"
#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"

namespace augur::kernels {
namespace {

// As of SelectBlocks: half of a 2 MiB second-level cache.
constexpr size_t kScoreFloats = size_t{1} << 18;
constexpr int kTile = 64;  // places that are scored together

int EndPlace(const ForecastTeacherParams& params, int position) {
  return params.is_fine ? position : CompleteWindows(position) + 1;
}

size_t RowFloats(const ForecastTeacherParams& params, int position) {
  const size_t tiles = (EndPlace(params, position) + kTile - 1) / kTile;
  return std::max<size_t>(tiles, 1) * kTile * params.heads_per_group;
}

// scores: of one row, tiles of 64 places `stride` apart.
void AlignRow(const ForecastTeacherParams& params, const float* scores, size_t stride, int position,
              float* windows) {
  const auto score_at = [&](int place) { return scores[place / kTile * stride + place % kTile]; };
  const int count = CompleteWindows(position);
  double total = 0;
  for (int j = 0; j < count; ++j) {
    float largest = 0;
    if (params.is_fine) {
      const int begin = kWindowStride * j - params.alignment.before;
      const int end = std::min(begin + params.alignment.tokens, position);
      for (int t = std::max(begin, 0); t < end; ++t) largest = std::max(largest, score_at(t));
    } else {
      largest = score_at(j + 1);
    }
    windows[j] = largest;
    total += largest;
  }
  const float share = total > 0 ? static_cast<float>(1 / total) : 0.0f;
  for (int j = 0; j < count; ++j) windows[j] *= share;
}

}  // namespace

ForecastTeacher::ForecastTeacher(ThreadPool* pool, CpuIsa isa)
    : pool_(pool), isa_(KernelsFor(isa)) {
  for (int thread = 0; thread < pool_->num_threads(); ++thread) {
    scores_.emplace_back(kScoreFloats * sizeof(float));
    scratch_.emplace_back(SelectScratchFloats(kMaxHeadDim) * sizeof(float));
    AUGUR_CHECK(scores_.back().data() != nullptr && scratch_.back().data() != nullptr);
  }
}

void ForecastTeacher::Run(const ForecastTeacherParams& params) {
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim % 2 == 0 && params.head_dim <= kMaxHeadDim);
  AUGUR_CHECK(params.heads_per_group > 0 && params.heads_per_group <= kSelectMaxRows);
  q_ = static_cast<const float*>(params.q);
  if (params.dtype != DType::kF32) {
    widened_.resize(size_t(params.rows) * params.q_stride);
    WidenElements(params.dtype, params.q, widened_.size(), widened_.data());
    q_ = widened_.data();
  }
  items_.clear();
  int row = 0;
  while (row < params.rows) {
    // The last row of an item has the most places, and all its rows have that many.
    int end = row + 1;
    const int most = kSelectMaxRows / params.heads_per_group;
    while (end < params.rows && end - row < most &&
           RowFloats(params, params.positions[end]) * (end - row + 1) <= kScoreFloats) {
      ++end;
    }
    for (int kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      items_.push_back({kv_head, row, end - row});
    }
    row = end;
  }
  pool_->ParallelFor(static_cast<int>(items_.size()),
                     [&](int item, int thread) { Score(params, items_[item], thread); });
}

void ForecastTeacher::Score(const ForecastTeacherParams& params, const Item& item, int thread) {
  const int last_position = params.positions[item.first_row + item.num_rows - 1];
  const size_t floats = RowFloats(params, last_position) * item.num_rows;
  AlignedBuffer& scores = scores_[thread];
  if (scores.bytes() < floats * sizeof(float)) {
    scores = AlignedBuffer(std::bit_ceil(floats) * sizeof(float));
    AUGUR_CHECK(scores.data() != nullptr);
  }
  const std::byte* const keys = static_cast<const std::byte*>(params.keys) +
                                item.kv_head * params.key_stride * BytesOf(params.dtype);
  SelectSpan span;
  span.q = q_ + size_t(item.first_row) * params.q_stride +
           size_t(item.kv_head) * params.heads_per_group * params.head_dim;
  span.pages = &keys;  // one page for all
  span.scores = scores.floats();
  span.scratch = scratch_[thread].floats();
  span.q_stride = params.q_stride;
  span.keys_per_page = 1 << 30;
  span.keys_per_block = params.is_fine ? kBlockTokens : kBlockWindows;
  span.num_tokens = item.num_rows;
  span.heads = params.heads_per_group;
  span.key_dim = params.head_dim;
  span.positions = params.positions + item.first_row;
  span.is_softmax = true;
  span.dtype = params.dtype;
  span.scale = params.scale;
  isa_.score_blocks(span);  // no blocks asked for: scores stay
  const size_t stride = size_t(item.num_rows) * params.heads_per_group * kTile;
  for (int i = 0; i < item.num_rows; ++i) {
    const int row = item.first_row + i;
    AlignRow(params, scores.floats() + size_t(i) * params.heads_per_group * kTile, stride,
             params.positions[row],
             params.windows +
                 (int64_t{row} * params.num_kv_heads + item.kv_head) * params.window_stride);
  }
}

}  // namespace augur::kernels
