// What the kernels of prefill attention (prefill_attention.cu, wgmma_prefill_attention.cu,
// sparse_prefill_attention.cu) have in common: finding a CTA's rows, and what happens to the rows
// of a fragment between its two products. Device code only.
//
// A fragment is 16 rows of a warp; lane 4 g + t holds of rows g and g + 8 columns 8 n + 2 t and
// 8 n + 2 t + 1 (prefill_mma.h, C).
#pragma once

#include <climits>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/element.h"
#include "kernels/cuda/prefill_mma.h"
#include "kernels/cuda/prefill_tiles.h"
#include "kernels/ops/paged_attention.h"

namespace augur::kernels {

inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kLog2E = 1.44269504f;

inline constexpr int kFragmentRows = 16;

// What a CTA works on. Kept in shared memory: registers are for the accumulators.
struct TileRows {
  PrefillSpan span;
  const std::byte* const* pages;
  int64_t first_row;  // of the segment, in q and out
  int first_head;     // query head
  int num_pages;
  int first_masked_page;
};

struct Tile {
  int segment = -1;  // -1: none
  int index = 0;     // in its segment
};

// Each warp by itself.
__device__ inline int CountTiles(const PagedAttentionParams& params, int tile_rows) {
  const int group = params.num_q_heads / params.num_kv_heads;
  int count = 0;
  for (int s = threadIdx.x % 32; s < params.num_segments; s += 32) {
    count += PrefillTilesOf(params.segments[s].rows.num_rows, group, tile_rows);
  }
  return __reduce_add_sync(kAllLanes, count);
}

// Each warp by itself: a scan over the segments, 32 at a time.
__device__ inline Tile FindTile(const PagedAttentionParams& params, int tile_rows, int tile) {
  const int lane = threadIdx.x % 32;
  const int group = params.num_q_heads / params.num_kv_heads;
  int before = 0;
  for (int base = 0; base < params.num_segments; base += 32) {
    const int s = base + lane;
    const int count = s < params.num_segments
                          ? PrefillTilesOf(params.segments[s].rows.num_rows, group, tile_rows)
                          : 0;
    int end = count;
    for (int distance = 1; distance < 32; distance *= 2) {
      const int other = __shfl_up_sync(kAllLanes, end, distance);
      if (lane >= distance) end += other;
    }
    const unsigned behind = __ballot_sync(kAllLanes, tile < before + end);
    if (behind != 0) {
      const int owner = __ffs(behind) - 1;
      const int begin = before + __shfl_sync(kAllLanes, end - count, owner);
      return {base + owner, tile - begin};
    }
    before += __shfl_sync(kAllLanes, end, 31);
  }
  return {};
}

// A segment that the kernel does not serve, or that the host's flags do not tell of, traps.
__device__ inline TileRows RowsOf(const PagedAttentionParams& params, int tile_rows,
                                  const Tile& tile, int kv_head) {
  const AttentionSegment& segment = params.segments[tile.segment];
  TileRows rows;
  rows.span.group = params.num_q_heads / params.num_kv_heads;
  rows.span.first_position = segment.rows.first_position;
  rows.span.begin = tile.index * tile_rows;
  rows.span.end = min(rows.span.begin + tile_rows, segment.rows.num_rows * rows.span.group);
  rows.num_pages = rows.span.NumPages();
  rows.first_masked_page = rows.span.FirstMaskedPage();
  rows.pages = segment.pages + params.pages_offset + int64_t{kv_head} * segment.list_stride;
  rows.first_row = segment.rows.first_row;
  rows.first_head = kv_head * rows.span.group;
  if (segment.blocks != nullptr || segment.biases != nullptr) __trap();
  if ((segment.choices != nullptr) != params.has_choices) __trap();
  return rows;
}

// Exponents of all ones are infinities and NaNs; adding the lowest bit of the exponent to one
// carries into the (cleared) sign.
template <class T>
__device__ __forceinline__ uint32_t NonFiniteBits(uint32_t pair) {
  constexpr bool kIsBf16 = std::is_same_v<T, __nv_bfloat16>;
  constexpr uint32_t kExponents = kIsBf16 ? 0x7f807f80u : 0x7c007c00u;
  constexpr uint32_t kLowest = kIsBf16 ? 0x00800080u : 0x04000400u;
  return ((pair & kExponents) + kLowest) & 0x80008000u;
}

template <class T>
__device__ __forceinline__ uint32_t NonFiniteBits(const uint4& pairs) {
  return NonFiniteBits<T>(pairs.x) | NonFiniteBits<T>(pairs.y) | NonFiniteBits<T>(pairs.z) |
         NonFiniteBits<T>(pairs.w);
}

// Makes the elements of 16 bytes of V that are not finite 0, after keep(column) of each.
template <class T, class Keep>
__device__ inline void CleanChunk(uint32_t* pairs, int chunk, Keep&& keep) {
#pragma unroll 1
  for (int i = 0; i < 4; ++i) {
    const uint32_t bad = NonFiniteBits<T>(pairs[i]);
    if (bad & 0x8000u) keep(chunk * 8 + 2 * i);
    if (bad & 0x80000000u) keep(chunk * 8 + 2 * i + 1);
    pairs[i] &= ~((bad >> 15) * 0xffffu);
  }
}

// Likewise; keeps the first such key of each column: first_bad [head_dim].
template <class T>
__device__ inline void CleanChunk(uint32_t* pairs, int key, int chunk, int* first_bad) {
  CleanChunk<T>(pairs, chunk, [&](int column) { atomicMin(first_bad + column, key); });
}

// What a tile has met in V that was not finite, by first_bad.
struct FirstBadKeys {
  const int* first_bad;

