#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/decode_page_ring.h"
#include "kernels/cuda/decode_runs.h"
#include "kernels/cuda/decode_scores.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/warp_math.h"

namespace augur::kernels {
namespace {

constexpr int kPageWarps = 4;  // that attend, kWarpKeys keys of every page each
constexpr int kWarpKeys = kBlockTokens / kPageWarps;
constexpr int kThreads = (kPageWarps + 1) * 32;  // and one warp that loads
static_assert(kWarpKeys == 16, "the depth of one m16n8k16 over keys");

constexpr int kMergeThreads = 256;
constexpr int kMergeWarps = kMergeThreads / 32;
static_assert(kMergeWarps * kJoinedRuns >= kUsualRuns, "one round for a list of usual length");
// Up to so many CTAs the merge kernel asks for partial results together with their weights, also
// for those that turn out to be folded into others: one latency less. More would read in vain what
// may have left L2.
constexpr int kMostEagerMerges = 128;
// In place of a sum of powers: this run's partial result is in that of a run before.
constexpr float kFolded = -1.0f;

// One launch: some segments of a call.
struct DecodeCall {
  PagedAttentionParams attention;
  int first_segment = 0;
  int num_segments = 0;
  int max_runs = 0;          // MaxRuns(attention.max_entries)
  float exponent_scale = 0;  // turns q k into a power of two
  // Partial results, [num_segments * num_kv_heads][max_runs][group]: a run's largest exponent and
  // its sum of powers relative to that; and behind [head_dim] its sum of V under these powers.
  float2* weights = nullptr;
  float* sums = nullptr;

  __device__ int group() const { return attention.num_q_heads / attention.num_kv_heads; }
  __device__ int num_lists() const { return num_segments * attention.num_kv_heads; }
  __device__ const AttentionSegment& SegmentOf(int list) const {
    return attention.segments[first_segment + list / attention.num_kv_heads];
  }
  __device__ int KvHeadOf(int list) const { return list % attention.num_kv_heads; }
  // Of weights, and of sums in rows of head_dim.
  __device__ size_t PartialOf(int list, int run, int head) const {
    return (size_t(list) * max_runs + run) * group() + head;
  }
  __device__ size_t OutOf(int row, int kv_head, int head, int head_dim) const {
    return (size_t(row) * attention.num_q_heads + kv_head * group() + head) * head_dim;
  }
};

template <int kHeadDim>
struct SharedMemory {
  using Ring = PageRing<kHeadDim>;
  // 4 floats behind each 32 (SumColumn): eight lanes that write at once fall on all 32 banks.
  static constexpr int kSumStride = kHeadDim + kHeadDim / 32 * 4;

  Ring ring;
  alignas(16) float sums[kPageWarps][kTileRows][kSumStride];
  float2 weights[kPageWarps][kTileRows];  // largest exponent, sum of powers
  float2 run_weights[kTileRows];          // of the warps together
  RunTable table;
};
static_assert(sizeof(SharedMemory<64>) <= 227 << 10 && sizeof(SharedMemory<96>) <= 227 << 10 &&
                  sizeof(SharedMemory<128>) <= 227 << 10,
              "what a CTA of Hopper may have");

// Of a row of sums.
__device__ inline int SumColumn(int column) { return column + column / 32 * 4; }

// Which thread reads which part of a page's plain rows, so that few fall on the same banks: the
// hardware's layout leaves free which element of K's rows is which of a product's depth
// (decode_scores.h), and which column of V is which of its columns. Warp w has keys 16 w + 8 n + c
// in column c of its key tiles n = 0, 1. A thread takes 8 bytes of V, columns 4 (g kParts + i) and
// following, as column g of tiles 4 i to 4 i + 3.
//
// What a warp has gathered of a run over its own keys: lane 4 g + t holds rows g and g + 8 of the
// tile, and of each tile of V the columns 2 t and 2 t + 1.
template <int kHeadDim>
struct WarpState {
  static constexpr int kParts = kHeadDim / 32;

