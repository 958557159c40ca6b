#include <algorithm>
#include <bit>

#include "kernels/check.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefill_mma.h"
#include "kernels/cuda/prefill_selection.h"
#include "kernels/cuda/select_row.h"

namespace augur::kernels {
namespace {

// Two CTAs an SM: while the warps of one exponentiate, those of the other multiply.
constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
// A warp's rows: two products high, so that a fragment of keys is used four times (two parts of q).
constexpr int kWarpTiles = 2;
constexpr int kWarpRows = 16 * kWarpTiles;
constexpr int kTileRows = kWarps * kWarpRows;  // packed: token i / group, head i % group
constexpr int kKeyTile = 64;                   // places in shared memory at a time
constexpr int kStages = 2;
constexpr int kGroupPlaces = 32;  // multiplied at a time: four columns of 8
constexpr int kColumns = kGroupPlaces / 8;
// Of one CTA. The softmax's belong to a row's bits.
constexpr int kSoftmaxRange = 4096;
constexpr int kProductRange = 1024;
constexpr float kLog2E = 1.44269504088896341f;

enum class Walk {
  kNormalise,   // softmax: each row's largest score and sum of exponentials, by range
  kSumHeads,    // softmax: sums of the heads' shares
  kSumSixteen,  // likewise of 16 heads, one product high
  kProduct,
};

// The rows of one round, and where their scores go.
struct Slab {
  int first_row;
  int end_row;
  int group;         // heads of a token among packed rows: a power of two
  int block_stride;  // of scores, a multiple of 128
  int num_ranges;    // of the softmax
  float* scores;     // [rows][num_kv_heads][block_stride]
  float2* norms;     // [rows][num_kv_heads][num_ranges][group]
};

// Tokens [first, first + count) of a segment that a CTA takes; count 0: none.
struct TokenTile {
  int segment = 0;
  int first = 0;
  int count = 0;
};

__device__ TokenTile FindTile(const SelectBlocksParams& params, const Slab& slab, int tile) {
  const int tile_tokens = kTileRows / slab.group;
  for (int s = 0; s < params.num_segments; ++s) {
    const Segment rows = params.segments[s].rows;
    const int begin = max(rows.first_row, slab.first_row);
    const int end = min(rows.first_row + rows.num_rows, slab.end_row);
    const int tiles = end > begin ? (end - begin + tile_tokens - 1) / tile_tokens : 0;
    if (tile < tiles) {
      const int first = begin + tile * tile_tokens;
      return {s, first - rows.first_row, min(tile_tokens, end - first)};
    }
    tile -= tiles;
  }
  return {};
}

template <int kKeyDim>
struct KeyTiles {
  // An odd number of 16 bytes: eight rows' chunks fall into different banks.
  static constexpr int kRowBytes = kKeyDim * 2 + 16;
  static_assert(kRowBytes / 16 % 2 == 1);
  alignas(16) std::byte bytes[kStages][kKeyTile * kRowBytes];

