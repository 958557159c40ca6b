// Sampled attention's last kernels: which rows of a chunk of a list are drawn, by which of its
// query heads and with which coefficient, and the sums of these rows of V; then the chunks' sums
// together.
//
// A CTA takes a chunk in batches of entries. Of a batch it lists the (entry, head) pairs that draw
// anything, walks their tiles (a warp a pair), lists the rows that some head draws, reads each
// once, and adds it to the sums of all heads that drew it.
#include <cmath>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampled_call.h"
#include "kernels/fp8_page.h"
#include "kernels/philox.h"
#include "kernels/value_weights.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMaxGroup = 16;
constexpr int kBatchEntries = 32;  // a lane each
constexpr int kBatchPairs = 128;   // at least one entry's
constexpr int kPairsAhead = 4;     // tiles that a warp asks for at once
constexpr int kRowsAhead = 4;      // rows of V, likewise
static_assert(kBatchPairs >= kMaxGroup && kMaxGroup <= 2 * kWarps);

// How a head draws from a tile.
struct Pair {
  uint64_t begin;     // boundary before the tile, Q32
  uint64_t expected;  // Q32
  double weight;      // of one draw
  uint32_t offset;
  float largest;   // score of the tile
  uint16_t entry;  // of the batch
  uint16_t head;
};

struct GatherMemory {
  union {
    float coefficients[kBatchPairs][kBlockTokens];
    float sums[kMaxGroup * 256];  // of the chunk, once all rows have been added
  };
  Pair pairs[kBatchPairs];
  uint16_t rows[kBatchEntries * kBlockTokens];  // drawn ones: 64 entry + token
  const std::byte* values[kBatchEntries];
  uint32_t heads[kBatchEntries];      // bit h: head h draws from the entry
  int first_pair[kBatchEntries + 1];  // of the entry
  uint32_t tokens[kBatchEntries][2];  // drawn ones: bit l of word p is token 2 l + p
  int first_row[kBatchEntries + 1];
  HeadDraw draws[kMaxGroup];
  uint32_t counts[kWarps][2];  // draws, rows
  int num_entries;             // of the batch
};

__device__ inline uint64_t SumUpTo(uint64_t own) {
  uint64_t sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, sum, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) sum += other;
  }
  return sum;
}

__device__ inline int SumUpTo(int own) {
  int sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(~0u, sum, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) sum += other;
  }
  return sum;
}

// The pair of this lane's entry and `head`; false: the head draws nothing there.
__device__ inline bool FindPair(const SampledCall& call, int list, int head, int entry,
                                const HeadDraw& draw, Pair* pair) {
  const SampledAttentionParams& params = call.attention;
  const size_t row = call.RowOf(list, head);
  const uint64_t* shares = call.shares + row * (call.stride + 1) + entry;
  pair->offset = draw.offset;
  pair->weight = draw.weight;
  if (params.estimator == ValueEstimator::kFlash) {
    const uint64_t mass = shares[0];
    if (mass == 0) return false;
    const SampledSegment& segment = call.SegmentOf(list);
    const int block =
        segment.blocks != nullptr ? segment.blocks[call.PlaceOf(segment, list, entry)] : entry;
    if (params.forced_offset < 0) {
      const AttentionDrawKey key{segment.seed, segment.choice_index,
                                 static_cast<uint32_t>(segment.position),
                                 static_cast<uint32_t>(params.layer),
                                 static_cast<uint32_t>(call.KvHeadOf(list) * call.group() + head)};
      pair->offset =
          PhiloxAttention(PhiloxPurpose::kValueOffset, key, 1 + static_cast<uint32_t>(block))
              .words[0];
    }
    const double share = static_cast<double>(mass) / static_cast<double>(draw.whole);
    pair->begin = 0;
    pair->expected = uint64_t(draw.samples) << 32;
    pair->weight = share / draw.samples;
  } else {
    pair->begin = shares[0];
    const uint64_t end = shares[1];
    if (SystematicCount(draw.offset, pair->begin, end) == 0) return false;
    pair->expected = end - pair->begin;
  }
  pair->largest = call.maxima[row * call.stride + entry];
  return true;
}

