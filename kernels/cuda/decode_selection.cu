#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/decode_selection.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/select_row.h"
#include "kernels/cuda/warp_math.h"

namespace augur::kernels {
namespace {

namespace cg = cooperative_groups;

constexpr int kCtas = 8;  // of a cluster: more is not portable
constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kTilePlaces = 64;  // never across a page
// Whose scores a CTA keeps: its whole share of 131072 tokens, in the windows' form.
constexpr int kChunkTiles = 16;
constexpr int kChunkPlaces = kChunkTiles * kTilePlaces;
// Between the scores of two heads, in floats: a warp writes 8 places of 4 even heads at once, all
// to different banks.
constexpr int kScoreStride = kChunkPlaces + 4;
// Asked of L2 before they are loaded: 128 KiB a CTA at key_dim 128, some 34 MB of all that run.
constexpr int kTilesAhead = 8;
constexpr int kUnitPlaces = 16;  // of a warp's product
constexpr float kLog2E = 1.44269504088896341f;

// Largest score, and sum of the exponentials relative to it.
using Norm = float2;

struct DecodeShared {
  const std::byte* tiles[kChunkTiles];
  Norm chunk[kSelectMaxHeads];        // of the chunk whose scores are here
  Norm own[kSelectMaxHeads];          // of this CTA's chunks so far
  Norm ctas[kCtas][kSelectMaxHeads];  // of all CTAs
  Norm total[kSelectMaxHeads];        // largest score, and 1 / sum
  float unscale[kSelectMaxHeads];
  TeamScratch<kWarps> team;
};

// Dynamic shared memory, in this order.
struct DecodeBuffers {
  std::byte* q;       // two parts [heads][QStride], or float [heads][key_dim]
  float* scores;      // [heads][kScoreStride]
  float* blocks;      // [stride], in the first CTA: the largest score of each block's own places
  float* neighbours;  // [stride]: of each block the one place that a neighbour pools as well
};

// Bytes between two heads' q: two quarters of a warp's 16-byte loads fall into different halves of
// the banks.
__host__ __device__ constexpr int QStride(int key_dim) {
  return key_dim * 2 % 128 == 64 ? key_dim * 2 : key_dim * 2 + 64;
}

// kKeyDim is 0 where elements are multiplied one by one.
template <int kKeyDim, int kColumns>
__host__ __device__ constexpr int QBytes(int heads, int key_dim) {
  return kKeyDim > 0 ? 2 * 8 * kColumns * QStride(kKeyDim) : (heads * key_dim * 4 + 15) / 16 * 16;
}

struct Share {
  const std::byte* const* pages;
  SelectRow row;
  int kv_head;
  int first_tile, end_tile;  // this CTA's
};

__device__ inline bool IsVisible(const SelectRow& row, int place) {
  return place >= row.first_visible && place < row.end_visible;
}

__device__ inline const float* QueryOf(const SelectBlocksParams& params, int64_t q_row, int kv_head,
                                       int head) {
  return params.q + q_row * params.q_stride +
         (int64_t{kv_head} * params.heads_per_group + head) * params.key_dim;
}

__device__ inline float QueryFactor(const SelectBlocksParams& params) {
  return params.rule == ScoreRule::kSoftmaxSum ? params.scale * kLog2E : 1.0f;
}

__device__ inline float WarpMax(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
  }
  return value;
}

__device__ inline float WarpSum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

// Power of two that brings `largest` to [2^13, 2^14): fp16 then holds an element and its rest.
__device__ inline float HalfScale(float largest) {
  if (!(largest > 0.0f && largest < INFINITY)) return 1.0f;
  return exp2f(static_cast<float>(min(13 - ilogbf(largest), 126)));
}

// The heads' q as two parts of T each (columns without a head are 0), a warp a head.
template <class T, int kKeyDim, int kColumns>
__device__ void SplitQueries(const SelectBlocksParams& params, int64_t q_row, int kv_head,
                             std::byte* q, DecodeShared& shared) {
  const int lane = threadIdx.x % 32;
  const float factor = QueryFactor(params);
  for (int head = threadIdx.x / 32; head < 8 * kColumns; head += kWarps) {
    const bool is_head = head < params.heads_per_group;
    const float* from = is_head ? QueryOf(params, q_row, kv_head, head) : nullptr;
    float values[kKeyDim / 32];
#pragma unroll
    for (int i = 0; i < kKeyDim / 32; ++i) {
      values[i] = is_head ? from[i * 32 + lane] * factor : 0.0f;
    }
    float scale = 1.0f;
    if constexpr (std::is_same_v<T, __half>) {
      float largest = 0.0f;
#pragma unroll
      for (const float value : values) largest = fmaxf(largest, fabsf(value));
      scale = HalfScale(WarpMax(largest));
      if (lane == 0) shared.unscale[head] = 1.0f / scale;
    }
    T* high = reinterpret_cast<T*>(q + head * QStride(kKeyDim));
    T* low = reinterpret_cast<T*>(q + (8 * kColumns + head) * QStride(kKeyDim));
#pragma unroll
    for (int i = 0; i < kKeyDim / 32; ++i) {
      const float value = values[i] * scale;
      const T rounded = FromFloat<T>(value);
      high[i * 32 + lane] = rounded;
      low[i * 32 + lane] = FromFloat<T>(value - ToFloat(rounded));
    }
  }
}

// Into L2; 16 bytes and multiples of them.
__device__ inline void PrefetchTile(const std::byte* tile, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(tile), "r"(bytes) : "memory");
}