  __device__ void Load(int stage, const std::byte* from) {
    constexpr int kRowChunks = kKeyDim / 8;
    const uint32_t to = SharedAddress(bytes[stage]);
#pragma unroll
    for (int i = 0; i < kKeyTile * kRowChunks / kThreads; ++i) {
      const int chunk = i * kThreads + static_cast<int>(threadIdx.x);
      CopyChunk(to + chunk / kRowChunks * kRowBytes + chunk % kRowChunks * 16, from + chunk * 16);
    }
  }
  static_assert(kKeyTile * kKeyDim / 8 % kThreads == 0);
};

// The fragments of a warp's rows: q in two parts.
template <class T, int kKeyDim>
struct QueryFragments {
  static constexpr int kSteps = kKeyDim / 16;
  uint32_t high[kWarpTiles][kSteps][4];
  uint32_t low[kWarpTiles][kSteps][4];
  float unscale[kWarpTiles][2];  // fp16 only
};

__device__ inline float2 LoadPair(const float* from, bool is_aligned) {
  if (is_aligned) return *reinterpret_cast<const float2*>(from);
  return {from[0], from[1]};
}

// Power of two that brings `largest` to [2^13, 2^14): fp16 then holds an element and its rest.
__device__ inline float HalfScale(float largest) {
  if (!(largest > 0.0f && largest < INFINITY)) return 1.0f;
  return exp2f(static_cast<float>(min(13 - ilogbf(largest), 126)));
}

template <class T>
__device__ inline void SplitPair(float2 value, uint32_t& high, uint32_t& low) {
  const T x = FromFloat<T>(value.x), y = FromFloat<T>(value.y);
  high = PackPair<T>(value.x, value.y);
  low = PackPair<T>(value.x - ToFloat(x), value.y - ToFloat(y));
}

// from: q of the lane's row g (r = 0) or g + 8 of tile m, null where there is none.
template <class T, int kKeyDim>
__device__ void LoadQueryRow(const float* from, bool is_aligned, float factor, int m, int r,
                             QueryFragments<T, kKeyDim>& q) {
  const int column = threadIdx.x % 4 * 2;
  float scale = factor;
  if constexpr (std::is_same_v<T, __half>) {
    float largest = 0.0f;
    for (int c = column; from != nullptr && c < kKeyDim; c += 8) {
      const float2 pair = LoadPair(from + c, is_aligned);
      largest = fmaxf(largest, fmaxf(fabsf(pair.x * factor), fabsf(pair.y * factor)));
    }
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    scale = HalfScale(largest);
    q.unscale[m][r] = 1.0f / scale;
  }
#pragma unroll
  for (int step = 0; step < q.kSteps; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float2 pair{};
      if (from != nullptr) {
        pair = LoadPair(from + step * 16 + half * 8 + column, is_aligned);
        pair = {pair.x * factor, pair.y * factor};
        if constexpr (std::is_same_v<T, __half>) pair = {pair.x * scale, pair.y * scale};
      }
      SplitPair<T>(pair, q.high[m][step][half * 2 + r], q.low[m][step][half * 2 + r]);
    }
  }
}

// Products of the warp's rows with 32 places; keys: address of the first one in shared memory.
template <class T, int kKeyDim>
__device__ void MultiplyGroup(const QueryFragments<T, kKeyDim>& q, uint32_t keys,
                              float (&c)[kWarpTiles][kColumns][4]) {
  constexpr int kRowBytes = KeyTiles<kKeyDim>::kRowBytes;
  const int lane = threadIdx.x % 32;
  const uint32_t row = keys + lane % 8 * kRowBytes + lane / 8 * 16;
#pragma unroll
  for (int m = 0; m < kWarpTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[m][n][i] = 0.0f;
    }
  }
#pragma unroll
  for (int step = 0; step < kKeyDim / 16; step += 2) {
#pragma unroll
    for (int n = 0; n < kColumns; n += 2) {  // four products between two of the same chain
      uint32_t b[2][4];
      LoadMatrices(b[0], row + n * 8 * kRowBytes + step * 32);
      LoadMatrices(b[1], row + (n + 1) * 8 * kRowBytes + step * 32);
#pragma unroll
      for (int part = 0; part < 4; ++part) {
        const int half = part % 2;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
          for (int m = 0; m < kWarpTiles; ++m) {
            const uint32_t(&a)[4] = part < 2 ? q.high[m][step + half] : q.low[m][step + half];
            MultiplyAdd<T>(c[m][n + i], a, b[i][2 * half], b[i][2 * half + 1]);
          }
        }
      }
    }
  }
  if constexpr (std::is_same_v<T, __half>) {
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) c[m][n][i] *= q.unscale[m][i / 2];
      }
    }
  }
}

// Largest score, and sum of exponentials relative to it, of the places of one lane.
struct LaneNorm {
  float largest = -INFINITY;
  float sum = 0.0f;

  __device__ void Add(const float (&scores)[2 * kColumns]) {
    float next = largest;
#pragma unroll
    for (const float s : scores) next = fmaxf(next, s);
    const float base = next == -INFINITY ? 0.0f : next;
    sum *= FastExp2(largest - base);
#pragma unroll
    for (const float s : scores) sum += FastExp2(s - base);
    largest = next;
  }