// Lists the pairs of as many entries from `first` on as there is room for.
__device__ inline void ListPairs(const SampledCall& call, int list, int first, int end,
                                 size_t half_bytes, GatherMemory& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int entry = first + lane;
  if (threadIdx.x < kBatchEntries) {
    shared.heads[lane] = shared.tokens[lane][0] = shared.tokens[lane][1] = 0;
    if (entry < end) {
      shared.values[lane] = call.ValuesOf(call.SegmentOf(list), list, entry, half_bytes);
    }
  }
  __syncthreads();
  Pair pairs[2];
  bool draws[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int head = warp + i * kWarps;
    draws[i] = head < call.group() && entry < end &&
               FindPair(call, list, head, entry, shared.draws[head], &pairs[i]);
    pairs[i].entry = static_cast<uint16_t>(lane);
    pairs[i].head = static_cast<uint16_t>(head);
    if (draws[i]) atomicOr(&shared.heads[lane], 1u << head);
  }
  __syncthreads();
  if (warp == 0) {
    const int own = __popc(shared.heads[lane]);
    const int sum = SumUpTo(own);
    const unsigned fits = __ballot_sync(~0u, sum <= kBatchPairs && entry < end);
    const int taken = fits == ~0u ? 32 : __ffs(~fits) - 1;  // ascending sums: the first that fit
    shared.first_pair[lane] = sum - own;
    if (lane == 31) shared.first_pair[32] = sum;
    if (lane == 0) shared.num_entries = taken;
  }
  __syncthreads();
  if (lane >= shared.num_entries) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (!draws[i]) continue;
    const unsigned before = shared.heads[lane] & ((1u << pairs[i].head) - 1);
    shared.pairs[shared.first_pair[lane] + __popc(before)] = pairs[i];
  }
}

// Coefficients of the tile's rows, two a lane.
__device__ inline void WalkTile(const Pair& pair, float2 scores, float (&coefficients)[64],
                                GatherMemory& shared, uint32_t (&counts)[2]) {
  const int lane = threadIdx.x % 32;
  const uint32_t first = TileWeight(scores.x - pair.largest);
  const uint32_t second = TileWeight(scores.y - pair.largest);
  const uint64_t sum = SumUpTo(uint64_t{first} + second);
  const uint64_t whole = __shfl_sync(~0u, sum, 31);
  const uint64_t middle = pair.begin + Boundary(sum - second, whole, pair.expected);
  const uint64_t end = pair.begin + Boundary(sum, whole, pair.expected);
  uint64_t begin = __shfl_up_sync(~0u, end, 1);
  if (lane == 0) begin = pair.begin;
  const uint32_t count0 = SystematicCount(pair.offset, begin, middle);
  const uint32_t count1 = SystematicCount(pair.offset, middle, end);
  *reinterpret_cast<float2*>(&coefficients[2 * lane]) = make_float2(
      static_cast<float>(count0 * pair.weight), static_cast<float>(count1 * pair.weight));
  const unsigned even = __ballot_sync(~0u, count0 > 0), odd = __ballot_sync(~0u, count1 > 0);
  counts[0] += count0 + count1;
  if (lane != 0) return;
  counts[1] += __popc(even) + __popc(odd);
  if (even != 0) atomicOr(&shared.tokens[pair.entry][0], even);
  if (odd != 0) atomicOr(&shared.tokens[pair.entry][1], odd);
}

__device__ inline void WalkTiles(const SampledCall& call, int list, int first, GatherMemory& shared,
                                 uint32_t (&counts)[2]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int num_pairs = shared.first_pair[shared.num_entries];
  for (int base = warp; base < num_pairs; base += kWarps * kPairsAhead) {
    float2 scores[kPairsAhead];
#pragma unroll
    for (int i = 0; i < kPairsAhead; ++i) {
      const int at = base + i * kWarps;
      if (at >= num_pairs) break;
      const Pair& pair = shared.pairs[at];
      scores[i] = *reinterpret_cast<const float2*>(
          call.scores + call.RowOf(list, pair.head) * call.scores_stride +
          size_t(first + pair.entry) * kBlockTokens + 2 * lane);
    }
#pragma unroll
    for (int i = 0; i < kPairsAhead; ++i) {
      const int at = base + i * kWarps;
      if (at >= num_pairs) break;
      WalkTile(shared.pairs[at], scores[i], shared.coefficients[at], shared, counts);
    }
  }
}