// Scores of a chunk by tensor cores. A warp takes 16 places (rows) by 8 heads a column; lane (g, t)
// loads 16 bytes of places g and g + 8 straight into the fragments of two products: which elements
// of a key are which of a product's depth is free, as long as q has them alike.
template <class T, int kKeyDim, int kColumns>
struct TensorScorer {
  static constexpr int kSlices = kKeyDim / 32;
  using Keys = uint4[kSlices][2];

  const SelectBlocksParams& params;
  const DecodeShared& shared;
  const std::byte* q;
  float* scores;
  const SelectRow& row;
  int units;
  int first_place;

  __device__ void Load(Keys& keys, int unit) const {
    if (unit >= units) return;
    const int lane = threadIdx.x % 32;
    constexpr int kPerTile = kTilePlaces / kUnitPlaces;
    const int place = unit % kPerTile * kUnitPlaces + lane / 4;
    if (const int ahead = unit / kPerTile + kTilesAhead;
        lane == 0 && unit % kPerTile == 0 && ahead * kPerTile < units) {
      PrefetchTile(shared.tiles[ahead], kTilePlaces * kKeyDim * 2);
    }
    const std::byte* key =
        shared.tiles[unit / kPerTile] + place * (kKeyDim * 2) + lane % 4 * sizeof(uint4);
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      keys[s][0] = __ldcg(reinterpret_cast<const uint4*>(key + s * 64));
      keys[s][1] = __ldcg(reinterpret_cast<const uint4*>(key + 8 * kKeyDim * 2 + s * 64));
    }
  }

  __device__ void Score(const Keys& keys, int unit) const {
    if (unit >= units) return;
    const int lane = threadIdx.x % 32;
    float c[2][2][kColumns][4] = {};  // parts of q, halves of a slice: four chains
#pragma unroll
    for (int s = 0; s < kSlices; ++s) {
      const uint4 a = keys[s][0], b = keys[s][1];
      const uint32_t even[4] = {a.x, b.x, a.y, b.y}, odd[4] = {a.z, b.z, a.w, b.w};
#pragma unroll
      for (int part = 0; part < 2; ++part) {
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          const int head = (part * kColumns + n) * 8 + lane / 4;
          const uint4 f = *reinterpret_cast<const uint4*>(q + head * QStride(kKeyDim) + s * 64 +
                                                          lane % 4 * sizeof(uint4));
          MultiplyAdd<T>(c[part][0][n], even, f.x, f.y);
          MultiplyAdd<T>(c[part][1][n], odd, f.z, f.w);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int head = n * 8 + lane % 4 * 2 + i % 2;
        const int place = unit * kUnitPlaces + lane / 4 + i / 2 * 8;
        float score = (c[0][0][n][i] + c[0][1][n][i]) + (c[1][0][n][i] + c[1][1][n][i]);
        if constexpr (std::is_same_v<T, __half>) score *= shared.unscale[head];
        if (!IsVisible(row, first_place + place)) score = -INFINITY;
        if (head < params.heads_per_group) scores[head * kScoreStride + place] = score;
      }
    }
  }

  __device__ void ScoreAll() const {
    Keys now, next;
    int unit = threadIdx.x / 32;
    Load(now, unit);
    for (; unit < units; unit += 2 * kWarps) {
      Load(next, unit + kWarps);
      Score(now, unit);
      Load(now, unit + 2 * kWarps);
      Score(next, unit + kWarps);
    }
  }
};