  __device__ void Fold(float other_largest, float other_sum) {
    const float next = fmaxf(largest, other_largest);
    const float base = next == -INFINITY ? 0.0f : next;
    sum = sum * FastExp2(largest - base) + other_sum * FastExp2(other_largest - base);
    largest = next;
  }
};

// Scores of a row's 32 places, two a column and lane, to those of 8 blocks, two a lane: lane t of a
// quad keeps blocks 2t and 2t + 1. A group's last block waits for the next group's first place.
struct BlockPool {
  float first = -INFINITY;
  float second = -INFINITY;

  // Completes the blocks of the group before by this group's first place.
  __device__ void Complete(float left) {
    const int lane = threadIdx.x % 32;
    const float next = __shfl_sync(~0u, left, lane & ~3);
    if (lane % 4 == 3) second = fmaxf(second, next);
  }

  __device__ void Pool(const float (&left)[kColumns], const float (&right)[kColumns]) {
    const int lane = threadIdx.x % 32, t = lane % 4, quad = lane & ~3;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const float pair = fmaxf(left[n], right[n]);
      const float own = fmaxf(pair, __shfl_xor_sync(~0u, pair, 1));
      const float other = __shfl_xor_sync(~0u, own, 2);
      const float between = __shfl_sync(~0u, left[n], quad + 2);
      if (n > 0) {
        const float behind = __shfl_sync(~0u, left[n], quad);
        if (t == n - 1) second = fmaxf(second, behind);
      }
      if (t == n) {
        first = fmaxf(t < 2 ? own : other, between);
        second = t < 2 ? other : own;
      }
    }
    static_assert(kColumns == 4);  // one a lane of the quad
  }
};

// Sums of 16 heads, those of a product's rows: each lane ends with one of 32 places, 8 n + 2 t +
// side for lane (n, side, t). Half of the lanes hand over half of their sums at each step.
__device__ inline float SumSixteen(float (&sums)[2 * kColumns]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int kept = kColumns, distance = 16; kept >= 1; kept /= 2, distance /= 2) {
    const bool is_upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < kept; ++i) {
      const float sent = is_upper ? sums[i] : sums[kept + i];
      const float own = is_upper ? sums[kept + i] : sums[i];
      sums[i] = own + __shfl_xor_sync(~0u, sent, distance);
    }
  }
  return sums[0];
}

// What a lane knows of its rows: g and g + 8 of each tile.
struct LaneRows {
  int token[kWarpTiles][2];  // from the tile's first; -1: none
  int head[kWarpTiles][2];
};

__device__ LaneRows RowsOfLane(const SelectBlocksParams& params, const Slab& slab,
                               const TokenTile& tile) {
  LaneRows rows;
#pragma unroll
  for (int m = 0; m < kWarpTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int packed = static_cast<int>(threadIdx.x) / 32 * kWarpRows + m * 16 + r * 8 +
                         static_cast<int>(threadIdx.x) % 32 / 4;
      rows.token[m][r] = packed / slab.group;
      rows.head[m][r] = packed % slab.group;
      if (rows.token[m][r] >= tile.count || rows.head[m][r] >= params.heads_per_group) {
        rows.token[m][r] = -1;
      }
    }
  }
  return rows;
}

// A CTA's tile of packed rows against a range of places.
template <class T, int kKeyDim, Walk kWalk>
struct ScoreTile {
  const SelectBlocksParams& params;
  const Slab& slab;
  const SelectSegment& segment;
  TokenTile tile;
  int kv_head;
  int range;
  LaneRows rows;

  __device__ int64_t List(int token) const {
    return int64_t{segment.rows.first_row + tile.first + token - slab.first_row} *
               params.num_kv_heads +
           kv_head;
  }
  __device__ float2* Norms(int m, int r, int of_range) const {
    return slab.norms + (List(rows.token[m][r]) * slab.num_ranges + of_range) * slab.group +
           rows.head[m][r];
  }