  __device__ bool Reach(int column, const PrefillSpan& span, int packed) const {
    return first_bad[column] <= span.PositionOf(packed);
  }
};

// One fragment's rows.
template <int kHeadDim>
struct FragmentRows {
  float out[kHeadDim / 8][4];
  float max[2];  // -infinity before the first page
  float sum[2];  // of this lane's own columns
};

template <int kHeadDim>
__device__ __forceinline__ void Clear(FragmentRows<kHeadDim>& rows) {
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) rows.out[n][i] = 0.0f;
  }
  rows.max[0] = rows.max[1] = -INFINITY;
  rows.sum[0] = rows.sum[1] = 0.0f;
}

// A fragment's scores against kKeys keys, and p as A fragments.
template <int kKeys>
using FragmentScores = float[kKeys / 8][4];
template <int kKeys>
using FragmentWeights = uint32_t[kKeys / 16][4];

// Takes out keys behind the positions of the fragment's rows, which are the span's from packed row
// `begin` on. Rows behind the span's end take its last one's position.
template <int kKeyTiles>
__device__ __forceinline__ void MaskFragment(const PrefillSpan& span, int begin, int first_key,
                                             float (&scores)[kKeyTiles][4]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int packed = min(begin + row * 8 + lane / 4, span.end - 1);
    const int last_key = span.PositionOf(packed) - first_key - lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (n * 8 + i > last_key) scores[n][2 * row + i] = -INFINITY;
      }
    }
  }
}

// Scores of one row (in its four lanes) -> p in place; the row's max and sum go on. Gives the
// factor for what the row has gathered.
template <int kKeyTiles>
__device__ __forceinline__ float WeighRow(float (&scores)[kKeyTiles][4], int row, float scale,
                                          float& row_max, float& row_sum) {
  // Columns 2 t and 2 t + 1 apart: chains half as long.
  float largest[2] = {scores[0][2 * row], scores[0][2 * row + 1]};
#pragma unroll
  for (int n = 1; n < kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) largest[i] = fmaxf(largest[i], scores[n][2 * row + i]);
  }
  float max = fmaxf(largest[0], largest[1]);
  max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
  max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
  const float new_max = fmaxf(row_max, max * scale);
  const float factor = FastExp2(row_max - new_max);
  float sum[2] = {0.0f, 0.0f};