// Likewise one chain of FMA over key_dim for each (place, head), a thread a place.
template <class T>
__device__ void ScoreOneByOne(const SelectBlocksParams& params, const DecodeShared& shared,
                              const SelectRow& row, const float* q, int first_place, int places,
                              float* scores) {
  for (int place = threadIdx.x; place < places; place += kThreads) {
    const bool is_visible = IsVisible(row, first_place + place);
    const T* key = reinterpret_cast<const T*>(shared.tiles[place / kTilePlaces]) +
                   place % kTilePlaces * params.key_dim;
    for (int head = 0; head < params.heads_per_group; ++head) {
      float score = 0.0f;
      if (is_visible) {
        for (int c = 0; c < params.key_dim; ++c) {
          score = fmaf(ToFloat(key[c]), q[head * params.key_dim + c], score);
        }
      }
      scores[head * kScoreStride + place] = is_visible ? score : -INFINITY;
    }
  }
}

// Where the tiles of a chunk lie; the first ones are asked for.
template <class T>
__device__ void FindTiles(const SelectBlocksParams& params, const Share& share, int first_tile,
                          int num_tiles, DecodeShared& shared) {
  const int i = threadIdx.x;
  if (i >= num_tiles) return;
  const int place = (first_tile + i) * kTilePlaces;
  const int key_bytes = params.key_dim * static_cast<int>(sizeof(T));
  const std::byte* tile =
      share.pages[place / params.keys_per_page] + int64_t{place % params.keys_per_page} * key_bytes;
  shared.tiles[i] = tile;
  if (i < kTilesAhead && key_bytes % 16 == 0) PrefetchTile(tile, kTilePlaces * key_bytes);
}

// Scores of the `num_tiles` found, minus infinity where they are not visible.
template <class T, int kKeyDim, int kColumns>
__device__ void ScoreChunk(const SelectBlocksParams& params, const Share& share, int first_tile,
                           int num_tiles, const DecodeBuffers& buffers, DecodeShared& shared) {
  __syncthreads();
  const int first_place = first_tile * kTilePlaces, places = num_tiles * kTilePlaces;
  if constexpr (kKeyDim > 0) {
    TensorScorer<T, kKeyDim, kColumns>{
        params, shared, buffers.q, buffers.scores, share.row, places / kUnitPlaces, first_place}
        .ScoreAll();
  } else {
    ScoreOneByOne<T>(params, shared, share.row, reinterpret_cast<const float*>(buffers.q),
                     first_place, places, buffers.scores);
  }
  __syncthreads();
}

// Scores become exponentials relative to the chunk's largest score, which shared.chunk keeps with
// their sum. A warp a head.
__device__ void ExponentiateChunk(int heads, int places, float* scores, DecodeShared& shared) {
  constexpr int kVectors = kChunkPlaces / 128;
  const int lane = threadIdx.x % 32;
  for (int head = threadIdx.x / 32; head < heads; head += kWarps) {
    float4* row = reinterpret_cast<float4*>(scores + head * kScoreStride);
    float4 s[kVectors];
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int vector = i * 32 + lane;
      s[i] = vector * 4 < places ? row[vector] : float4{-INFINITY, -INFINITY, -INFINITY, -INFINITY};
      largest = fmaxf(fmaxf(fmaxf(s[i].x, s[i].y), fmaxf(s[i].z, s[i].w)), largest);
    }
    largest = WarpMax(largest);
    const float base = largest == -INFINITY ? 0.0f : largest;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int vector = i * 32 + lane;
      const float4 e{FastExp2(s[i].x - base), FastExp2(s[i].y - base), FastExp2(s[i].z - base),
                     FastExp2(s[i].w - base)};
      sum += (e.x + e.y) + (e.z + e.w);
      if (vector * 4 < places) row[vector] = e;
    }
    sum = WarpSum(sum);
    if (lane == 0) shared.chunk[head] = {largest, sum};
  }
  __syncthreads();
}

__device__ inline Norm FoldNorms(const Norm& a, const Norm& b) {
  const float largest = fmaxf(a.x, b.x);
  const float base = largest == -INFINITY ? 0.0f : largest;
  return {largest, a.y * FastExp2(a.x - base) + b.y * FastExp2(b.x - base)};
}