  // kNormalise: folds one group into the lane's norms.
  __device__ void AddNorms(const float (&c)[kWarpTiles][kColumns][4], int place, int end_unmasked,
                           LaneNorm (&norms)[kWarpTiles][2]) const {
    const bool is_edge = place == 0 || place + kGroupPlaces > end_unmasked;
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float scores[2 * kColumns];
#pragma unroll
        for (int i = 0; i < 2 * kColumns; ++i) scores[i] = c[m][i / 2][r * 2 + i % 2];
        if (is_edge) {
          const int position = segment.rows.first_position + tile.first + rows.token[m][r];
          const int end = CompleteWindows(position) + 1;
          const int first = place + static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
          for (int i = 0; i < 2 * kColumns; ++i) {
            const int at = first + i / 2 * 8 + i % 2;
            if (at < 1 || at >= end) scores[i] = -INFINITY;
          }
        }
        norms[m][r].Add(scores);
      }
    }
  }

  __device__ void WriteNorms(LaneNorm (&norms)[kWarpTiles][2]) const {
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        LaneNorm& norm = norms[m][r];
#pragma unroll
        for (int distance = 1; distance < 4; distance *= 2) {
          norm.Fold(__shfl_xor_sync(~0u, norm.largest, distance),
                    __shfl_xor_sync(~0u, norm.sum, distance));
        }
        if (rows.token[m][r] < 0 || threadIdx.x % 4 != 0) continue;
        *Norms(m, r, range) = {norm.largest, norm.sum};
      }
    }
  }

  // log2 of each row's sum over all ranges; infinite where there is no head.
  __device__ void ReadNorms(float (&log_sums)[kWarpTiles][2]) const {
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        log_sums[m][r] = INFINITY;
        const int token = rows.token[m][r];
        if (token < 0) continue;
        const SelectRow row = SelectRowAt(params, segment, tile.first + token);
        LaneNorm norm;
        for (int i = 0; i * kSoftmaxRange < row.end_visible; ++i) {
          const float2 part = *Norms(m, r, i);
          norm.Fold(part.x, part.y);
        }
        log_sums[m][r] = norm.largest + log2f(norm.sum);
      }
    }
  }

  // With 16 heads: a group's scores to blocks. The last one waits for the next group's first place.
  __device__ void PoolSixteen(const float (&c)[kWarpTiles][kColumns][4], int place,
                              const float (&log_sums)[kWarpTiles][2], bool is_first, bool is_last,
                              float (&pending)[kWarpTiles]) const {
    const int lane = threadIdx.x % 32, n = lane / 8, t = lane % 4;
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) {
      float sums[2 * kColumns];
#pragma unroll
      for (int i = 0; i < 2 * kColumns; ++i) {
        sums[i] = FastExp2(c[m][i / 2][i % 2] - log_sums[m][0]) +
                  FastExp2(c[m][i / 2][2 + i % 2] - log_sums[m][1]);
      }
      float sum = SumSixteen(sums);
      if (place == 0 && lane == 0) sum = -INFINITY;  // no window's place
      float own = fmaxf(sum, __shfl_xor_sync(~0u, sum, 4));
      own = fmaxf(own, __shfl_xor_sync(~0u, own, 1));
      // The first place behind the block; of the group's last one that is the next group's, which
      // the block before this group waits for.
      const float behind = __shfl_sync(~0u, sum, t < 2 ? n * 8 + 2 : (n * 8 + 8) % 32);
      const bool is_waiting = n == kColumns - 1 && t >= 2;
      const float block = fmaxf(is_waiting ? pending[m] : own, behind);
      pending[m] = own;
      const bool is_writer = lane % 8 == 0 || lane % 8 == 2;
      if (is_writer && rows.token[m][0] >= 0 && !(is_waiting ? is_first : is_last)) {
        const int index = place / kBlockWindows + (is_waiting ? -1 : n * 2 + t / 2);
        slab.scores[List(rows.token[m][0]) * slab.block_stride + index] = block;
      }
    }
  }

  // A group's scores to blocks: completes and writes those of the group before, if is_next.
  __device__ void PoolGroup(const float (&c)[kWarpTiles][kColumns][4], int place,
                            const float (&log_sums)[kWarpTiles][2], bool is_next,
                            BlockPool (&pools)[kWarpTiles][2]) const {
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float left[kColumns], right[kColumns];
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          left[n] = c[m][n][2 * r];
          right[n] = c[m][n][2 * r + 1];
          if constexpr (kWalk == Walk::kSumHeads) {
            left[n] = FastExp2(left[n] - log_sums[m][r]);
            right[n] = FastExp2(right[n] - log_sums[m][r]);
            for (int distance = 4; distance < 4 * slab.group; distance *= 2) {
              left[n] += __shfl_xor_sync(~0u, left[n], distance);
              right[n] += __shfl_xor_sync(~0u, right[n], distance);
            }
          }
        }
        if (place == 0 && threadIdx.x % 4 == 0) left[0] = -INFINITY;  // no window's place
        pools[m][r].Complete(left[0]);
        if (is_next) WriteBlocks(m, r, place - kGroupPlaces, pools[m][r]);
        pools[m][r].Pool(left, right);
      }
    }
  }

  __device__ void WriteBlocks(int m, int r, int place, const BlockPool& pool) const {
    if (rows.token[m][r] < 0 || rows.head[m][r] != 0) return;  // heads have the same sums
    float* to = slab.scores + List(rows.token[m][r]) * slab.block_stride + place / kBlockWindows;
    reinterpret_cast<float2*>(to)[threadIdx.x % 4] = {pool.first, pool.second};
  }
};

