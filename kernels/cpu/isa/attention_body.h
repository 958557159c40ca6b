// Paged attention of one span (see isa_kernels.h). Query rows (tokens x heads of one kv head) go
// through a block together: its keys are transposed and widened once, its values widened once, then
// tiles of rows do
//
//   scores = q K^T      every score one chain of Fma over head_dim, ascending
//   p = 2^(scores - m)  m: largest score of the row so far in this group of blocks; q was scaled by
//   log2 e sum = sum * 2^(m_old - m) + (fixed tree over the 64 p) out = out * 2^(m_old - m), then
//   one chain of Fma over the row's keys, ascending
//
// so a row's bits do not depend on the rows beside it. A bias is added to the score times log2 e.
// Keys after a row's own position have p = 0 by selection and their values are never multiplied: 0
// * NaN would be NaN, and -0 + 0 would change a sign.
#pragma once

#include "kernels/cpu/isa/convert_body.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/isa/score_tile.h"
#include "kernels/cpu/isa/vector.h"

namespace augur::kernels::AUGUR_ISA {
namespace {

constexpr int kGroupBlocks = kAttentionGroupBlocks;

// One span's scratch, carved.
struct AttentionScratch {
  float* keys;     // [head_dim][64]
  float* values;   // [64][padded]
  float* queries;  // [rows][head_dim]
  float* group;    // [rows] states of the current group
  float* total;    // [rows] states of all groups before it
};

AttentionScratch Carve(const AttentionSpan& span) {
  const size_t padded = PaddedHeadDim(span.head_dim);
  AttentionScratch scratch;
  scratch.keys = span.scratch;
  scratch.values = scratch.keys + kKeys * padded;
  scratch.queries = scratch.values + kKeys * padded;
  scratch.group = scratch.queries + kAttentionMaxRows * padded;
  scratch.total = scratch.group + size_t(kAttentionMaxRows) * AttentionStateFloats(span.head_dim);
  return scratch;
}

// Behind the padded values of a state.
AUGUR_INLINE float& MaxOf(float* state, int padded) { return state[padded]; }
AUGUR_INLINE float& SumOf(float* state, int padded) { return state[padded + 1]; }

// A block as its tiles read it. Values are widened once for many tiles, or lie in the page when one
// tile reads them (a decode step: widening them apart took a quarter of its time, most of it cache
// misses of the copy).
struct BlockView {
  int position;       // of its first token
  const float* bias;  // [64], may be null
  const std::byte* values;
  DType dtype;  // of values
};

// scores [64] -> p [64] in place, of which the first `num_keys` count; updates the row's m and sum,
// gives the factor for what the row has gathered so far. `bias` may be null.
AUGUR_INLINE float SoftmaxRow(float* scores, const float* bias, int num_keys, float& row_max,
                              float& row_sum) {
  Floats s[kKeyVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kKeyVectors; ++v) s[v] = Load(scores + v * kLanes);
  if (bias != nullptr) {
#pragma GCC unroll 16
    for (int v = 0; v < kKeyVectors; ++v) {
      s[v] = Fma(Load(bias + v * kLanes), Splat(kLog2E), s[v]);
    }
  }
  if (num_keys < kKeys) {
    const Ints lanes = Iota();
#pragma GCC unroll 16
    for (int v = 0; v < kKeyVectors; ++v) {
      s[v] = lanes + v * kLanes < num_keys ? s[v] : Splat(kMinusInfinity);
    }
  }
  Floats largest = s[0];
#pragma GCC unroll 16
  for (int v = 1; v < kKeyVectors; ++v) largest = Max(largest, s[v]);
  const float block_max = MaxLanes(largest);
  const float new_max = row_max > block_max ? row_max : block_max;
#pragma GCC unroll 16
  for (int v = 0; v < kKeyVectors; ++v) {
    s[v] = Exp2(s[v] - new_max);
    Store(scores + v * kLanes, s[v]);
  }
  const float factor = Exp2(Splat(row_max - new_max))[0];
  row_sum = FmaScalar(row_sum, factor, FoldSum(s));
  row_max = new_max;
  return factor;
}

// out[row] = out[row] * factor[row] + p[row] * values over keys [begin, end).
template <int kRows, int kVectors, class Element>
AUGUR_INLINE void GatherColumns(const float* p, const float* factor, const Element* values,
                                int padded, int begin, int end, float* out, int out_stride) {
  Floats sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      sums[row][v] = Load(out + row * out_stride + v * kLanes) * factor[row];
    }
  }
  MultiplyAdd<kRows, kVectors>(p + begin, kKeys, values + size_t(begin) * padded, padded,
                               end - begin, sums);
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) Store(out + row * out_stride + v * kLanes, sums[row][v]);
  }
}