#pragma unroll
  for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float& score = scores[n][2 * row + i];
      score = FastExp2(fmaf(score, scale, -new_max));
      sum[i] += score;
    }
  }
  row_sum = fmaf(row_sum, factor, sum[0] + sum[1]);
  row_max = new_max;
  return factor;
}

template <int kHeadDim>
__device__ __forceinline__ void ScaleFragment(const float (&factor)[2],
                                              FragmentRows<kHeadDim>& rows) {
  // Far into a list the maxima seldom rise. Times 1 changes no bit, so whether to multiply may
  // depend on other rows.
  if (!__any_sync(kAllLanes, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int n = 0; n < kHeadDim / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) rows.out[n][i] *= factor[i / 2];
  }
}

template <class T, int kKeyTiles>
__device__ __forceinline__ void PackWeights(const float (&scores)[kKeyTiles][4],
                                            uint32_t (&weights)[kKeyTiles / 2][4]) {
#pragma unroll
  for (int step = 0; step < kKeyTiles / 2; ++step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float(&pair)[4] = scores[2 * step + i / 2];
      weights[step][i] = PackPair<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
    }
  }
}

template <class Out>
__device__ __forceinline__ void StorePair(Out* to, float first, float second) {
  if constexpr (std::is_same_v<Out, float>) {
    *reinterpret_cast<float2*>(to) = {first, second};
  } else {
    *reinterpret_cast<uint32_t*>(to) = PackPair<Out>(first, second);
  }
}

// Rows of the fragment that the span has, from packed row `begin` on; bad.Reach(column, span,
// packed row): a value that was not finite, and that the row sees, makes this column NaN.
template <class Out, int kHeadDim, class Bad>
__device__ __forceinline__ void WriteFragmentAs(const PagedAttentionParams& params,
                                                const TileRows& tile, int begin, const Bad& bad,
                                                const FragmentRows<kHeadDim>& rows) {
  const int lane = threadIdx.x % 32;
  const PrefillSpan& span = tile.span;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float sum = rows.sum[row];
    sum += __shfl_xor_sync(kAllLanes, sum, 1);
    sum += __shfl_xor_sync(kAllLanes, sum, 2);
    const float factor = 1.0f / sum;
    const int packed = begin + row * 8 + lane / 4;
    if (packed >= span.end) continue;
    const int64_t token = tile.first_row + packed / span.group;
    const int head = tile.first_head + packed % span.group;
    Out* to = static_cast<Out*>(params.out) + (token * params.num_q_heads + head) * kHeadDim;
#pragma unroll
    for (int n = 0; n < kHeadDim / 8; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      float x[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float gathered = rows.out[n][row * 2 + i];
        // Infinity - infinity is NaN; and -0 + 0 is 0: adding p V with p = 0, as tiles with more
        // pages than this row's do, may have turned a -0.
        x[i] = fmaf(gathered, factor, gathered - gathered);
        if (bad.Reach(column + i, span, packed)) x[i] = NAN;
      }
      StorePair(to + column, x[0], x[1]);
    }
  }
}

template <int kHeadDim, class Bad>
__device__ __forceinline__ void WriteFragment(const PagedAttentionParams& params,
                                              const TileRows& tile, int begin, const Bad& bad,
                                              const FragmentRows<kHeadDim>& rows) {
  switch (params.out_dtype) {
    case DType::kF32:
      return WriteFragmentAs<float>(params, tile, begin, bad, rows);
    case DType::kBF16:
      return WriteFragmentAs<__nv_bfloat16>(params, tile, begin, bad, rows);
    case DType::kF16:
      return WriteFragmentAs<__half>(params, tile, begin, bad, rows);
  }
}

}  // namespace augur::kernels