// grid: (tiles, kv heads, ranges).
template <class T, int kKeyDim, Walk kWalk>
__global__ void __launch_bounds__(kThreads, 2)
    PrefillScoreKernel(SelectBlocksParams params, Slab slab) {
  WaitForPrevious();
  __shared__ KeyTiles<kKeyDim> keys;
  const TokenTile tile = FindTile(params, slab, blockIdx.x);
  if (tile.count == 0) return;
  const SelectSegment segment = params.segments[tile.segment];
  const SelectRow last = SelectRowAt(params, segment, tile.first + tile.count - 1);
  if (last.blocks > slab.block_stride) __trap();
  if (last.blocks <= segment.budget.top_k) return;
  constexpr bool kSixteen = kWalk == Walk::kSumSixteen;
  constexpr int kRange = kWalk == Walk::kProduct ? kProductRange : kSoftmaxRange;
  const int begin = blockIdx.z * kRange;
  // Blocks' last places are those behind them: one group more.
  const int end = min(EndScoredPlace(params, last),
                      begin + kRange + (kWalk == Walk::kNormalise ? 0 : kGroupPlaces));
  if (begin >= end) return;
  const ScoreTile<T, kKeyDim, kWalk> work{params,
                                          slab,
                                          segment,
                                          tile,
                                          static_cast<int>(blockIdx.y),
                                          static_cast<int>(blockIdx.z),
                                          RowsOfLane(params, slab, tile)};
  const std::byte* const* pages = KeyPagesOf(params, segment, work.kv_head);
  const auto tile_at = [&](int place) {
    return pages[place / params.keys_per_page] + place % params.keys_per_page * (kKeyDim * 2);
  };
  keys.Load(0, tile_at(begin));
  const std::byte* next = begin + kKeyTile < end ? tile_at(begin + kKeyTile) : nullptr;

  QueryFragments<T, kKeyDim> q;
  const float factor = kWalk == Walk::kProduct ? 1.0f : params.scale * kLog2E;
  const bool is_aligned =
      params.q_stride % 2 == 0 && reinterpret_cast<uintptr_t>(params.q) % 8 == 0;
#pragma unroll
  for (int m = 0; m < kWarpTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int token = work.rows.token[m][r];
      const float* from =
          token < 0
              ? nullptr
              : params.q + int64_t{segment.rows.first_row + tile.first + token} * params.q_stride +
                    (work.kv_head * params.heads_per_group + work.rows.head[m][r]) * kKeyDim;
      LoadQueryRow<T, kKeyDim>(from, is_aligned, factor, m, r, q);
    }
  }
  const int end_unmasked = SelectRowAt(params, segment, tile.first).end_visible;
  LaneNorm norms[kWarpTiles][2];
  BlockPool pools[kWarpTiles][2];
  float log_sums[kWarpTiles][2];
  float pending[kWarpTiles];