template <int kRows, class Element>
void GatherElements(const float* p, const float* factor, const Element* values, int padded,
                    int begin, int end, float* out, int out_stride) {
  int column = 0;
  for (; column + kColumnVectors * kLanes <= padded; column += kColumnVectors * kLanes) {
    GatherColumns<kRows, kColumnVectors>(p, factor, values + column, padded, begin, end,
                                         out + column, out_stride);
  }
  for (; column < padded; column += kLanes) {
    GatherColumns<kRows, 1>(p, factor, values + column, padded, begin, end, out + column,
                            out_stride);
  }
}

template <int kRows>
void Gather(const float* p, const float* factor, const BlockView& block, int padded, int begin,
            int end, float* out, int out_stride) {
  switch (block.dtype) {
    case DType::kF32:
      GatherElements<kRows>(p, factor, reinterpret_cast<const float*>(block.values), padded, begin,
                            end, out, out_stride);
      return;
    case DType::kBF16:
      GatherElements<kRows>(p, factor, reinterpret_cast<const BF16*>(block.values), padded, begin,
                            end, out, out_stride);
      return;
    case DType::kF16:
      GatherElements<kRows>(p, factor, reinterpret_cast<const F16*>(block.values), padded, begin,
                            end, out, out_stride);
      return;
  }
}

// Rows [row, row + kRows) of the span through the block.
template <int kRows>
void AttendTile(const AttentionSpan& span, const AttentionScratch& scratch, const BlockView& block,
                int row) {
  const int padded = PaddedHeadDim(span.head_dim);
  const int state_floats = AttentionStateFloats(span.head_dim);
  float* states = scratch.group + size_t(row) * state_floats;
  alignas(64) float p[kRows * kKeys];
  Scores<kRows>(scratch.queries + size_t(row) * span.head_dim, span.head_dim, scratch.keys, p);
  float factor[kRows];
  int num_keys[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    const int position = span.first_position + (span.row_begin + row + i) / span.group_heads;
    const int keys = position - block.position + 1;
    num_keys[i] = keys < kKeys ? keys : kKeys;
    float* state = states + i * state_floats;
    factor[i] = SoftmaxRow(p + i * kKeys, block.bias, num_keys[i], MaxOf(state, padded),
                           SumOf(state, padded));
  }
  // Row 0 has the fewest keys. What the others have beyond it (in a sequence's last blocks)
  // continues their chains one row at a time.
  const int shared = num_keys[0];
  Gather<kRows>(p, factor, block, padded, 0, shared, states, state_floats);
  for (int i = 1; i < kRows; ++i) {
    if (num_keys[i] == shared) continue;
    const float one = 1.0f;
    Gather<1>(p + i * kKeys, &one, block, padded, shared, num_keys[i], states + i * state_floats,
              state_floats);
  }
}

// AttendTile of `rows`, at most kMost.
template <int kMost>
AUGUR_INLINE void AttendRows(const AttentionSpan& span, const AttentionScratch& scratch,
                             const BlockView& block, int row, int rows) {
  if (rows == kMost) {
    AttendTile<kMost>(span, scratch, block, row);
  } else if constexpr (kMost > 1) {
    AttendRows<kMost - 1>(span, scratch, block, row, rows);
  }
}

