// Scores of blocks for a few tokens. 64 keys are transposed once for all query rows (tokens x heads
// of one kv head), scores stay in span.scores until the last key is through; then, a token at a
// time,
//
//   kSoftmaxSum  e = 2^(s - max) over the visible keys; its sum: 64 lanes, each one chain over the
//                tiles, then the fixed tree; score of a key: one chain of Fma(e, 1 / sum) over
//                heads
//   kProduct     the score is the product
//
// and a block's score is the largest of its keys, NaN apart. A score is one chain of Fma over
// key_dim, so no bit depends on the rows beside it.
#pragma once

#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/isa/score_tile.h"
#include "kernels/cpu/isa/vector.h"
#include "kernels/ops/compress_keys.h"

namespace augur::kernels::AUGUR_ISA {
namespace {

// Keys lie at places: token t at t, window j at j + 1.
struct Places {
  int first;  // visible: [first, end)
  int end;
};

AUGUR_INLINE Places VisiblePlaces(const SelectSpan& span, int token) {
  const int position =
      span.positions == nullptr ? span.first_position + token : span.positions[token];
  if (span.keys_per_block == kBlockWindows) return {1, CompleteWindows(position) + 1};
  return {0, position};
}

// Places to score: a softmax is over all keys that any token sees; products are pooled only, the
// last block's with the first window of the next.
AUGUR_INLINE int EndPlace(const SelectSpan& span) {
  if (span.is_softmax) return VisiblePlaces(span, span.num_tokens - 1).end;
  return span.end_block * span.keys_per_block + (span.keys_per_block == kBlockWindows ? 1 : 0);
}

void ScoreTiles(const SelectSpan& span, int end_place) {
  const int padded = PaddedHeadDim(span.key_dim);
  const int num_rows = span.num_tokens * span.heads;
  float* keys = span.scratch;
  float* widened = keys + kKeys * padded;
  float* queries = widened + kKeys * padded;
  const float factor = span.is_softmax ? span.scale * kLog2E : 1.0f;
  for (int row = 0; row < num_rows; ++row) {
    const float* q =
        span.q + row / span.heads * span.q_stride + size_t(row % span.heads) * span.key_dim;
    for (int c = 0; c < span.key_dim; ++c) queries[row * span.key_dim + c] = q[c] * factor;
  }
  const size_t key_bytes = size_t(span.key_dim) * (span.dtype == DType::kF32 ? 4 : 2);
  const auto tile_at = [&](int place) {
    return span.pages[place / span.keys_per_page] + place % span.keys_per_page * key_bytes;
  };
  for (int place = 0; place < end_place; place += kKeys) {
    const int written = end_place - place < kKeys ? end_place - place : kKeys;
    const std::byte* next = tile_at(place + kKeys < end_place ? place + kKeys : place);
    TransposeKeys(span.dtype, tile_at(place), written, span.key_dim, widened, keys, {next, next});
    float* scores = span.scores + size_t(place) * num_rows;
    int row = 0;
    for (int tiles = (num_rows + kQueryRows - 1) / kQueryRows; tiles > 0; --tiles) {
      const int rows = (num_rows - row + tiles - 1) / tiles;  // nearly equal height
      ScoreRows<kQueryRows>(queries + size_t(row) * span.key_dim, rows, span.key_dim, keys,
                            scores + size_t(row) * kKeys);
      row += rows;
    }
  }
}

// Minus infinity where the keys of the tile at `place` are not visible; gives the largest lanes.
AUGUR_INLINE void MaskTile(float* scores, int place, const Places& visible,
                           Floats (&largest)[kKeyVectors]) {
  const bool is_edge = place < visible.first || place + kKeys > visible.end;
#pragma GCC unroll 16
  for (int v = 0; v < kKeyVectors; ++v) {
    Floats s = Load(scores + v * kLanes);
    if (is_edge) {
      const Ints places = Iota() + (place + v * kLanes);
      s = places >= visible.first ? s : Splat(kMinusInfinity);
      s = places < visible.end ? s : Splat(kMinusInfinity);
      Store(scores + v * kLanes, s);
    }
    largest[v] = Max(s, largest[v]);
  }
}

// scores: a token's first head, tiles `stride` apart, heads 64 apart. Leaves the keys' scores in
// the first head's place.
void SumSoftmax(float* scores, size_t stride, int heads, const Places& visible) {
  for (int head = 0; head < heads; ++head) {
    float* row = scores + head * kKeys;
    Floats largest[kKeyVectors], sums[kKeyVectors] = {};
#pragma GCC unroll 16
    for (int v = 0; v < kKeyVectors; ++v) largest[v] = Splat(kMinusInfinity);
    for (int place = 0; place < visible.end; place += kKeys) {
      MaskTile(row + place / kKeys * stride, place, visible, largest);
    }
#pragma GCC unroll 16
    for (int v = 1; v < kKeyVectors; ++v) largest[0] = Max(largest[v], largest[0]);
    const float max = MaxLanes(largest[0]);
    for (int place = 0; place < visible.end; place += kKeys) {
      float* tile = row + place / kKeys * stride;
#pragma GCC unroll 16
      for (int v = 0; v < kKeyVectors; ++v) {
        const Floats e = Exp2(Load(tile + v * kLanes) - max);
        Store(tile + v * kLanes, e);
        sums[v] += e;
      }
    }
    const Floats share = Splat(1.0f / FoldSum(sums));
    for (int place = 0; place < visible.end; place += kKeys) {
      float* total = scores + place / kKeys * stride;
      const float* tile = row + place / kKeys * stride;
#pragma GCC unroll 16
      for (int v = 0; v < kKeyVectors; ++v) {
        const Floats e = Load(tile + v * kLanes);
        Store(total + v * kLanes,
              head == 0 ? Fma(e, share, Floats{}) : Fma(e, share, Load(total + v * kLanes)));
      }
    }
  }
}

AUGUR_INLINE float Larger(float score, float largest) {
  return score > largest ? score : largest;  // never a NaN
}

// Tiles `stride` apart -> the largest score of each block's places, minus infinity when all are
// NaN. A block's places begin and end in one tile but for the one neighbour that it pools.
void PoolKeys(const SelectSpan& span, const float* scores, size_t stride, float* out) {
  const auto score_at = [&](int place) { return scores + place / kKeys * stride + place % kKeys; };
  for (int block = span.first_block; block < span.end_block; ++block) {
    float largest = kMinusInfinity;
    if (span.keys_per_block == kKeys) {
      const float* tile = scores + block * stride;
      Floats lanes = Splat(kMinusInfinity);
      for (int v = 0; v < kKeyVectors; ++v) lanes = Max(Load(tile + v * kLanes), lanes);
      largest = MaxLanes(lanes);
      if (block > 0) largest = Larger(*score_at(block * kKeys - 1), largest);
    } else {
      const float* windows = score_at(block * kBlockWindows);
      for (int i = block > 0 ? 0 : 1; i < kBlockWindows; ++i) largest = Larger(windows[i], largest);
      largest = Larger(*score_at((block + 1) * kBlockWindows), largest);
    }
    out[block] = largest;
  }
}

void ScoreBlocks(const SelectSpan& span) {
  ScoreTiles(span, EndPlace(span));
  const size_t stride = size_t(span.num_tokens) * span.heads * kKeys;
  for (int token = 0; token < span.num_tokens; ++token) {
    const Places visible = VisiblePlaces(span, token);
    float* scores = span.scores + size_t(token) * span.heads * kKeys;
    if (span.is_softmax) SumSoftmax(scores, stride, span.heads, visible);
    PoolKeys(span, scores, stride, span.block_scores + token * span.block_stride);
  }
}

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