  float sums[kHeadDim / 8][4];
  float largest[2];  // the same in the four lanes of a row
  float total[2];    // of this lane's keys
};

// An exponent that may be subtracted from -inf: nothing seen yet counts as 0.
__device__ inline float FiniteBase(float largest) { return largest == -INFINITY ? 0.0f : largest; }

template <class T, int kHeadDim>
__device__ inline void LoadListQueries(const DecodeCall& call, int list,
                                       uint32_t (&queries)[kHeadDim / 16][4]) {
  LoadQueries<T, kHeadDim>(
      call.attention.q + size_t(call.SegmentOf(list).rows.first_row) * call.attention.q_stride +
          size_t(call.KvHeadOf(list)) * call.group() * kHeadDim,
      call.group(), queries);
}

// Zeros over the warp's own V rows from key `end` on, whose bytes may be NaN: a weight of 0 would
// not silence them.
template <int kHeadDim>
__device__ inline void ClearValuesFrom(int end, int warp, typename PageRing<kHeadDim>::Page& page) {
  using Ring = PageRing<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;
  for (int i = threadIdx.x % 32; i < kWarpKeys * kChunks; i += 32) {
    const int key = warp * kWarpKeys + i / kChunks;
    if (key < end) continue;
    *reinterpret_cast<uint4*>(page.bytes + Ring::ValueOffset(key) + i % kChunks * 16) =
        make_uint4(0, 0, 0, 0);
  }
  FenceBeforeBulkCopies();
  __syncwarp();
}

// Exponents of the tile's rows over the warp's keys.
template <class T, int kHeadDim>
__device__ inline void ScoreKeys(const typename PageRing<kHeadDim>::Page& page, int warp,
                                 float scale, const uint32_t (&queries)[kHeadDim / 16][4],
                                 float (&scores)[2][4]) {
  const int g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const int key = warp * kWarpKeys + n * 8 + g;
    ScoreEightKeys<T, kHeadDim>(page.bytes + PageRing<kHeadDim>::KeyOffset(key), queries, scale,
                                scores[n]);
  }
}

// Keys from `end` on weigh nothing.
__device__ inline void MaskFrom(int end, int warp, float (&scores)[2][4]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = warp * kWarpKeys + n * 8 + 2 * t + i % 2;
      if (key >= end) scores[n][i] = -INFINITY;
    }
  }
}

// Turns the exponents into weights, relative to the largest so far, to which the state is brought.
template <int kHeadDim>
__device__ inline void WeighKeys(float (&scores)[2][4], WarpState<kHeadDim>& state) {
  float rescale[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float& s0 = scores[0][2 * half];
    float& s1 = scores[0][2 * half + 1];
    float& s2 = scores[1][2 * half];
    float& s3 = scores[1][2 * half + 1];
    float largest = fmaxf(fmaxf(s0, s1), fmaxf(s2, s3));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
    largest = fmaxf(largest, state.largest[half]);
    const float base = FiniteBase(largest);
    rescale[half] = FastExp2(state.largest[half] - base);
    state.largest[half] = largest;
    s0 = FastExp2(s0 - base);
    s1 = FastExp2(s1 - base);
    s2 = FastExp2(s2 - base);
    s3 = FastExp2(s3 - base);
    state.total[half] = state.total[half] * rescale[half] + ((s0 + s1) + (s2 + s3));
  }
  // Usually no row has a new largest: the products with 1 would change nothing.
  if (!__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f)) return;
#pragma unroll
  for (int tile = 0; tile < kHeadDim / 8; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state.sums[tile][i] *= rescale[i / 2];
  }
}

