#include "kernels/cuda/decode_attention.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/check.h"
#include "kernels/cuda/decode_page_ring.h"
#include "kernels/cuda/decode_runs.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace augur::kernels {
namespace {

constexpr int kTileRows = 16;  // of an mma tile: the query heads of a group, padded with zeros
constexpr int kPageWarps = 4;  // that attend, kWarpKeys keys of every page each
constexpr int kWarpKeys = kBlockTokens / kPageWarps;
constexpr int kThreads = (kPageWarps + 1) * 32;  // and one warp that loads
static_assert(kWarpKeys == 16, "the depth of one m16n8k16 over keys");

constexpr int kMergeThreads = 256;
static_assert(kMergeThreads >= kMaxRuns, "a thread a run weighs the runs");
constexpr int kMergeWarps = kMergeThreads / 32;
constexpr int kFirstSums = kUsualRuns / kMergeWarps;  // that a warp loads of a list of usual length

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
  // 8 floats behind a row: the four rows that half a warp writes at once fall on all 32 banks.
  static constexpr int kSumStride = kHeadDim + 8;

  Ring ring;
  alignas(16) float sums[kPageWarps][kTileRows][kSumStride];
  float2 weights[kPageWarps][kTileRows];  // largest exponent, sum of powers
  RunTable table;
};
static_assert(sizeof(SharedMemory<64>) <= 227 << 10 && sizeof(SharedMemory<96>) <= 227 << 10 &&
                  sizeof(SharedMemory<128>) <= 227 << 10,
              "what a CTA of Hopper may have");

// What a warp has gathered of a run over its own keys. Lane 4 g + t holds rows g and g + 8 of the
// tile, of each 8 columns of V the columns 2 t and 2 t + 1.
template <int kHeadDim>
struct WarpState {
  float sums[kHeadDim / 8][4];
  float largest[2];  // the same in the four lanes of a row
  float total[2];    // of this lane's keys
};