// The drawn rows in ascending order; gives how many.
__device__ inline int ListRows(const SampledCall& call, int list, int first, GatherMemory& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (warp == 0) {
    const int own = lane < shared.num_entries
                        ? __popc(shared.tokens[lane][0]) + __popc(shared.tokens[lane][1])
                        : 0;
    const int sum = SumUpTo(own);
    shared.first_row[lane] = sum - own;
    if (lane == 31) shared.first_row[32] = sum;
    const SampledSegment& segment = call.SegmentOf(list);
    if (segment.entry_rows != nullptr && lane < shared.num_entries) {
      segment.entry_rows[call.PlaceOf(segment, list, first + lane)] = own;
    }
  }
  __syncthreads();
  for (int entry = warp; entry < shared.num_entries; entry += kWarps) {
    const uint32_t even = shared.tokens[entry][0], odd = shared.tokens[entry][1];
    const uint32_t below = (1u << lane) - 1;
    int at = shared.first_row[entry] + __popc(even & below) + __popc(odd & below);
    const int row = entry * kBlockTokens + 2 * lane;
    if (even >> lane & 1) shared.rows[at++] = static_cast<uint16_t>(row);
    if (odd >> lane & 1) shared.rows[at] = static_cast<uint16_t>(row + 1);
  }
  __syncthreads();
  return shared.first_row[32];
}

// Columns of a lane: kPerLane neighbours where rows are exactly so long, else every 32nd.
template <int kPerLane, bool kWhole>
__device__ inline int ColumnOf(int i) {
  const int lane = threadIdx.x % 32;
  return kWhole ? lane * kPerLane + i : lane + 32 * i;
}

template <class T, int kPerLane, bool kWhole>
__device__ inline void LoadRow(const SampledAttentionParams& params, const std::byte* half,
                               int token, float (&row)[kPerLane]) {
  const int head_dim = params.head_dim;
  if (params.fp8.holds(half)) {
    const auto* codes = reinterpret_cast<const uint8_t*>(half) + size_t(token) * head_dim;
    const float scale = fp8::UnpackingScale(
        reinterpret_cast<const uint8_t*>(half)[kBlockTokens * head_dim + token]);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int column = ColumnOf<kPerLane, kWhole>(i);
      row[i] = column < head_dim ? fp8::FloatFromE4M3(codes[column]) * scale : 0.0f;
    }
    return;
  }
  const T* values = reinterpret_cast<const T*>(half) + size_t(token) * head_dim;
  if constexpr (kWhole) {
    LoadFloats(values + ColumnOf<kPerLane, kWhole>(0), row);
  } else {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int column = ColumnOf<kPerLane, kWhole>(i);
      row[i] = column < head_dim ? ToFloat(values[column]) : 0.0f;
    }
  }
}

template <class T, int kPerLane, bool kWhole, int kGroup>
__device__ inline void AddRows(const SampledAttentionParams& params, const GatherMemory& shared,
                               int num_rows, float (&sums)[kGroup][kPerLane]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int base = warp; base < num_rows; base += kWarps * kRowsAhead) {
    float values[kRowsAhead][kPerLane];
#pragma unroll
    for (int i = 0; i < kRowsAhead; ++i) {
      const int at = base + i * kWarps;
      if (at >= num_rows) break;
      const int row = shared.rows[at];
      LoadRow<T, kPerLane, kWhole>(params, shared.values[row / kBlockTokens], row % kBlockTokens,
                                   values[i]);
    }
#pragma unroll
    for (int i = 0; i < kRowsAhead; ++i) {
      const int at = base + i * kWarps;
      if (at >= num_rows) break;
      const int entry = shared.rows[at] / kBlockTokens, token = shared.rows[at] % kBlockTokens;
      const uint32_t heads = shared.heads[entry];
      float coefficient = 0.0f;  // of head `lane`
      if (heads >> lane & 1) {
        const int pair = shared.first_pair[entry] + __popc(heads & ((1u << lane) - 1));
        coefficient = shared.coefficients[pair][token];
      }
      const unsigned drawing = __ballot_sync(~0u, coefficient != 0.0f);
#pragma unroll
      for (int head = 0; head < kGroup; ++head) {
        if ((drawing >> head & 1) == 0) continue;
        const float weight = __shfl_sync(~0u, coefficient, head);
#pragma unroll
        for (int c = 0; c < kPerLane; ++c) {
          sums[head][c] = fmaf(values[i][c], weight, sums[head][c]);
        }
      }
    }
  }
}