// Adds to four tiles of V; words[k] holds the thread's four columns of key 2 t + k % 2 + k / 2 * 8.
template <class T>
__device__ inline void AddFourTiles(const uint32_t (&p)[4], const uint2 (&words)[4],
                                    float (*tiles)[4]) {
  constexpr unsigned kLow = 0x5410, kHigh = 0x7632;  // halves of a pair of words
  MultiplyAdd<T>(tiles[0], p, __byte_perm(words[0].x, words[1].x, kLow),
                 __byte_perm(words[2].x, words[3].x, kLow));
  MultiplyAdd<T>(tiles[1], p, __byte_perm(words[0].x, words[1].x, kHigh),
                 __byte_perm(words[2].x, words[3].x, kHigh));
  MultiplyAdd<T>(tiles[2], p, __byte_perm(words[0].y, words[1].y, kLow),
                 __byte_perm(words[2].y, words[3].y, kLow));
  MultiplyAdd<T>(tiles[3], p, __byte_perm(words[0].y, words[1].y, kHigh),
                 __byte_perm(words[2].y, words[3].y, kHigh));
}

template <class T, int kHeadDim>
__device__ inline void AddValues(const typename PageRing<kHeadDim>::Page& page, int warp,
                                 const float (&weights)[2][4], WarpState<kHeadDim>& state) {
  constexpr int kParts = WarpState<kHeadDim>::kParts;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // The layout of a product's result is that of a left side: columns of tile 0, then of tile 1.
  const uint32_t p[4] = {
      PackPair<T>(weights[0][0], weights[0][1]), PackPair<T>(weights[0][2], weights[0][3]),
      PackPair<T>(weights[1][0], weights[1][1]), PackPair<T>(weights[1][2], weights[1][3])};
  const std::byte* columns =
      page.bytes + PageRing<kHeadDim>::ValueOffset(warp * kWarpKeys + 2 * t) + g * kParts * 8;
  const auto load = [&](int part, uint2(&words)[4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      words[k] = *reinterpret_cast<const uint2*>(
          columns + (k % 2 + k / 2 * 8) * PageRing<kHeadDim>::kRowBytes + part * 8);
    }
  };
  // Rows of equal rank fall on the same banks: odd threads read the two parts of a pair in the
  // other order, so that two instead of four wait for each other.
  const int swap = t % 2;
  constexpr int kPairs = kParts / 2;
#pragma unroll
  for (int pair = 0; pair < kPairs; ++pair) {
    uint2 one[4], other[4];
    load(2 * pair + swap, one);
    load(2 * pair + 1 - swap, other);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint2 low = one[k], high = other[k];
      one[k] = make_uint2(swap ? high.x : low.x, swap ? high.y : low.y);
      other[k] = make_uint2(swap ? low.x : high.x, swap ? low.y : high.y);
    }
    AddFourTiles<T>(p, one, &state.sums[8 * pair]);
    AddFourTiles<T>(p, other, &state.sums[8 * pair + 4]);
  }
  if constexpr (kParts % 2 == 1) {
    uint2 words[4];
    load(kParts - 1, words);
    AddFourTiles<T>(p, words, &state.sums[4 * (kParts - 1)]);
  }
}

__device__ inline void StoreOut(const PagedAttentionParams& params, size_t index, float4 value) {
  switch (params.out_dtype) {
    case DType::kF32:
      *reinterpret_cast<float4*>(static_cast<float*>(params.out) + index) = value;
      return;
    case DType::kBF16:
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(params.out) + index) = make_uint2(
          PackPair<__nv_bfloat16>(value.x, value.y), PackPair<__nv_bfloat16>(value.z, value.w));
      return;
    case DType::kF16:
      *reinterpret_cast<uint2*>(static_cast<__half*>(params.out) + index) =
          make_uint2(PackPair<__half>(value.x, value.y), PackPair<__half>(value.z, value.w));
      return;
  }
}

// Among the warps that attend; the warp that loads is far ahead and takes no part.
__device__ inline void SynchronizePageWarps() {
  asm volatile("bar.sync 1, %0;" ::"n"(kPageWarps * 32) : "memory");
}