// 2^x, subnormal results flushed; -inf gives 0, NaN stays.
__device__ inline float PowerOfTwo(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// An exponent that may be subtracted from -inf: nothing seen yet counts as 0.
__device__ inline float FiniteBase(float largest) { return largest == -INFINITY ? 0.0f : largest; }

template <class T>
__device__ inline uint32_t PackPair(float low, float high);
template <>
__device__ inline uint32_t PackPair<__nv_bfloat16>(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
template <>
__device__ inline uint32_t PackPair<__half>(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// c += a b: a 16 x 16, b 16 x 8.
template <class T>
__device__ inline void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// The query heads of a list as the left side of the products with K.
template <class T, int kHeadDim>
__device__ inline void LoadQueries(const DecodeCall& call, int list,
                                   uint32_t (&queries)[kHeadDim / 16][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = call.group();
  const float* heads = call.attention.q +
                       size_t(call.SegmentOf(list).rows.first_row) * call.attention.q_stride +
                       size_t(call.KvHeadOf(list)) * group * kHeadDim;
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int head = g + part % 2 * 8;
      const int column = step * 16 + part / 2 * 8 + 2 * t;
      float2 pair = make_float2(0.0f, 0.0f);
      if (head < group) pair = *reinterpret_cast<const float2*>(heads + head * kHeadDim + column);
      queries[step][part] = PackPair<T>(pair.x, pair.y);
    }
  }
}

// Zeros over the warp's own V rows from key `end` on, whose bytes may be NaN: a weight of 0 would
// not silence them.
template <int kHeadDim>
__device__ inline void ClearValuesFrom(int end, int warp, typename PageRing<kHeadDim>::Page& page) {
  using Ring = PageRing<kHeadDim>;
  constexpr int kChunks = kHeadDim / 8;
  for (int i = threadIdx.x % 32; i < kWarpKeys * kChunks; i += 32) {
    const int key = i / kChunks % 8 * kRowGroup + 2 * warp + i / kChunks / 8;
    if (key < end) continue;
    *reinterpret_cast<uint4*>(page.bytes + Ring::ValueOffset(key) + i % kChunks * 16) =
        make_uint4(0, 0, 0, 0);
  }
  FenceBeforeBulkCopies();
  __syncwarp();
}

// Exponents of the tile's rows over the warp's keys. A matrix of 8 keys takes one key of each row
// group (decode_page_ring.h), the warp two such matrices: column c of matrix n is key
// c * kRowGroup + 2 * warp + n.
template <class T, int kHeadDim>
__device__ inline void ScoreKeys(const typename PageRing<kHeadDim>::Page& page, int warp,
                                 float scale, const uint32_t (&queries)[kHeadDim / 16][4],
                                 float (&scores)[2][4]) {
  using Ring = PageRing<kHeadDim>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
    const uint32_t row = SharedAddress(page.bytes) +
                         Ring::KeyOffset(lane % 8 * kRowGroup + 2 * warp + n) + lane / 8 * 16;
    // Two sums, over even and odd steps: half as long a chain of dependent products.
    float even[4] = {}, odd[4] = {};
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; step += 2) {
      uint32_t b[4];
      LoadMatrices(row + step * 32, b);
      MultiplyAdd<T>(even, queries[step], b[0], b[1]);
      MultiplyAdd<T>(odd, queries[step + 1], b[2], b[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[n][i] = (even[i] + odd[i]) * scale;
  }
}

// Keys from `end` on weigh nothing.
__device__ inline void MaskFrom(int end, int warp, float (&scores)[2][4]) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < 2; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = (2 * t + i % 2) * kRowGroup + 2 * warp + n;
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
    rescale[half] = PowerOfTwo(state.largest[half] - base);
    state.largest[half] = largest;
    s0 = PowerOfTwo(s0 - base);
    s1 = PowerOfTwo(s1 - base);
    s2 = PowerOfTwo(s2 - base);
    s3 = PowerOfTwo(s3 - base);
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

template <class T, int kHeadDim>
__device__ inline void AddValues(const typename PageRing<kHeadDim>::Page& page, int warp,
                                 const float (&weights)[2][4], WarpState<kHeadDim>& state) {
  using Ring = PageRing<kHeadDim>;
  const int lane = threadIdx.x % 32;
  // The layout of a product's result is that of a left side: columns of matrix 0, then of matrix 1.
  const uint32_t p[4] = {
      PackPair<T>(weights[0][0], weights[0][1]), PackPair<T>(weights[0][2], weights[0][3]),
      PackPair<T>(weights[1][0], weights[1][1]), PackPair<T>(weights[1][2], weights[1][3])};
  const int key = lane % 8 * kRowGroup + 2 * warp + lane / 8 % 2;
  const uint32_t row = SharedAddress(page.bytes) + Ring::ValueOffset(key) + lane / 16 * 16;
#pragma unroll
  for (int tile = 0; tile < kHeadDim / 8; tile += 2) {
    uint32_t b[4];
    LoadMatricesTransposed(row + tile * 16, b);
    MultiplyAdd<T>(state.sums[tile], p, b[0], b[1]);
    MultiplyAdd<T>(state.sums[tile + 1], p, b[2], b[3]);
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

// The warps' shares of `weights` and, for a list of one run, the division by the sum; the run's own
// weight goes to scratch where there are several.
__device__ inline void ScaleOfWarp(const DecodeCall& call, const ListRun& run, int warp, int row,
                                   const float2 (&weights)[kPageWarps][kTileRows], float* scale) {
  float largest = -INFINITY;
#pragma unroll
  for (int w = 0; w < kPageWarps; ++w) largest = fmaxf(largest, weights[w][row].x);
  const float base = FiniteBase(largest);
  float total = 0.0f;
#pragma unroll
  for (int w = 0; w < kPageWarps; ++w) {
    total += weights[w][row].y * PowerOfTwo(weights[w][row].x - base);
  }
  *scale = PowerOfTwo(weights[warp][row].x - base);
  if (run.num_runs == 1) {
    *scale /= total;
  } else if (warp == 0 && threadIdx.x % 4 == 0 && row < call.group()) {
    call.weights[call.PartialOf(run.list, run.index, row)] = make_float2(largest, total);
  }
}

// Adds up the warps' states in their order and writes the rows: out, where the list has one run
// only, else this run's partial result.
//
// Two barriers a run are enough: `weights` is written again only by threads that have passed the
// second, behind all reads; `sums` only by those that have passed the next run's first.
template <int kHeadDim>
__device__ inline void FinishRun(const DecodeCall& call, const ListRun& run, int warp,
                                 WarpState<kHeadDim>& state, SharedMemory<kHeadDim>& shared) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int group = call.group();
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
    if (row >= group) continue;
    float scale;
    ScaleOfWarp(call, run, warp, row, shared.weights, &scale);
#pragma unroll
    for (int tile = 0; tile < kHeadDim / 8; ++tile) {
      *reinterpret_cast<float2*>(&shared.sums[warp][row][tile * 8 + 2 * t]) =
          make_float2(state.sums[tile][2 * half] * scale, state.sums[tile][2 * half + 1] * scale);
    }
  }
  SynchronizePageWarps();
  for (int row = warp; row < group && lane < kHeadDim / 4; row += kPageWarps) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < kPageWarps; ++w) {
      const float4 part = *reinterpret_cast<const float4*>(&shared.sums[w][row][lane * 4]);
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    if (run.num_runs == 1) {
      const int kv_head = call.KvHeadOf(run.list);
      const int first_row = call.SegmentOf(run.list).rows.first_row;
      StoreOut(call.attention, call.OutOf(first_row, kv_head, row, kHeadDim) + lane * 4, sum);
    } else {
      float* partial = call.sums + call.PartialOf(run.list, run.index, row) * kHeadDim;
      *reinterpret_cast<float4*>(partial + lane * 4) = sum;
    }
  }
  __syncwarp();
}

template <class T, int kHeadDim>
__device__ inline void AttendRuns(const DecodeCall& call, RunWalk walk,
                                  SharedMemory<kHeadDim>& shared) {
  const int warp = threadIdx.x / 32;
  typename PageRing<kHeadDim>::Place place;
  uint32_t queries[kHeadDim / 16][4];
  int queries_list = -1;
  ListRun run;
  while (walk.Next(&run)) {
    if (run.list != queries_list) LoadQueries<T, kHeadDim>(call, run.list, queries);
    queries_list = run.list;
    WarpState<kHeadDim> state;
#pragma unroll
    for (int tile = 0; tile < kHeadDim / 8; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.sums[tile][i] = 0.0f;
    }
    state.largest[0] = state.largest[1] = -INFINITY;
    state.total[0] = state.total[1] = 0.0f;
    for (int entry = 0; entry < run.num_entries; ++entry) {
      auto& page = shared.ring.WaitFull(place);
      const int end = entry + 1 == run.num_entries ? run.last_keys : kBlockTokens;
      if (end < kBlockTokens) ClearValuesFrom<kHeadDim>(end, warp, page);
      float scores[2][4];
      ScoreKeys<T, kHeadDim>(page, warp, call.exponent_scale, queries, scores);
      if (end < kBlockTokens) MaskFrom(end, warp, scores);
      WeighKeys<kHeadDim>(scores, state);
      AddValues<T, kHeadDim>(page, warp, scores, state);
      shared.ring.Release(place);
      place.Advance();
    }
    FinishRun<kHeadDim>(call, run, warp, state, shared);
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
  WaitForPrevious();
  extern __shared__ __align__(128) std::byte shared_bytes[];
  auto& shared = *reinterpret_cast<SharedMemory<kHeadDim>*>(shared_bytes);
  if (threadIdx.x == 0) shared.ring.Init(kPageWarps);
  const int num_lists = call.num_lists();
  for (int list = threadIdx.x; list < num_lists; list += kThreads) {
    const ListEnd end = EndOfList(call.SegmentOf(list), call.KvHeadOf(list));
    if (NumRuns(end.entries) > call.max_runs) __trap();  // longer than max_entries: no scratch
    shared.table.ends[list] = end;
  }
  __syncthreads();
  if (threadIdx.x < 32) shared.table.Sum(num_lists);
  __syncthreads();
  const RunWalk walk(shared.table, num_lists, blockIdx.x, gridDim.x);
  if (threadIdx.x / 32 < kPageWarps) {
    AttendRuns<T, kHeadDim>(call, walk, shared);
  } else {
    LoadRuns<kHeadDim>(call, walk, shared);
  }
}

template <class Combine>
__device__ inline float CombineThreads(float value, float (&of_warps)[kMergeWarps],
                                       Combine combine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(~0u, value, distance));
  }
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warps[0];
#pragma unroll
  for (int w = 1; w < kMergeWarps; ++w) value = combine(value, of_warps[w]);
  return value;
}

// A CTA a (query head, segment): out = the runs' sums, each under its weight, in ascending order in
// kMergeWarps strands. Lists of one run have been written already.
template <int kHeadDim>
__global__ __launch_bounds__(kMergeThreads) void MergeDecodeRuns(const DecodeCall call) {
  WaitForPrevious();
  __shared__ float scales[kMergeThreads], largest_of_warps[kMergeWarps],
      total_of_warps[kMergeWarps];
  __shared__ float4 strands[kMergeWarps][kHeadDim / 4];
  const int kv_head = blockIdx.x / call.group(), head = blockIdx.x % call.group();
  const int list = blockIdx.y * call.attention.num_kv_heads + kv_head;
  const AttentionSegment& segment = call.SegmentOf(list);
  const int num_runs = NumRuns(EndOfList(segment, kv_head).entries);
  if (num_runs <= 1) return;

  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const auto sum_of = [&](int run) {
    return *reinterpret_cast<const float4*>(call.sums + call.PartialOf(list, run, head) * kHeadDim +
                                            lane * 4);
  };
  const bool has_column = lane < kHeadDim / 4;
  // Asked for beside the weights: one latency less.
  float4 first_sums[kFirstSums];
#pragma unroll
  for (int i = 0; i < kFirstSums; ++i) {
    const int run = warp + i * kMergeWarps;
    first_sums[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (has_column && run < num_runs) first_sums[i] = sum_of(run);
  }
  float2 weight = make_float2(-INFINITY, 0.0f);
  if (thread < num_runs) weight = call.weights[call.PartialOf(list, thread, head)];
  const float largest =
      CombineThreads(weight.x, largest_of_warps, [](float a, float b) { return fmaxf(a, b); });
  const float scale = PowerOfTwo(weight.x - FiniteBase(largest));
  scales[thread] = scale;
  // Its barrier makes `scales` visible, too.
  const float total =
      CombineThreads(weight.y * scale, total_of_warps, [](float a, float b) { return a + b; });

  float4 strand = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const auto add = [&](float4 part, float s) {
    strand.x += part.x * s, strand.y += part.y * s, strand.z += part.z * s, strand.w += part.w * s;
  };
#pragma unroll
  for (int i = 0; i < kFirstSums; ++i) add(first_sums[i], scales[warp + i * kMergeWarps]);
  if (has_column) {
#pragma unroll 8  // loads in flight
    for (int run = warp + kFirstSums * kMergeWarps; run < num_runs; run += kMergeWarps) {
      add(sum_of(run), scales[run]);
    }
    strands[warp][lane] = strand;
  }
  __syncthreads();
  if (thread >= kHeadDim / 4) return;
  float4 sum = strands[0][thread];
#pragma unroll
  for (int w = 1; w < kMergeWarps; ++w) {
    const float4 part = strands[w][thread];
    sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
  }
  sum.x /= total, sum.y /= total, sum.z /= total, sum.w /= total;
  StoreOut(call.attention, call.OutOf(segment.rows.first_row, kv_head, head, kHeadDim) + thread * 4,
           sum);
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
  AUGUR_CHECK(params.q_stride >= params.num_q_heads * params.head_dim && params.q_stride % 2 == 0);
  AUGUR_CHECK(IsAligned(params.q, 8) && IsAligned(params.out, 16));
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