// The warps' sums in their order, and where they go.
template <int kPerLane, bool kWhole, int kGroup>
__device__ inline void StoreSums(const SampledCall& call, float* to, GatherMemory& shared,
                                 const float (&sums)[kGroup][kPerLane]) {
  const int head_dim = call.attention.head_dim, group = call.group();
  const int warp = threadIdx.x / 32;
  for (int w = 0; w < kWarps; ++w) {
    __syncthreads();
    if (w != warp) continue;
#pragma unroll
    for (int head = 0; head < kGroup; ++head) {
      if (head >= group) break;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int column = ColumnOf<kPerLane, kWhole>(i);
        if (column >= head_dim) continue;
        float* sum = &shared.sums[head * head_dim + column];
        *sum = w == 0 ? sums[head][i] : *sum + sums[head][i];
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < group * head_dim; i += kThreads) to[i] = shared.sums[i];
}

// A CTA a chunk of a list.
template <class T, int kPerLane, bool kWhole, int kGroup>
__global__ __launch_bounds__(kThreads) void GatherSampledRows(const SampledCall call) {
  __shared__ __align__(16) GatherMemory shared;
  WaitForPrevious();
  const int list = blockIdx.y, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SampledAttentionParams& params = call.attention;
  const int entries = call.DrawnEntries(list);
  const int begin = blockIdx.x * ChunkEntries(entries);
  if (begin >= entries) return;
  const int end = min(entries, begin + ChunkEntries(entries));
  if (threadIdx.x < call.group()) shared.draws[lane] = call.heads[call.RowOf(list, lane)];
  __syncthreads();
  bool is_nan = false;
  for (int head = 0; head < call.group(); ++head) is_nan |= shared.draws[head].is_nan;
  float sums[kGroup][kPerLane] = {};
  uint32_t counts[2] = {}, distinct = 0;
  const size_t half_bytes = size_t(kBlockTokens) * params.head_dim * sizeof(T);
  const SampledSegment& segment = call.SegmentOf(list);
  for (int first = begin; first < end && is_nan; first += kThreads) {
    const int entry = first + threadIdx.x;
    if (segment.entry_rows == nullptr || entry >= end) continue;
    segment.entry_rows[call.PlaceOf(segment, list, entry)] = 0;
  }
  for (int first = begin; first < end && !is_nan; first += shared.num_entries) {
    ListPairs(call, list, first, end, half_bytes, shared);
    __syncthreads();
    WalkTiles(call, list, first, shared, counts);
    __syncthreads();
    const int num_rows = ListRows(call, list, first, shared);
    AddRows<T, kPerLane, kWhole, kGroup>(params, shared, num_rows, sums);
    distinct += num_rows;
    __syncthreads();
  }
  counts[0] = __reduce_add_sync(~0u, counts[0]);
  if (lane == 0) shared.counts[warp][0] = counts[0], shared.counts[warp][1] = counts[1];
  const size_t chunk = call.ChunkOf(list, blockIdx.x);
  if (distinct > 0) {
    StoreSums<kPerLane, kWhole, kGroup>(
        call, call.chunk_sums + chunk * call.group() * params.head_dim, shared, sums);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  ChunkCounts drawn{0, 0, distinct};
  for (int w = 0; w < kWarps; ++w) {
    drawn.draws += shared.counts[w][0];
    drawn.rows += shared.counts[w][1];
  }
  call.chunk_counts[chunk] = drawn;
}

__device__ inline void StoreOut(const SampledAttentionParams& params, size_t index, float value) {
  switch (params.out_dtype) {
    case DType::kF32:
      static_cast<float*>(params.out)[index] = value;
      return;
    case DType::kBF16:
      static_cast<__nv_bfloat16*>(params.out)[index] = __float2bfloat16_rn(value);
      return;
    case DType::kF16:
      static_cast<__half*>(params.out)[index] = __float2half_rn(value);
      return;
  }
}

__device__ inline void AddCounts(const int64_t (&drawn)[3], SampledCounts* to) {
  if (to == nullptr) return;
  const auto add = [](int64_t* at, int64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
  };
  add(&to->draws, drawn[0]);
  add(&to->rows, drawn[1]);
  add(&to->distinct, drawn[2]);
}

constexpr int kMergeThreads = 128;

// A CTA a query head.
__global__ __launch_bounds__(kMergeThreads) void MergeSampledChunks(const SampledCall call) {
  __shared__ ChunkCounts counts[kMaxChunks];
  WaitForPrevious();
  const SampledAttentionParams& params = call.attention;
  const int list = blockIdx.y, head = blockIdx.x, group = call.group();
  const int entries = call.DrawnEntries(list);
  if (entries == 0) return;
  const int num_chunks = NumChunks(entries);
  if (threadIdx.x < num_chunks)
    counts[threadIdx.x] = call.chunk_counts[call.ChunkOf(list, threadIdx.x)];
  __syncthreads();
  const size_t row = call.RowOf(list, head);
  const float poison = call.heads[row].is_nan ? NAN : 0.0f;
  const SampledSegment& segment = call.SegmentOf(list);
  const size_t out =
      (size_t(segment.row) * params.num_q_heads + call.KvHeadOf(list) * group + head) *
      params.head_dim;
  for (int column = threadIdx.x; column < params.head_dim; column += kMergeThreads) {
    float sum = 0.0f;
#pragma unroll 8
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      if (counts[chunk].distinct == 0) continue;
      sum += call.chunk_sums[(call.ChunkOf(list, chunk) * group + head) * params.head_dim + column];
    }
    StoreOut(params, out + column, sum + poison);
  }
  if (head != 0 || threadIdx.x != 0) return;
  int64_t drawn[3] = {};
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    drawn[0] += counts[chunk].draws;
    drawn[1] += counts[chunk].rows;
    drawn[2] += counts[chunk].distinct;
  }
  AddCounts(drawn, params.counts == nullptr ? nullptr : params.counts + call.SegmentIndexOf(list));
  AddCounts(drawn, params.totals);
}