// A partial result of a row: largest exponent, sum of powers relative to it, and four columns of
// the sum of V under these powers.
struct Partial {
  float2 weight;
  float4 sum;
};
__device__ inline Partial NoPartial() {
  return {make_float2(-INFINITY, 0.0f), make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
}

// Both kernels fold, with the same bits: so nothing is left to the compiler's contraction.
__device__ inline void Fold(const Partial& next, Partial& into) {
  const float largest = fmaxf(into.weight.x, next.weight.x);
  const float base = FiniteBase(largest);
  const float a = FastExp2(into.weight.x - base), b = FastExp2(next.weight.x - base);
  into.weight = make_float2(largest, __fmaf_rn(into.weight.y, a, __fmul_rn(next.weight.y, b)));
  into.sum.x = __fmaf_rn(into.sum.x, a, __fmul_rn(next.sum.x, b));
  into.sum.y = __fmaf_rn(into.sum.y, a, __fmul_rn(next.sum.y, b));
  into.sum.z = __fmaf_rn(into.sum.z, a, __fmul_rn(next.sum.z, b));
  into.sum.w = __fmaf_rn(into.sum.w, a, __fmul_rn(next.sum.w, b));
}

// The warps' shares of `weights` and, for a list of one run, the division by the sum.
__device__ inline float ScaleOfWarp(const ListRun& run, int warp, int row,
                                    const float2 (&weights)[kPageWarps][kTileRows],
                                    float2 (&run_weights)[kTileRows]) {
  float largest = -INFINITY;
#pragma unroll
  for (int w = 0; w < kPageWarps; ++w) largest = fmaxf(largest, weights[w][row].x);
  const float base = FiniteBase(largest);
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kPageWarps; ++w) {
    total += weights[w][row].y * FastExp2(weights[w][row].x - base);
  }
  if (warp == 0 && threadIdx.x % 4 == 0) run_weights[row] = make_float2(largest, total);
  const float scale = FastExp2(weights[warp][row].x - base);
  return run.num_runs == 1 ? scale / total : scale;
}

// Adds up the warps' states in their order, in shared memory.
//
// Two barriers a run are enough: `weights` is written again only by threads that have passed the
// second, behind all reads; `sums` and `run_weights` only by those that have passed the next run's
// first.
template <int kHeadDim>
__device__ inline void ShareStates(const DecodeCall& call, const ListRun& run, int warp,
                                   WarpState<kHeadDim>& state, SharedMemory<kHeadDim>& shared) {
  constexpr int kParts = WarpState<kHeadDim>::kParts;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float total = state.total[half];
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    if (t == 0) shared.weights[warp][g + 8 * half] = make_float2(state.largest[half], total);
  }
  SynchronizePageWarps();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = g + 8 * half;
    if (row >= call.group()) continue;
    const float scale = ScaleOfWarp(run, warp, row, shared.weights, shared.run_weights);
#pragma unroll
    for (int i = 0; i < 2 * kParts; ++i) {
      const int part = i / 2, side = i % 2, at = 2 * half + side;
      const float(*tiles)[4] = &state.sums[4 * part];
      *reinterpret_cast<float4*>(
          &shared.sums[warp][row][SumColumn(4 * ((2 * t + side) * kParts + part))]) =
          make_float4(tiles[0][at] * scale, tiles[1][at] * scale, tiles[2][at] * scale,
                      tiles[3][at] * scale);
    }
  }
  SynchronizePageWarps();
}

// What becomes of a run's result: is it folded into the runs' before it, and are those together
// (its own alone, otherwise) written?
struct RunEnd {
  bool is_folded;
  bool is_written;
  int slot;  // the run under which it is written
};

// A CTA's first run may be in the middle of joined runs: then each is written, to be folded later.
__device__ inline RunEnd EndOfRun(const ListRun& run, const ListRun* next, int first_of_list) {
  const int first_joined = run.index / kJoinedRuns * kJoinedRuns;
  if (first_joined < first_of_list) return {false, true, run.index};
  const bool goes_on =
      next != nullptr && next->list == run.list && (run.index + 1) % kJoinedRuns != 0;
  return {run.index > first_joined, !goes_on, first_joined};
}