// The norms of all CTAs, in ascending order.
__device__ void ExchangeNorms(int heads, DecodeShared& shared) {
  const cg::cluster_group cluster = cg::this_cluster();
  const int head = threadIdx.x % kSelectMaxHeads, rank = threadIdx.x / kSelectMaxHeads;
  if (rank < kCtas && head < heads) {
    *cluster.map_shared_rank(&shared.ctas[cluster.block_rank()][head], rank) = shared.own[head];
  }
  cluster.sync();
  if (static_cast<int>(threadIdx.x) < heads) {
    Norm norms[kCtas];
    float largest = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int r = 0; r < kCtas; ++r) {
      norms[r] = shared.ctas[r][threadIdx.x];
      largest = fmaxf(largest, norms[r].x);
    }
    const float base = largest == -INFINITY ? 0.0f : largest;
#pragma unroll
    for (int r = 0; r < kCtas; ++r) sum += norms[r].y * FastExp2(norms[r].x - base);
    shared.total[threadIdx.x] = {largest, 1.0f / sum};
  }
  __syncthreads();
}

// Exponentials of all heads -> the places' scores, in the first head's place.
__device__ void SumHeads(int heads, int places, float* scores, DecodeShared& shared) {
  float shares[kSelectMaxHeads];
#pragma unroll
  for (int h = 0; h < kSelectMaxHeads; ++h) {
    shares[h] = h < heads ? FastExp2(shared.chunk[h].x - shared.total[h].x) * shared.total[h].y : 0;
  }
  for (int vector = threadIdx.x; vector * 4 < places; vector += kThreads) {
    float4 sum{};
#pragma unroll
    for (int h = 0; h < kSelectMaxHeads; ++h) {
      if (h >= heads) break;
      const float4 e = *reinterpret_cast<const float4*>(scores + h * kScoreStride + vector * 4);
      sum.x = fmaf(e.x, shares[h], sum.x);
      sum.y = fmaf(e.y, shares[h], sum.y);
      sum.z = fmaf(e.z, shares[h], sum.z);
      sum.w = fmaf(e.w, shares[h], sum.w);
    }
    reinterpret_cast<float4*>(scores)[vector] = sum;
  }
  __syncthreads();
}

// Pools the chunk's places to blocks, in the first CTA's memory.
__device__ void PoolChunk(const SelectBlocksParams& params, const SelectRow& row, int first_place,
                          int places, const float* scores, const DecodeBuffers& buffers) {
  const cg::cluster_group cluster = cg::this_cluster();
  float* blocks = cluster.map_shared_rank(buffers.blocks, 0);
  float* neighbours = cluster.map_shared_rank(buffers.neighbours, 0);
  const auto score_at = [&](int place) {
    return IsVisible(row, first_place + place) ? scores[place] : -INFINITY;
  };
  if (params.keys_per_block == kBlockWindows) {
    for (int b = threadIdx.x; b * kBlockWindows < places; b += kThreads) {
      float largest = -INFINITY;
#pragma unroll
      for (int i = 0; i < kBlockWindows; ++i) {
        largest = fmaxf(largest, score_at(b * kBlockWindows + i));
      }
      const int block = first_place / kBlockWindows + b;
      blocks[block] = largest;
      neighbours[block] = score_at(b * kBlockWindows);  // the block before pools it
    }
    return;
  }
  const int lane = threadIdx.x % 32;
  for (int tile = threadIdx.x / 32; tile * kTilePlaces < places; tile += kWarps) {
    const float last = score_at(tile * kTilePlaces + lane + 32);
    const float largest =
        WarpMax(fmaxf(fmaxf(score_at(tile * kTilePlaces + lane), last), -INFINITY));
    const int block = first_place / kTilePlaces + tile;
    if (lane == 0) blocks[block] = largest;
    if (lane == 31) neighbours[block] = last;  // the block behind pools it
  }
}

