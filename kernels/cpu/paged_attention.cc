#include "kernels/ops/paged_attention.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {
namespace {

constexpr int kGroupTokens = kAttentionGroupBlocks * kBlockTokens;
// A span costs its rows for every block, and about this many rows more for transposing and widening
// the block (measured: kernels/README.md).
constexpr int kBlockLoadRows = 6;
// Spans to a thread: enough that the last one to finish keeps nobody waiting for long.
constexpr int kSpansPerThread = 4;

int LastPosition(const AttentionSpan& span) {
  return span.first_position + (span.row_end - 1) / span.group_heads;
}

}  // namespace

// One item for each (segment, kv head, up to kAttentionMaxRows query rows), the longest of a
// segment first.
void CpuBackend::PlanAttention(const PagedAttentionParams& params) {
  const PagedKv& kv = params.kv;
  const int group_heads = params.num_q_heads / kv.num_kv_heads;
  const size_t group_floats = size_t(group_heads) * kv.head_dim;
  attention_items_.clear();
  for (int s = 0; s < params.num_segments; ++s) {
    const Segment& segment = params.segments[s];
    AUGUR_CHECK(segment.first_row >= 0 && segment.num_rows > 0 && segment.first_position >= 0 &&
                segment.first_row + segment.num_rows <= params.rows);
    const int num_rows = segment.num_rows * group_heads;
    for (int row_end = num_rows; row_end > 0; row_end -= kAttentionMaxRows) {
      for (int kv_head = 0; kv_head < kv.num_kv_heads; ++kv_head) {
        AttentionSpan span;
        span.q_stride = params.q_stride;
        span.out_stride = size_t(params.num_q_heads) * kv.head_dim;
        span.q = params.q + segment.first_row * span.q_stride + kv_head * group_floats;
        span.out = params.out + segment.first_row * span.out_stride + kv_head * group_floats;
        span.pages = kv.page(0, params.layer, kv_head);
        span.block_table = segment.block_table;
        span.block_bytes = kv.block_bytes();
        span.first_position = segment.first_position;
        span.group_heads = group_heads;
        span.row_begin = std::max(0, row_end - kAttentionMaxRows);
        span.row_end = row_end;
        span.head_dim = kv.head_dim;
        span.dtype = kv.dtype;
        span.scale = params.scale;
        span.group_end = LastPosition(span) / kGroupTokens + 1;
        const int64_t blocks = LastPosition(span) / kBlockTokens + 1;
        attention_items_.push_back(
            {span, blocks * (span.row_end - span.row_begin + kBlockLoadRows)});
      }
    }
  }
}

// Spans that would outlast the others are cut at group edges. Each piece leaves one state a group,
// since only the whole list of groups may be merged, in ascending order.
void CpuBackend::SplitLongSpans(int head_dim) {
  merge_spans_.clear();
  if (pool_.num_threads() == 1) return;
  int64_t total_cost = 0;
  for (const AttentionItem& item : attention_items_) total_cost += item.cost;
  const int64_t fair_cost = total_cost / (int64_t{kSpansPerThread} * pool_.num_threads()) + 1;
  const size_t state_floats = AttentionStateFloats(head_dim);
  float* room = partials_.floats();
  const float* room_end = room + partials_.bytes() / sizeof(float);
  const size_t num_items = attention_items_.size();
  for (size_t i = 0; i < num_items; ++i) {
    const AttentionItem whole = attention_items_[i];
    const int groups = whole.span.group_end;
    const int pieces =
        static_cast<int>(std::min<int64_t>((whole.cost + fair_cost - 1) / fair_cost, groups));
    const size_t group_floats = (whole.span.row_end - whole.span.row_begin) * state_floats;
    if (pieces <= 1 || groups * group_floats > static_cast<size_t>(room_end - room)) continue;
    for (int piece = 0; piece < pieces; ++piece) {
      AttentionItem part = whole;
      part.span.group_begin = piece * groups / pieces;
      part.span.group_end = (piece + 1) * groups / pieces;
      part.span.partials = room + part.span.group_begin * group_floats;
      if (piece == 0) {
        attention_items_[i] = part;
      } else {
        attention_items_.push_back(part);
      }
    }
    merge_spans_.push_back(whole.span);
    merge_spans_.back().partials = room;
    room += groups * group_floats;
  }
}

void CpuBackend::PagedAttention(const PagedAttentionParams& params) {
  const PagedKv& kv = params.kv;
  AUGUR_CHECK(kv.num_kv_heads > 0 && params.num_q_heads > 0 &&
              params.num_q_heads % kv.num_kv_heads == 0);
  AUGUR_CHECK(kv.head_dim > 0 && kv.head_dim % 2 == 0 && kv.head_dim <= kMaxHeadDim);
  AUGUR_CHECK(params.layer >= 0 && params.layer < kv.num_layers);
  AUGUR_CHECK(params.q_stride >= params.num_q_heads * kv.head_dim);
  PlanAttention(params);
  SplitLongSpans(kv.head_dim);
  pool_.ParallelFor(static_cast<int>(attention_items_.size()), [&](int item, int thread) {
    AttentionSpan span = attention_items_[item].span;
    span.scratch = thread_scratch_[thread].floats();
    isa_.attend(span);
  });
  pool_.ParallelFor(static_cast<int>(merge_spans_.size()),
                    [&](int item, int) { isa_.merge_partials(merge_spans_[item]); });
}

}  // namespace augur::kernels