// Writes rows: out, where the list has one run only, else partial results. A warp has rows warp,
// warp + kPageWarps, ..., a lane four columns.
template <int kHeadDim>
__device__ inline void FinishRun(const DecodeCall& call, const ListRun& run, const RunEnd& end,
                                 int warp, SharedMemory<kHeadDim>& shared,
                                 Partial (&joined)[kTileRows / kPageWarps]) {
  const int lane = threadIdx.x % 32;
  if (lane >= kHeadDim / 4) return;
#pragma unroll
  for (int i = 0; i < kTileRows / kPageWarps; ++i) {
    const int row = warp + i * kPageWarps;
    if (row >= call.group()) break;
    Partial own = {shared.run_weights[row], make_float4(0.0f, 0.0f, 0.0f, 0.0f)};
#pragma unroll
    for (int w = 0; w < kPageWarps; ++w) {
      const float4 part =
          *reinterpret_cast<const float4*>(&shared.sums[w][row][SumColumn(lane * 4)]);
      own.sum.x += part.x, own.sum.y += part.y, own.sum.z += part.z, own.sum.w += part.w;
    }
    if (run.num_runs == 1) {
      const int first_row = call.SegmentOf(run.list).rows.first_row;
      StoreOut(call.attention,
               call.OutOf(first_row, call.KvHeadOf(run.list), row, kHeadDim) + lane * 4, own.sum);
      continue;
    }
    if (end.is_folded) {
      Fold(own, joined[i]);
      if (lane == 0) {
        call.weights[call.PartialOf(run.list, run.index, row)] = make_float2(0.0f, kFolded);
      }
    } else {
      joined[i] = own;
    }
    if (!end.is_written) continue;
    const size_t partial = call.PartialOf(run.list, end.slot, row);
    if (lane == 0) call.weights[partial] = joined[i].weight;
    *reinterpret_cast<float4*>(call.sums + partial * kHeadDim + lane * 4) = joined[i].sum;
  }
}

template <class T, int kHeadDim>
__device__ inline void AttendEntries(const DecodeCall& call, const ListRun& run, int warp,
                                     const uint32_t (&queries)[kHeadDim / 16][4],
                                     typename PageRing<kHeadDim>::Place& place,
                                     PageRing<kHeadDim>& ring, WarpState<kHeadDim>& state) {
#pragma unroll
  for (int tile = 0; tile < kHeadDim / 8; ++tile) {
#pragma unroll
    for (int i = 0; i < 4; ++i) state.sums[tile][i] = 0.0f;
  }
  state.largest[0] = state.largest[1] = -INFINITY;
  state.total[0] = state.total[1] = 0.0f;
  for (int entry = 0; entry < run.num_entries; ++entry) {
    auto& page = ring.WaitFull(place);
    const int end = entry + 1 == run.num_entries ? run.last_keys : kBlockTokens;
    if (end < kBlockTokens) ClearValuesFrom<kHeadDim>(end, warp, page);
    float scores[2][4];
    ScoreKeys<T, kHeadDim>(page, warp, call.exponent_scale, queries, scores);
    if (end < kBlockTokens) MaskFrom(end, warp, scores);
    WeighKeys<kHeadDim>(scores, state);
    AddValues<T, kHeadDim>(page, warp, scores, state);
    ring.Release(place);
    place.Advance();
  }
}