// queries[row] = q * scale * log2 e.
void LoadQueries(const AttentionSpan& span, const AttentionScratch& scratch) {
  const float factor = span.scale * kLog2E;
  for (int i = span.row_begin; i < span.row_end; ++i) {
    const float* q = span.q + i / span.group_heads * span.q_stride +
                     size_t(i % span.group_heads) * span.head_dim;
    float* query = scratch.queries + size_t(i - span.row_begin) * span.head_dim;
    for (int c = 0; c < span.head_dim; ++c) query[c] = q[c] * factor;
  }
}

AUGUR_INLINE void ResetState(float* state, int head_dim) {
  memset(state, 0, sizeof(float) * AttentionStateFloats(head_dim));
  MaxOf(state, PaddedHeadDim(head_dim)) = kMinusInfinity;
}

AUGUR_INLINE void ResetStates(const AttentionSpan& span, float* states) {
  for (int i = 0; i < span.row_end - span.row_begin; ++i) {
    ResetState(states + size_t(i) * AttentionStateFloats(span.head_dim), span.head_dim);
  }
}

AUGUR_INLINE int LastBlockOf(const AttentionSpan& span, int row) {
  return (span.first_position + (span.row_begin + row) / span.group_heads) / kKeys;
}

AUGUR_INLINE int BlockOf(const AttentionSpan& span, int entry) {
  return span.blocks == nullptr ? entry : span.blocks[entry - span.first_entry];
}

// Transposes the block's keys for `num_rows` rows, of which the last sees `written` tokens, and
// widens its values if that pays. `next_page` is asked for meanwhile.
BlockView OpenBlock(const AttentionSpan& span, const AttentionScratch& scratch, int block,
                    const std::byte* page, const std::byte* next_page, int written, int num_rows) {
  const std::byte* value_page = page + PageHalfBytes(span.dtype, span.head_dim);
  TransposeKeys(span.dtype, page, written, span.head_dim, scratch.values, scratch.keys,
                {value_page, next_page});
  BlockView view{block * kKeys, nullptr, value_page, span.dtype};
  const bool can_stay = PaddedHeadDim(span.head_dim) == span.head_dim;
  if (!can_stay || (num_rows > kQueryRows && span.dtype != DType::kF32)) {
    WidenValues(span.dtype, value_page, written, span.head_dim, scratch.values);
    view.values = reinterpret_cast<const std::byte*>(scratch.values);
    view.dtype = DType::kF32;
  }
  return view;
}

// Rows [row, end) through an open block that all of them reach.
void AttendOpenBlock(const AttentionSpan& span, const AttentionScratch& scratch,
                     const BlockView& block, int row, int end) {
  for (int tiles = (end - row + kQueryRows - 1) / kQueryRows; tiles > 0; --tiles) {
    const int rows = (end - row + tiles - 1) / tiles;  // nearly equal heights
    AttendRows<kQueryRows>(span, scratch, block, row, rows);
    row += rows;
  }
}

// Tokens of a block that a position sees.
AUGUR_INLINE int VisibleTokens(int position, int block) {
  const int left = position - block * kKeys + 1;
  return left < kKeys ? left : kKeys;
}

// All rows of the span that reach the entry's block.
void AttendEntry(const AttentionSpan& span, const AttentionScratch& scratch, int entry) {
  const int place = entry - span.first_entry;
  const int block = BlockOf(span, entry);
  const int last_position = span.first_position + (span.row_end - 1) / span.group_heads;
  const std::byte* page = span.pages[place];
  const std::byte* next_page = entry + 1 < span.end_entry ? span.pages[place + 1] : page;
  // The first row whose position reaches the block.
  const int reached = (block * kKeys - span.first_position) * span.group_heads - span.row_begin;
  const int num_rows = span.row_end - span.row_begin;
  const int row = reached > 0 ? reached : 0;
  BlockView view = OpenBlock(span, scratch, block, page, next_page,
                             VisibleTokens(last_position, block), num_rows - row);
  if (span.biases != nullptr) view.bias = span.biases[place];
  AttendOpenBlock(span, scratch, view, row, num_rows);
}