// In the first CTA: the blocks' scores become keys, and the choice is made.
__device__ void ChooseFromCluster(const SelectBlocksParams& params, const SelectSegment& segment,
                                  const Share& share, int64_t list, const DecodeBuffers& buffers,
                                  DecodeShared& shared) {
  constexpr int kStep = 128 * kWarps;
  const SelectRow& row = share.row;
  const int n = (row.end + kStep - 1) / kStep * kStep;
  uint32_t* keys = reinterpret_cast<uint32_t*>(buffers.blocks);
  for (int b = threadIdx.x; b < n; b += kThreads) {
    uint32_t key = 0;
    if (b >= row.begin && b < row.end) {
      float score = buffers.blocks[b];
      if (params.keys_per_block == kBlockWindows) {
        score = fmaxf(score, buffers.neighbours[b + 1]);
      } else if (b > 0) {
        score = fmaxf(score, buffers.neighbours[b - 1]);
      }
      key = ScoreKey(score);
    }
    keys[b] = key;
  }
  __syncthreads();
  SelectByKeys<kWarps>(params, segment, row, share.kv_head, list, keys, n, shared.team);
}

template <class T, int kKeyDim, int kColumns>
__device__ DecodeBuffers LayOut(std::byte* bytes, int heads, int key_dim, int block_stride) {
  DecodeBuffers buffers;
  buffers.q = bytes;
  buffers.scores = reinterpret_cast<float*>(bytes + QBytes<kKeyDim, kColumns>(heads, key_dim));
  buffers.blocks = buffers.scores + heads * kScoreStride;
  buffers.neighbours = buffers.blocks + block_stride;
  return buffers;
}

template <int kKeyDim, int kColumns>
size_t BufferBytes(int heads, int key_dim, int block_stride) {
  return QBytes<kKeyDim, kColumns>(heads, key_dim) +
         sizeof(float) * (size_t(heads) * kScoreStride + 2 * size_t(block_stride));
}

// In Phase::kDecode item i is segment i; otherwise row i, of whatever segment. False: nobody's.
__device__ bool FindRow(const SelectBlocksParams& params, int item, int* segment, int* token) {
  if (params.phase == Phase::kDecode) {
    *segment = item;
    *token = 0;
    const int num_rows = params.segments[item].rows.num_rows;
    if (num_rows > 1) __trap();
    return num_rows == 1;
  }
  for (*segment = 0; *segment < params.num_segments; ++*segment) {
    const Segment& rows = params.segments[*segment].rows;
    *token = item - rows.first_row;
    if (*token >= 0 && *token < rows.num_rows) return true;
  }
  return false;
}