template <class T, int kHeadDim>
__device__ inline void AttendRuns(const DecodeCall& call, RunWalk walk,
                                  SharedMemory<kHeadDim>& shared) {
  const int warp = threadIdx.x / 32;
  typename PageRing<kHeadDim>::Place place;
  uint32_t queries[kHeadDim / 16][4];
  int queries_list = -1, first_of_list = 0;
  Partial joined[kTileRows / kPageWarps];
#pragma unroll
  for (Partial& partial : joined) partial = NoPartial();
  ListRun run, next;
  bool has_next = walk.Next(&next);
  while (has_next) {
    run = next;
    if (run.list != queries_list) {
      LoadListQueries<T, kHeadDim>(call, run.list, queries);
      queries_list = run.list;
      first_of_list = run.index;
    }
    has_next = walk.Next(&next);
    const RunEnd end = EndOfRun(run, has_next ? &next : nullptr, first_of_list);
    WarpState<kHeadDim> state;
    AttendEntries<T, kHeadDim>(call, run, warp, queries, place, shared.ring, state);
    ShareStates<kHeadDim>(call, run, warp, state, shared);
    FinishRun<kHeadDim>(call, run, end, warp, shared, joined);
    __syncwarp();
  }
}

// This lane's page of the run: the entry first + lane.
__device__ inline const std::byte* LanePage(const DecodeCall& call, const ListRun& run, int first) {
  const int entry = first + threadIdx.x % 32;
  if (entry >= run.num_entries) return nullptr;
  const AttentionSegment& segment = call.SegmentOf(run.list);
  return segment
      .pages[call.attention.pages_offset + int64_t{call.KvHeadOf(run.list)} * segment.list_stride +
             run.first_entry + entry];
}

template <int kHeadDim>
__device__ inline void LoadRuns(const DecodeCall& call, RunWalk walk,
                                SharedMemory<kHeadDim>& shared) {
  typename PageRing<kHeadDim>::Place place;
  const uint64_t policy = PolicyReadOnce();
  ListRun run, next;
  // Pointers of a run are asked for while the pages of the one before are still being issued.
  bool has_next = walk.Next(&next);
  const std::byte* next_pages = has_next ? LanePage(call, next, 0) : nullptr;
  while (has_next) {
    run = next;
    const std::byte* pages = next_pages;
    has_next = walk.Next(&next);
    if (has_next) next_pages = LanePage(call, next, 0);
    for (int entry = 0; entry < run.num_entries; ++entry) {
      if (entry > 0 && entry % 32 == 0) pages = LanePage(call, run, entry);
      const auto address = __shfl_sync(~0u, reinterpret_cast<uint64_t>(pages), entry % 32);
      shared.ring.Load(place, reinterpret_cast<const std::byte*>(address), policy);
      place.Advance();
    }
  }
}

// Persistent: each CTA takes a share of all runs and passes from one to the next without letting
// its loads run dry.
template <class T, int kHeadDim>
__global__ __launch_bounds__(kThreads, 1) void AttendDecodeRows(const DecodeCall call) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<kHeadDim>*>(shared_bytes);
  if (threadIdx.x == 0) shared.ring.Init(kPageWarps);
  WaitForPreviousFirst();
  const int num_lists = call.num_lists();
  for (int list = threadIdx.x; list < num_lists; list += kThreads) {
    const ListEnd end = EndOfList(call.SegmentOf(list), call.KvHeadOf(list));
    if (NumRuns(end.entries) > call.max_runs) __trap();  // longer than max_entries: no scratch
    shared.table.ends[list] = end;
  }
  __syncthreads();
  if (threadIdx.x < 32) shared.table.Sum(num_lists, gridDim.x);
  __syncthreads();
  const RunWalk walk(shared.table, num_lists, blockIdx.x);
  if (threadIdx.x / 32 < kPageWarps) {
    AttendRuns<T, kHeadDim>(call, walk, shared);
  } else {
    LoadRuns<kHeadDim>(call, walk, shared);
  }
}