// total = total and then group, for rows that have both.
void MergeState(float* total, float* group, int padded) {
  const float old_max = MaxOf(total, padded);
  const float new_max = old_max > MaxOf(group, padded) ? old_max : MaxOf(group, padded);
  const Floats total_factor = Exp2(Splat(old_max - new_max));
  const Floats group_factor = Exp2(Splat(MaxOf(group, padded) - new_max));
  for (int c = 0; c < padded; c += kLanes) {
    Store(total + c, Fma(Load(group + c), group_factor, Load(total + c) * total_factor));
  }
  SumOf(total, padded) =
      FmaScalar(SumOf(group, padded), group_factor[0], SumOf(total, padded) * total_factor[0]);
  MaxOf(total, padded) = new_max;
}

// Where span.states keeps what a row has gathered.
AUGUR_INLINE float* KeptState(const AttentionSpan& span, int row) {
  const int i = span.row_begin + row;
  return span.states + i / span.group_heads * span.states_stride +
         size_t(i % span.group_heads) * AttentionStateFloats(span.head_dim);
}

// A row's state at the end of the call: kept when calls may follow, and divided into its place in
// span.out when the row is through.
void EndRow(const AttentionSpan& span, int row, const float* state) {
  if (span.states != nullptr && state != KeptState(span, row)) {
    memcpy(KeptState(span, row), state, sizeof(float) * AttentionStateFloats(span.head_dim));
  }
  if (LastBlockOf(span, row) > span.finished_block) return;
  const int token = (span.row_begin + row) / span.group_heads;
  const int head = (span.row_begin + row) % span.group_heads;
  float* out = span.out + token * span.out_stride + size_t(head) * span.head_dim;
  const float sum = state[PaddedHeadDim(span.head_dim) + 1];
  for (int c = 0; c < span.head_dim; ++c) out[c] = state[c] / sum;
}

// Whether any entry of the group reaches the row.
AUGUR_INLINE bool HasGroup(const AttentionSpan& span, int row, int group) {
  return BlockOf(span, group * kGroupBlocks) <= LastBlockOf(span, row);
}

void AttendSpan(const AttentionSpan& span) {
  const AttentionScratch scratch = Carve(span);
  const int padded = PaddedHeadDim(span.head_dim);
  const size_t state_floats = AttentionStateFloats(span.head_dim);
  const int num_rows = span.row_end - span.row_begin;
  LoadQueries(span, scratch);
  if (span.first_entry > 0 && span.partials == nullptr) {
    for (int row = 0; row < num_rows; ++row) {
      memcpy(scratch.total + row * state_floats, KeptState(span, row),
             sizeof(float) * state_floats);
    }
  }
  for (int group = span.group_begin; group < span.group_end; ++group) {
    AttentionScratch target = scratch;
    if (span.partials != nullptr) {
      target.group = span.partials + (group - span.group_begin) * num_rows * state_floats;
    } else if (group == 0) {
      target.group = scratch.total;
    }
    ResetStates(span, target.group);
    const int group_end = (group + 1) * kGroupBlocks;
    const int end = group_end < span.end_entry ? group_end : span.end_entry;
    for (int entry = group * kGroupBlocks; entry < end; ++entry) AttendEntry(span, target, entry);
    if (span.partials != nullptr || group == 0) continue;
    for (int row = 0; row < num_rows; ++row) {
      if (!HasGroup(span, row, group)) continue;
      MergeState(scratch.total + row * state_floats, scratch.group + row * state_floats, padded);
    }
  }
  if (span.partials != nullptr) return;
  for (int row = 0; row < num_rows; ++row) EndRow(span, row, scratch.total + row * state_floats);
}

void MergePartials(const AttentionSpan& span) {
  const int padded = PaddedHeadDim(span.head_dim);
  const size_t state_floats = AttentionStateFloats(span.head_dim);
  const int num_rows = span.row_end - span.row_begin;
  for (int row = 0; row < num_rows; ++row) {
    int group = span.group_begin;
    float* partial = span.partials + row * state_floats;
    float* total = span.first_entry > 0 ? KeptState(span, row) : partial;
    if (total == partial) ++group;
    for (; group < span.group_end && HasGroup(span, row, group); ++group) {
      MergeState(total, partial + size_t(group - span.group_begin) * num_rows * state_floats,
                 padded);
    }
    EndRow(span, row, total);
  }
}

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