template <class T, int kPerLane, bool kWhole>
void LaunchGather(const SampledCall& call, cudaStream_t stream) {
  const SampledAttentionParams& params = call.attention;
  const dim3 grid(call.most_chunks, call.num_segments * params.num_kv_heads);
  if (params.num_q_heads / params.num_kv_heads <= 4) {
    LaunchKernel(stream, {grid, dim3(kThreads)}, GatherSampledRows<T, kPerLane, kWhole, 4>, call);
  } else {
    LaunchKernel(stream, {grid, dim3(kThreads)}, GatherSampledRows<T, kPerLane, kWhole, kMaxGroup>,
                 call);
  }
}

template <class T>
void LaunchGatherOfType(const SampledCall& call, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    if (call.attention.head_dim == 64) return LaunchGather<T, 2, true>(call, stream);
    if (call.attention.head_dim == 128) return LaunchGather<T, 4, true>(call, stream);
  }
  LaunchGather<T, 8, false>(call, stream);
}

}  // namespace

void LaunchSampledGather(const SampledCall& call, cudaStream_t stream) {
  ForElementType(call.attention.dtype, [&]<class T>() { LaunchGatherOfType<T>(call, stream); });
  const SampledAttentionParams& params = call.attention;
  const dim3 grid(params.num_q_heads / params.num_kv_heads,
                  call.num_segments * params.num_kv_heads);
  LaunchKernel(stream, {grid, dim3(kMergeThreads)}, MergeSampledChunks, call);
}

}  // namespace augur::kernels