template <class T, int kKeyDim, int kColumns>
__global__ void __cluster_dims__(kCtas, 1, 1) __launch_bounds__(kThreads, 2)
    DecodeSelectionKernel(SelectBlocksParams params, int block_stride) {
  WaitForPrevious();
  int segment_index = 0, token = 0;
  if (!FindRow(params, blockIdx.y, &segment_index, &token)) return;
  const SelectSegment segment = params.segments[segment_index];
  const int kv_head = blockIdx.z, heads = params.heads_per_group;
  const int64_t q_row = int64_t{segment.rows.first_row} + token;
  const int64_t list = q_row * params.num_kv_heads + kv_head;
  cg::cluster_group cluster = cg::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  Share share{KeyPagesOf(params, segment, kv_head), SelectRowAt(params, segment, token), kv_head, 0,
              0};
  if (share.row.blocks > block_stride) __trap();
  if (share.row.blocks <= segment.budget.top_k) {
    if (rank == 0) SelectAll<kWarps>(params, share.row, list);
    return;
  }
  cluster.barrier_arrive();  // waited for below: before others' memory is written, all must run
  extern __shared__ __align__(16) std::byte bytes[];
  __shared__ DecodeShared shared;
  const DecodeBuffers buffers =
      LayOut<T, kKeyDim, kColumns>(bytes, heads, params.key_dim, block_stride);
  const int tiles = (EndScoredPlace(params, share.row) + kTilePlaces - 1) / kTilePlaces;
  const int tiles_a_cta = (tiles + kCtas - 1) / kCtas;
  share.first_tile = min(rank * tiles_a_cta, tiles);
  share.end_tile = min(share.first_tile + tiles_a_cta, tiles);

  const auto tiles_from = [&](int tile) { return min(kChunkTiles, share.end_tile - tile); };
  FindTiles<T>(params, share, share.first_tile, tiles_from(share.first_tile), shared);
  if constexpr (kKeyDim > 0) {
    SplitQueries<T, kKeyDim, kColumns>(params, q_row, kv_head, buffers.q, shared);
  } else {
    const float* from = QueryOf(params, q_row, kv_head, 0);
    for (int i = threadIdx.x; i < heads * params.key_dim; i += kThreads) {
      reinterpret_cast<float*>(buffers.q)[i] = from[i] * QueryFactor(params);
    }
  }
  const bool is_softmax = params.rule == ScoreRule::kSoftmaxSum;
  // A softmax sees all chunks twice, unless the only one's exponentials are still there.
  const int end_first_pass =
      is_softmax ? share.end_tile : min(share.end_tile, share.first_tile + kChunkTiles);
  const bool is_one_chunk = share.end_tile - share.first_tile <= kChunkTiles;
  if (threadIdx.x < kSelectMaxHeads) shared.own[threadIdx.x] = {-INFINITY, 0.0f};
  for (int tile = share.first_tile; tile < end_first_pass; tile += kChunkTiles) {
    const int num_tiles = tiles_from(tile);
    if (tile > share.first_tile) FindTiles<T>(params, share, tile, num_tiles, shared);
    ScoreChunk<T, kKeyDim, kColumns>(params, share, tile, num_tiles, buffers, shared);
    if (!is_softmax) continue;
    ExponentiateChunk(heads, num_tiles * kTilePlaces, buffers.scores, shared);
    if (static_cast<int>(threadIdx.x) < heads) {
      shared.own[threadIdx.x] = FoldNorms(shared.own[threadIdx.x], shared.chunk[threadIdx.x]);
    }
  }
  __syncthreads();
  cluster.barrier_wait();
  if (is_softmax) ExchangeNorms(heads, shared);
  for (int tile = share.first_tile; tile < share.end_tile; tile += kChunkTiles) {
    const int num_tiles = tiles_from(tile), places = num_tiles * kTilePlaces;
    if (is_softmax ? !is_one_chunk : tile > share.first_tile) {
      __syncthreads();  // the chunk before
      FindTiles<T>(params, share, tile, num_tiles, shared);
      ScoreChunk<T, kKeyDim, kColumns>(params, share, tile, num_tiles, buffers, shared);
      if (is_softmax) ExponentiateChunk(heads, places, buffers.scores, shared);
    }
    if (is_softmax) SumHeads(heads, places, buffers.scores, shared);
    PoolChunk(params, share.row, tile * kTilePlaces, places, buffers.scores, buffers);
  }
  cluster.sync();
  if (rank == 0) ChooseFromCluster(params, segment, share, list, buffers, shared);
}

template <class T, int kKeyDim, int kColumns>
void Launch(const SelectBlocksParams& params, cudaStream_t stream) {
  const auto kernel = DecodeSelectionKernel<T, kKeyDim, kColumns>;
  constexpr int kStep = 128 * kWarps;
  const int max_blocks = std::min(params.max_blocks, kSelectMaxBlocks);
  const int block_stride = (max_blocks + kStep - 1) / kStep * kStep;
  const size_t bytes =
      BufferBytes<kKeyDim, kColumns>(params.heads_per_group, params.key_dim, block_stride);
  AUGUR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
  const int items = params.phase == Phase::kDecode ? params.num_segments : params.rows;
  AUGUR_CHECK(items < 1 << 16);  // of a grid's second dimension
  LaunchKernel(stream,
               {.grid = dim3(kCtas, items, params.num_kv_heads),
                .block = dim3(kThreads),
                .shared_bytes = bytes},
               kernel, params, block_stride);
}

template <class T, int kKeyDim>
void LaunchColumns(const SelectBlocksParams& params, cudaStream_t stream) {
  if (params.heads_per_group <= 8) {
    Launch<T, kKeyDim, 1>(params, stream);
  } else {
    Launch<T, kKeyDim, 2>(params, stream);
  }
}

}  // namespace

void SelectRowByRow(const SelectBlocksParams& params, cudaStream_t stream) {
  ForElementType(params.dtype, [&]<class T>() {
    if constexpr (!std::is_same_v<T, float>) {
      switch (params.key_dim) {
        case 32:
          return LaunchColumns<T, 32>(params, stream);
        case 64:
          return LaunchColumns<T, 64>(params, stream);
        case 96:
          return LaunchColumns<T, 96>(params, stream);
        case 128:
          return LaunchColumns<T, 128>(params, stream);
        default:
          break;
      }
    }
    Launch<T, 0, 1>(params, stream);
  });
}

}  // namespace augur::kernels