// The joined runs from `first` on, folded: of a query head four columns a lane.
template <int kHeadDim>
__device__ inline Partial FoldRuns(const DecodeCall& call, int list, int head, int first,
                                   int num_runs, bool is_eager) {
  const int lane = threadIdx.x % 32;
  Partial runs[kJoinedRuns];
  const auto load_sum = [&](int i) {
    runs[i].sum = *reinterpret_cast<const float4*>(
        call.sums + call.PartialOf(list, first + i, head) * kHeadDim + lane * 4);
  };
#pragma unroll
  for (int i = 0; i < kJoinedRuns; ++i) {
    runs[i] = NoPartial();
    if (first + i < num_runs) runs[i].weight = call.weights[call.PartialOf(list, first + i, head)];
  }
  const bool has_column = lane < kHeadDim / 4;
  if (is_eager) {
#pragma unroll
    for (int i = 0; i < kJoinedRuns; ++i) {
      if (has_column && first + i < num_runs) load_sum(i);
    }
  } else {
#pragma unroll
    for (int i = 0; i < kJoinedRuns; ++i) {
      if (has_column && first + i < num_runs && runs[i].weight.y != kFolded) load_sum(i);
    }
  }
#pragma unroll
  for (int i = 1; i < kJoinedRuns; ++i) {
    if (first + i < num_runs && runs[i].weight.y != kFolded) Fold(runs[i], runs[0]);
  }
  return runs[0];
}

// A CTA a (query head, segment): out = the runs' sums, each under its weight, in a fixed order: the
// joined runs of a warp in ascending order, then the warps. Lists of one run have been written
// already.
template <int kHeadDim>
__global__ __launch_bounds__(kMergeThreads) void MergeDecodeRuns(const DecodeCall call) {
  // AttendDecodeRows lets this kernel go only when the segments may be read.
  const int kv_head = blockIdx.x / call.group(), head = blockIdx.x % call.group();
  const int list = blockIdx.y * call.attention.num_kv_heads + kv_head;
  const AttentionSegment& segment = call.SegmentOf(list);
  const int num_runs = NumRuns(EndOfList(segment, kv_head).entries);
  const int out_row = segment.rows.first_row;
  WaitForPrevious();
  if (num_runs <= 1) return;

  __shared__ float2 weights[kMergeWarps];
  __shared__ float4 strands[kMergeWarps][kHeadDim / 4];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const bool is_eager = gridDim.x * gridDim.y <= kMostEagerMerges;
  Partial strand = NoPartial();
  for (int first = warp * kJoinedRuns; first < num_runs; first += kMergeWarps * kJoinedRuns) {
    const Partial runs = FoldRuns<kHeadDim>(call, list, head, first, num_runs, is_eager);
    if (first < kMergeWarps * kJoinedRuns) {
      strand = runs;
    } else {
      Fold(runs, strand);
    }
  }
  if (lane == 0) weights[warp] = strand.weight;
  if (lane < kHeadDim / 4) strands[warp][lane] = strand.sum;
  __syncthreads();
  if (thread >= kHeadDim / 4) return;
  Partial all = {weights[0], strands[0][thread]};
#pragma unroll
  for (int w = 1; w < kMergeWarps; ++w) Fold({weights[w], strands[w][thread]}, all);
  const float total = all.weight.y;
  all.sum.x /= total, all.sum.y /= total, all.sum.z /= total, all.sum.w /= total;
  StoreOut(call.attention, call.OutOf(out_row, kv_head, head, kHeadDim) + thread * 4, all.sum);
}

struct DecodeKernels {
  void (*attend)(DecodeCall);
  void (*merge)(DecodeCall);
  size_t shared_bytes;
};

template <class T>
DecodeKernels KernelsOfDim(int head_dim) {
  switch (head_dim) {
    case 64:
      return {AttendDecodeRows<T, 64>, MergeDecodeRuns<64>, sizeof(SharedMemory<64>)};
    case 96:
      return {AttendDecodeRows<T, 96>, MergeDecodeRuns<96>, sizeof(SharedMemory<96>)};
    default:
      return {AttendDecodeRows<T, 128>, MergeDecodeRuns<128>, sizeof(SharedMemory<128>)};
  }
}

DecodeKernels KernelsOf(DType dtype, int head_dim) {
  return dtype == DType::kF16 ? KernelsOfDim<__half>(head_dim)
                              : KernelsOfDim<__nv_bfloat16>(head_dim);
}