#pragma unroll
  for (float& block : pending) block = -INFINITY;
  if constexpr (kWalk == Walk::kSumHeads || kSixteen) work.ReadNorms(log_sums);

  int stage = 0;
  for (int first = begin; first < end; first += kKeyTile) {
    WaitForCopies();
    __syncthreads();
    if (next != nullptr) {
      keys.Load(stage ^ 1, next);
      next = first + 2 * kKeyTile < end ? tile_at(first + 2 * kKeyTile) : nullptr;
    }
#pragma unroll 1
    for (int place = first; place < min(first + kKeyTile, end); place += kGroupPlaces) {
      float c[kWarpTiles][kColumns][4];
      MultiplyGroup<T, kKeyDim>(
          q, SharedAddress(keys.bytes[stage]) + (place - first) * KeyTiles<kKeyDim>::kRowBytes, c);
      if constexpr (kWalk == Walk::kNormalise) {
        work.AddNorms(c, place, end_unmasked, norms);
      } else if constexpr (kSixteen) {
        work.PoolSixteen(c, place, log_sums, place == begin, place >= begin + kRange, pending);
      } else {
        work.PoolGroup(c, place, log_sums, place > begin, pools);
      }
    }
    stage ^= 1;
  }
  if constexpr (kWalk == Walk::kNormalise) {
    work.WriteNorms(norms);
  } else if constexpr (!kSixteen) {
    const int last_group = (end - 1) / kGroupPlaces * kGroupPlaces;
    if (last_group >= begin + kRange) return;  // the next range's
#pragma unroll
    for (int m = 0; m < kWarpTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        work.WriteBlocks(m, r, last_group, pools[m][r]);
      }
    }
  }
}

// A warp a (row, kv head) of the slab; dynamic shared memory: [warps][block_stride] keys.
__global__ void PrefillChooseKernel(SelectBlocksParams params, Slab slab) {
  WaitForPrevious();
  extern __shared__ __align__(16) uint32_t all_keys[];
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int item = blockIdx.x * warps + warp;
  const int q_row = slab.first_row + item / params.num_kv_heads;
  const int kv_head = item % params.num_kv_heads;
  if (q_row >= slab.end_row) return;
  int s = 0, token = 0;
  for (;; ++s) {
    if (s == params.num_segments) return;
    token = q_row - params.segments[s].rows.first_row;
    if (token >= 0 && token < params.segments[s].rows.num_rows) break;
  }
  const SelectSegment segment = params.segments[s];
  const SelectRow row = SelectRowAt(params, segment, token);
  const int64_t list = int64_t{q_row} * params.num_kv_heads + kv_head;
  if (row.blocks <= segment.budget.top_k) {
    SelectAll<1>(params, row, list);
    return;
  }
  uint32_t* keys = all_keys + warp * slab.block_stride;
  const float* scores = slab.scores + int64_t{item} * slab.block_stride;
  const int n = (row.end + 127) / 128 * 128;
  for (int b = lane * 4; b < n; b += 128) {
    const float4 four = __ldcs(reinterpret_cast<const float4*>(scores + b));
    const float score[] = {four.x, four.y, four.z, four.w};
    uint32_t key[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      key[i] = b + i >= row.begin && b + i < row.end ? ScoreKey(score[i]) : 0;
    }
    *reinterpret_cast<uint4*>(keys + b) = {key[0], key[1], key[2], key[3]};
  }
  __syncwarp();
  TeamScratch<1> scratch;
  SelectByKeys<1>(params, segment, row, kv_head, list, keys, n, scratch);
}

int GroupOf(const SelectBlocksParams& params) {
  return static_cast<int>(std::bit_ceil(static_cast<unsigned>(params.heads_per_group)));
}

