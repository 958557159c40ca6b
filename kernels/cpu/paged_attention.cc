#include "kernels/ops/paged_attention.h"

#include <algorithm>
#include <climits>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {
namespace {

// A span costs its rows for every block, and about this many rows more for transposing and widening
// the block (measured: kernels/README.md).
constexpr int kBlockLoadRows = 6;
// Spans to a thread: enough that the last one to finish keeps nobody waiting for long.
constexpr int kSpansPerThread = 4;

void CheckParams(const PagedAttentionParams& params) {
  AUGUR_CHECK(params.num_kv_heads > 0 && params.num_q_heads > 0 &&
              params.num_q_heads % params.num_kv_heads == 0);
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim % 2 == 0 && params.head_dim <= kMaxHeadDim);
  AUGUR_CHECK(params.q_stride >= params.num_q_heads * params.head_dim);
  AUGUR_CHECK(params.out_dtype == DType::kF32);
  AUGUR_CHECK(params.first_entry >= 0 && params.first_entry % kAttentionGroupBlocks == 0 &&
              params.end_entry > params.first_entry);
  const bool is_whole = params.first_entry == 0 && params.end_entry == INT_MAX;
  AUGUR_CHECK(is_whole || params.states != nullptr);
  AUGUR_CHECK(params.end_entry == INT_MAX || params.end_entry % kAttentionGroupBlocks == 0);
  for (int s = 0; s < params.num_segments; ++s) {
    const Segment& rows = params.segments[s].rows;
    AUGUR_CHECK(rows.first_row >= 0 && rows.num_rows >= 0 && rows.first_position >= 0 &&
                rows.first_row + rows.num_rows <= params.rows);
    const AttentionSegment& segment = params.segments[s];
    if (segment.choices == nullptr) continue;
    AUGUR_CHECK(segment.blocks == nullptr && segment.choice_counts != nullptr);
    AUGUR_CHECK(params.states == nullptr);
  }
}

// What the spans of one (segment, kv head) have in common.
AttentionSpan SpanOfHead(const PagedAttentionParams& params, const AttentionSegment& segment,
                         int kv_head) {
  AttentionSpan span;
  const size_t first_row = segment.rows.first_row;
  span.group_heads = params.num_q_heads / params.num_kv_heads;
  const size_t first_head = size_t(kv_head) * span.group_heads;
  span.q_stride = params.q_stride;
  span.out_stride = size_t(params.num_q_heads) * params.head_dim;
  span.q = params.q + first_row * span.q_stride + first_head * params.head_dim;
  span.out =
      static_cast<float*>(params.out) + first_row * span.out_stride + first_head * params.head_dim;
  if (params.states != nullptr) {
    const size_t state_floats = AttentionStateFloats(params.head_dim);
    span.states_stride = params.num_q_heads * state_floats;
    span.states = params.states + first_row * span.states_stride + first_head * state_floats;
  }
  const size_t list = size_t(kv_head) * segment.list_stride;
  span.pages = segment.pages + params.pages_offset + list;
  if (segment.blocks != nullptr) span.blocks = segment.blocks + list;
  if (segment.biases != nullptr) span.biases = segment.biases + params.biases_offset + list;
  span.first_position = segment.rows.first_position;
  span.first_entry = params.first_entry;
  span.head_dim = params.head_dim;
  span.dtype = params.dtype;
  span.scale = params.scale;
  return span;
}

// Gives the span the entries of this call that reach its last row, and tells which rows end here.
void SetEntries(const PagedAttentionParams& params, const AttentionSegment& segment, int kv_head,
                AttentionSpan& span) {
  const int last_position = span.first_position + (span.row_end - 1) / span.group_heads;
  const int last_block = last_position / kBlockTokens;
  const int first = span.first_entry;
  if (span.blocks == nullptr) {
    span.end_entry = std::min(params.end_entry, last_block + 1);
    span.finished_block = params.end_entry - 1;
  } else {
    const int count = segment.counts[kv_head];
    const int here = std::clamp(count - first, 0, params.end_entry - first);
    const int32_t* end = std::upper_bound(span.blocks, span.blocks + here, last_block);
    span.end_entry = first + static_cast<int>(end - span.blocks);
    span.finished_block = count <= params.end_entry ? INT_MAX : span.blocks[here - 1];
    AUGUR_CHECK(count > 0 && here <= segment.list_stride);
    AUGUR_CHECK(first > 0 || span.blocks[0] <= span.first_position / kBlockTokens);
  }
  span.end_entry = std::max(span.end_entry, first);
  span.group_begin = first / kAttentionGroupBlocks;
  span.group_end = (span.end_entry + kAttentionGroupBlocks - 1) / kAttentionGroupBlocks;
}

}  // namespace

// Segments from `first` on that are one after the other the tokens of one sequence with a list
// each, and as many as a span takes. Only speed hangs on the guess that it is one sequence.
int CpuBackend::CountListTokens(const PagedAttentionParams& params, int first) const {
  if (params.states != nullptr) return 1;
  const int most = kAttentionMaxRows / (params.num_q_heads / params.num_kv_heads);
  int count = 1;
  for (; count < most && first + count < params.num_segments; ++count) {
    const AttentionSegment& segment = params.segments[first + count - 1];
    const AttentionSegment& next = params.segments[first + count];
    if (segment.blocks == nullptr || next.blocks == nullptr || segment.rows.num_rows != 1 ||
        next.rows.num_rows != 1 || next.rows.first_row != segment.rows.first_row + 1 ||
        next.rows.first_position != segment.rows.first_position + 1 ||
        next.pages[0] != segment.pages[0]) {
      break;
    }
  }
  return count;
}