bool IsAligned(const void* data, size_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

void CheckParams(const PagedAttentionParams& params) {
  AUGUR_CHECK(DecodeAttention::Serves(params));
  AUGUR_CHECK(params.phase == Phase::kDecode);
  AUGUR_CHECK(params.states == nullptr && params.first_entry == 0 && params.end_entry == INT_MAX);
  AUGUR_CHECK(params.num_segments >= 0 && params.max_entries > 0);
  AUGUR_CHECK(params.num_kv_heads <= kMaxLists);
  AUGUR_CHECK(params.q_stride >= params.num_q_heads * params.head_dim && params.q_stride % 4 == 0);
  AUGUR_CHECK(IsAligned(params.q, 16) && IsAligned(params.out, 16));
}

// Query heads, head dim of the widest model that a full set of rows is sized for.
constexpr size_t kRowScratchBytes = size_t{128} * kMaxRuns * (128 + 2) * sizeof(float);

}  // namespace

DecodeAttention::DecodeAttention(const DecodeAttentionLimits& limits)
    : limits_(limits),
      scratch_bytes_(
          std::min(limits.max_scratch_bytes, std::max(1, limits.max_rows) * kRowScratchBytes)) {
  AUGUR_CHECK(limits.num_sms > 0);
  AUGUR_CUDA(cudaMalloc(reinterpret_cast<void**>(&scratch_), scratch_bytes_));
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : {64, 96, 128}) {
      const DecodeKernels kernels = KernelsOf(dtype, head_dim);
      AUGUR_CUDA(cudaFuncSetAttribute(kernels.attend, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(kernels.shared_bytes)));
    }
  }
}

DecodeAttention::~DecodeAttention() { cudaFree(scratch_); }

bool DecodeAttention::Serves(const PagedAttentionParams& params) {
  if (params.dtype != DType::kBF16 && params.dtype != DType::kF16) return false;
  if (params.head_dim != 64 && params.head_dim != 96 && params.head_dim != 128) return false;
  if (params.num_kv_heads <= 0 || params.num_q_heads % params.num_kv_heads != 0) return false;
  const int group = params.num_q_heads / params.num_kv_heads;
  return group >= 1 && group <= kTileRows;
}

void DecodeAttention::Run(const PagedAttentionParams& params, cudaStream_t stream) {
  CheckParams(params);
  DecodeCall call;
  call.attention = params;
  call.max_runs = MaxRuns(params.max_entries);
  call.exponent_scale = params.scale * 1.44269504f;  // log2(e)
  const size_t segment_partials = size_t(params.num_q_heads) * call.max_runs;
  const size_t segment_bytes = segment_partials * (params.head_dim + 2) * sizeof(float);
  const int launch_segments = static_cast<int>(
      std::min<size_t>(kMaxLists / params.num_kv_heads,
                       call.max_runs > 1 ? scratch_bytes_ / segment_bytes : kMaxLists));
  AUGUR_CHECK(launch_segments > 0);
  const DecodeKernels kernels = KernelsOf(params.dtype, params.head_dim);
  for (int first = 0; first < params.num_segments; first += launch_segments) {
    call.first_segment = first;
    call.num_segments = std::min(launch_segments, params.num_segments - first);
    call.sums = scratch_;
    call.weights = reinterpret_cast<float2*>(scratch_ + size_t(call.num_segments) *
                                                            segment_partials * params.head_dim);
    const int64_t most_runs = int64_t{call.num_segments} * params.num_kv_heads * call.max_runs;
    const auto grid = static_cast<unsigned>(std::min<int64_t>(limits_.num_sms, most_runs));
    LaunchKernel(stream, {dim3(grid), dim3(kThreads), kernels.shared_bytes}, kernels.attend, call);
    if (call.max_runs == 1) continue;
    const dim3 merge_grid(params.num_q_heads, call.num_segments);
    LaunchKernel(stream, {merge_grid, dim3(kMergeThreads)}, kernels.merge, call);
  }
}

}  // namespace augur::kernels