template <class T, int kKeyDim>
void Score(const SelectBlocksParams& params, const Slab& slab, cudaStream_t stream) {
  const int tile_tokens = kTileRows / slab.group;
  const int tiles =
      (slab.end_row - slab.first_row + tile_tokens - 1) / tile_tokens + params.num_segments;
  const int places = std::min(params.max_blocks, kSelectMaxBlocks) * kBlockWindows;
  const auto shape_of = [&](int range) {
    return LaunchShape{.grid = dim3(tiles, params.num_kv_heads, (places + range - 1) / range),
                       .block = dim3(kThreads)};
  };
  if (params.rule == ScoreRule::kProduct) {
    LaunchKernel(stream, shape_of(kProductRange), PrefillScoreKernel<T, kKeyDim, Walk::kProduct>,
                 params, slab);
    return;
  }
  LaunchKernel(stream, shape_of(kSoftmaxRange), PrefillScoreKernel<T, kKeyDim, Walk::kNormalise>,
               params, slab);
  LaunchKernel(stream, shape_of(kSoftmaxRange),
               slab.group == 16 ? PrefillScoreKernel<T, kKeyDim, Walk::kSumSixteen>
                                : PrefillScoreKernel<T, kKeyDim, Walk::kSumHeads>,
               params, slab);
}

template <class T>
void ScoreType(const SelectBlocksParams& params, const Slab& slab, cudaStream_t stream) {
  switch (params.key_dim) {
    case 64:
      return Score<T, 64>(params, slab, stream);
    case 96:
      return Score<T, 96>(params, slab, stream);
    case 128:
      return Score<T, 128>(params, slab, stream);
    default:
      AUGUR_CHECK(!"a key_dim that is served");
  }
}

void Choose(const SelectBlocksParams& params, const Slab& slab, cudaStream_t stream) {
  constexpr size_t kMostBytes = size_t{200} << 10;
  const size_t warp_bytes = slab.block_stride * sizeof(uint32_t);
  const int warps = static_cast<int>(std::min<size_t>(kMostBytes / warp_bytes, 8));
  const int lists = (slab.end_row - slab.first_row) * params.num_kv_heads;
  AUGUR_CUDA(cudaFuncSetAttribute(PrefillChooseKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(warps * warp_bytes)));
  LaunchKernel(stream,
               {.grid = dim3((lists + warps - 1) / warps),
                .block = dim3(warps * 32),
                .shared_bytes = warps * warp_bytes},
               PrefillChooseKernel, params, slab);
}

}  // namespace

PrefillSelection::PrefillSelection(size_t scratch_bytes) : scratch_bytes_(scratch_bytes) {
  AUGUR_CUDA(cudaMalloc(&scratch_, scratch_bytes));
}

PrefillSelection::~PrefillSelection() { cudaFree(scratch_); }

bool PrefillSelection::Serves(const SelectBlocksParams& params) {
  const int d = params.key_dim;
  return params.dtype != DType::kF32 && params.keys_per_block == kBlockWindows &&
         (d == 64 || d == 96 || d == 128);
}

void PrefillSelection::Run(const SelectBlocksParams& params, cudaStream_t stream) {
  AUGUR_CHECK(Serves(params));
  const int max_blocks = std::min(params.max_blocks, kSelectMaxBlocks);
  Slab slab{};
  slab.group = GroupOf(params);
  slab.block_stride = (max_blocks + 127) / 128 * 128;
  slab.num_ranges = (max_blocks * kBlockWindows + kSoftmaxRange - 1) / kSoftmaxRange;
  const size_t score_bytes = size_t(params.num_kv_heads) * slab.block_stride * sizeof(float);
  const size_t norm_bytes =
      params.rule == ScoreRule::kProduct
          ? 0
          : size_t(params.num_kv_heads) * slab.num_ranges * slab.group * sizeof(float2);
  const int most_rows = static_cast<int>(
      std::min<size_t>(scratch_bytes_ / (score_bytes + norm_bytes), size_t{1} << 20));
  AUGUR_CHECK(most_rows > 0);
  const int slab_rows = most_rows > kTileRows ? most_rows / kTileRows * kTileRows : most_rows;
  slab.scores = reinterpret_cast<float*>(scratch_);
  slab.norms = reinterpret_cast<float2*>(scratch_ + slab_rows * score_bytes);
  for (int row = 0; row < params.rows; row += slab_rows) {
    slab.first_row = row;
    slab.end_row = std::min(row + slab_rows, params.rows);
    if (params.dtype == DType::kBF16) {
      ScoreType<__nv_bfloat16>(params, slab, stream);
    } else {
      ScoreType<__half>(params, slab, stream);
    }
    Choose(params, slab, stream);
  }
}

}  // namespace augur::kernels