// One item a kv head for the one-row segments [first, first + count).
void CpuBackend::PlanTokenLists(const PagedAttentionParams& params, int first, int count) {
  for (int kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
    AttentionSpan whole = SpanOfHead(params, params.segments[first], kv_head);
    whole.row_end = count * whole.group_heads;
    whole.finished_block = INT_MAX;
    int64_t cost = 0;
    for (int token = 0; token < count; ++token) {
      const AttentionSegment& segment = params.segments[first + token];
      AttentionSpan span = SpanOfHead(params, segment, kv_head);
      span.row_end = span.group_heads;
      SetEntries(params, segment, kv_head, span);
      token_lists_.push_back({span.pages, span.blocks, span.biases, span.end_entry});
      cost += int64_t{span.end_entry} * (span.group_heads + 1);
    }
    whole.lists = token_lists_.data() + token_lists_.size() - count;
    attention_items_.push_back({whole, cost});
  }
}

// Likewise for tokens of a segment with choices.
void CpuBackend::PlanChoices(const PagedAttentionParams& params, const AttentionSegment& segment) {
  const int group = params.num_q_heads / params.num_kv_heads;
  const int most = kAttentionMaxRows / group;
  AUGUR_CHECK(most > 0);
  for (int end = segment.rows.num_rows; end > 0; end -= most) {
    AttentionSegment part = segment;
    const int begin = std::max(0, end - most);
    part.rows = {segment.rows.first_row + begin, end - begin, segment.rows.first_position + begin};
    for (int kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
      AttentionSpan span = SpanOfHead(params, part, kv_head);
      span.row_end = part.rows.num_rows * group;
      span.finished_block = INT_MAX;
      int64_t cost = 0;
      for (int token = 0; token < part.rows.num_rows; ++token) {
        const size_t list = size_t(part.rows.first_row + token) * params.num_kv_heads + kv_head;
        const int32_t* blocks = segment.choices + list * segment.choice_stride;
        const int count = segment.choice_counts[list];
        const int own_block = (part.rows.first_position + token) / kBlockTokens;
        AUGUR_CHECK(count > 0 && count <= segment.choice_stride);
        AUGUR_CHECK(blocks[count - 1] == own_block && own_block < segment.list_stride);
        token_lists_.push_back({span.pages, blocks, span.biases, count, /*by_block=*/true});
        cost += int64_t{count} * (group + 1);
      }
      span.lists = token_lists_.data() + token_lists_.size() - part.rows.num_rows;
      attention_items_.push_back({span, cost});
    }
  }
}

// One item for each (segment, kv head, up to kAttentionMaxRows query rows), the longest of a
// segment first; neighbouring tokens with a list each share items.
void CpuBackend::PlanAttention(const PagedAttentionParams& params) {
  attention_items_.clear();
  token_lists_.clear();
  size_t most_lists = 0;
  for (int s = 0; s < params.num_segments; ++s) {
    most_lists += params.segments[s].choices != nullptr ? params.segments[s].rows.num_rows : 1;
  }
  token_lists_.reserve(most_lists * params.num_kv_heads);  // items point into it
  for (int s = 0; s < params.num_segments; ++s) {
    if (params.segments[s].choices != nullptr) {
      PlanChoices(params, params.segments[s]);
      continue;
    }
    const int list_tokens = CountListTokens(params, s);
    if (list_tokens > 1) {
      PlanTokenLists(params, s, list_tokens);
      s += list_tokens - 1;
      continue;
    }
    const AttentionSegment& segment = params.segments[s];
    const int num_rows = segment.rows.num_rows * (params.num_q_heads / params.num_kv_heads);
    for (int row_end = num_rows; row_end > 0; row_end -= kAttentionMaxRows) {
      for (int kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
        AttentionSpan span = SpanOfHead(params, segment, kv_head);
        span.row_begin = std::max(0, row_end - kAttentionMaxRows);
        span.row_end = row_end;
        SetEntries(params, segment, kv_head, span);
        const int64_t blocks = span.end_entry - span.first_entry;
        attention_items_.push_back({span, blocks * (row_end - span.row_begin + kBlockLoadRows)});
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
    if (whole.span.lists != nullptr) continue;
    const int first_group = whole.span.group_begin;
    const int groups = whole.span.group_end - first_group;
    const int pieces =
        static_cast<int>(std::min<int64_t>((whole.cost + fair_cost - 1) / fair_cost, groups));
    const size_t group_floats = (whole.span.row_end - whole.span.row_begin) * state_floats;
    if (pieces <= 1 || groups * group_floats > static_cast<size_t>(room_end - room)) continue;
    for (int piece = 0; piece < pieces; ++piece) {
      AttentionItem part = whole;
      const int begin = piece * groups / pieces;
      part.span.group_begin = first_group + begin;
      part.span.group_end = first_group + (piece + 1) * groups / pieces;
      part.span.partials = room + begin * group_floats;
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
  CheckParams(params);
  PlanAttention(params);
  SplitLongSpans(params.head_dim);
  pool_.ParallelFor(static_cast<int>(attention_items_.size()), [&](int item, int thread) {
    AttentionSpan span = attention_items_[item].span;
    span.scratch = thread_scratch_[thread].floats();
    span.lists != nullptr ? isa_.attend_lists(span) : isa_.attend(span);
  });
  pool_.ParallelFor(static_cast<int>(merge_spans_.size()),
                    [&](int item, int) { isa_.merge_partials(merge_spans_[item]); });
}

}  // namespace augur::kernels
