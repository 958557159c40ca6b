// Sampled attention's third kernel for kShared: one set of rows for all heads of a list, at rates
// that a predicted normaliser gives; the control variate; and what the rates add up to. For shapes
// and kept scores that sampled_shared.cu does not serve.
#include "kernels/cuda/sampled_gather.h"

namespace augur::kernels {
namespace {

using sampled_gather::Chunk;
using sampled_gather::ChunkOfCta;
using sampled_gather::GatherChunk;
using sampled_gather::GatherMemory;
using sampled_gather::kBatchEntries;
using sampled_gather::kBatchPairs;
using sampled_gather::kMaxGroup;
using sampled_gather::kThreads;
using sampled_gather::kWarpHeads;
using sampled_gather::kWarps;
using sampled_gather::LoadColumns;
using sampled_gather::SumUpTo;

// The scores of a tile, two tokens a lane.
template <int kGroup>
__device__ inline void LoadTile(const SampledCall& call, int list, int entry,
                                float2 (&scores)[kGroup]) {
#pragma unroll
  for (int head = 0; head < kGroup; ++head) {
    if (head >= call.group()) break;
    scores[head] =
        *reinterpret_cast<const float2*>(call.ScoresOf(list, head, entry) + threadIdx.x % 32 * 2);
  }
}

// 2^(the largest over the heads of a score over its normaliser), at most 2.
template <int kGroup>
__device__ inline float2 RatesOf(const float2 (&scores)[kGroup], int group,
                                 const GatherMemory& shared) {
  float2 most = make_float2(scores[0].x - shared.log_norms[0], scores[0].y - shared.log_norms[0]);
#pragma unroll
  for (int head = 1; head < kGroup; ++head) {
    if (head >= group) break;
    most.x = fmaxf(most.x, scores[head].x - shared.log_norms[head]);
    most.y = fmaxf(most.y, scores[head].y - shared.log_norms[head]);
  }
  return make_float2(Exp2Weight(fminf(most.x, 1.0f)), Exp2Weight(fminf(most.y, 1.0f)));
}

__device__ inline uint64_t BoundedRate(double wanted, RateSums& rates) {
  const uint64_t rate = wanted < kQ32 ? static_cast<uint64_t>(wanted) : kQ32One;
  if (rate == kQ32One) {
    ++rates.certain;
  } else {
    rates.bounded += rate;
  }
  return rate;
}

__device__ inline uint64_t MassOf(const SampledCall& call, size_t row, int entry, float top) {
  const float largest = call.maxima[row * call.stride + entry];
  return largest > -INFINITY ? TileMass(call.sums[row * call.stride + entry], largest - top) : 0;
}

// Draws from one tile, by a warp; `slot` of the batch.
template <int kGroup>
__device__ inline void DrawShared(const SampledCall& call, int list, int slot, int entry,
                                  GatherMemory& shared, uint32_t (&counts)[2], RateSums& rates) {
  const int lane = threadIdx.x % 32, group = call.group();
  const SampledAttentionParams& params = call.attention;
  const SampledSegment& segment = call.SegmentOf(list);
  float2 scores[kGroup];
  LoadTile(call, list, entry, scores);
  const int block =
      segment.blocks != nullptr ? segment.blocks[call.PlaceOf(segment, list, entry)] : entry;
  const AttentionDrawKey key{
      segment.seed, segment.choice_index, static_cast<uint32_t>(segment.position),
      static_cast<uint32_t>(params.layer), static_cast<uint32_t>(call.KvHeadOf(list))};
  const uint32_t offset =
      params.forced_offset >= 0
          ? static_cast<uint32_t>(params.forced_offset)
          : PhiloxAttention(PhiloxPurpose::kValueOffset, key, 1 + static_cast<uint32_t>(block))
                .words[0];
  const double lambda = static_cast<double>(call.LambdaOf(list));
  const float2 ratios = RatesOf(scores, group, shared);
  const double wanted[2] = {lambda * static_cast<double>(ratios.x) * kQ32,
                            lambda * static_cast<double>(ratios.y) * kQ32};
  const uint64_t rate[2] = {BoundedRate(wanted[0], rates), BoundedRate(wanted[1], rates)};
  rates.unbounded += WarpSum(wanted[0] + wanted[1]);
  const uint64_t end = SumUpTo(rate[0] + rate[1]);
  const uint64_t middle = end - rate[1], begin = middle - rate[0];
  const bool drawn[2] = {SystematicCount(offset, begin, middle) > 0,
                         SystematicCount(offset, middle, end) > 0};
  const unsigned even = __ballot_sync(~0u, drawn[0]), odd = __ballot_sync(~0u, drawn[1]);
  if (lane == 0) {
    shared.heads[slot] = (even | odd) != 0 ? (1u << group) - 1 : 0;
    shared.tokens[slot][0] = even;
    shared.tokens[slot][1] = odd;
    const uint32_t rows = (__popc(even) + __popc(odd)) * group;
    counts[0] += rows;
    counts[1] += rows;
  }
  if ((even | odd) == 0) return;
#pragma unroll
  for (int head = 0; head < kGroup; ++head) {
    if (head >= group) break;
    const size_t row = call.RowOf(list, head);
    const HeadDraw& draw = shared.draws[head];
    const float largest = call.maxima[row * call.stride + entry];
    const uint64_t mass = MassOf(call, row, entry, draw.top);
    const double share = static_cast<double>(mass) / static_cast<double>(draw.whole);
    const double sum = static_cast<double>(call.sums[row * call.stride + entry]);
    const auto coefficient = [&](int i, float score) {
      if (!drawn[i] || mass == 0) return 0.0f;
      const double p = static_cast<double>(TileWeight(score - largest)) / sum * share;
      return static_cast<float>(p * (kQ32 / static_cast<double>(rate[i])));
    };
    const float2 both = make_float2(coefficient(0, scores[head].x), coefficient(1, scores[head].y));
    const int pair = slot * group + head;
    *reinterpret_cast<float2*>(&shared.coefficients[pair][2 * lane]) = both;
    const float drawn_mass = WarpSum(both.x + both.y);
    if (lane == 0) shared.masses[pair] = drawn_mass;
  }
}

// A batch, in place of ListPairs and WalkTiles.
template <class T, int kGroup>
__device__ inline void DrawSharedBatch(const SampledCall& call, const Chunk& chunk, int first,
                                       GatherMemory& shared, uint32_t (&counts)[2],
                                       RateSums& rates) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = call.group();
  const int taken = min(min(kBatchEntries, kBatchPairs / group), chunk.end - first);
  if (warp == 0) {
    shared.heads[lane] = shared.tokens[lane][0] = shared.tokens[lane][1] = 0;
    shared.first_pair[lane] = lane * group;
    if (lane == 0) shared.num_entries = taken;
    const size_t half_bytes = size_t(kBlockTokens) * call.attention.head_dim * sizeof(T);
    if (lane < taken) {
      shared.values[lane] = call.ValuesOf(*chunk.segment, chunk.list, first + lane, half_bytes);
    }
  }
  __syncthreads();
  for (int slot = warp; slot < taken; slot += kWarps) {
    DrawShared<kGroup>(call, chunk.list, slot, first + slot, shared, counts, rates);
  }
  __syncthreads();
}

// Each entry's mass beyond what was drawn of it goes to the mean of its values; of the warp's
// heads.
template <int kPerLane, bool kWhole>
__device__ inline void AddVariate(const SampledCall& call, const Chunk& chunk, int first,
                                  const GatherMemory& shared, float (&sums)[kWarpHeads][kPerLane]) {
  const int lane = threadIdx.x % 32, head_dim = call.attention.head_dim;
  const SampledSegment& segment = *chunk.segment;
  const bool has_entry = lane < shared.num_entries;
  const float* own_values = nullptr;  // of entry `lane`, as what follows
  int visible = 0;
  if (has_entry) {
    own_values = segment.value_sums[call.attention.sums_offset +
                                    call.PlaceOf(segment, chunk.list, first + lane)];
    visible = call.VisibleKeys(segment, chunk.list, first + lane);
  }
  const int warp = threadIdx.x / 32, group = call.group();
  if (warp >= group) return;
  float rests[kWarpHeads] = {};  // of entry `lane`
#pragma unroll
  for (int h = 0; h < kWarpHeads; ++h) {
    const int head = warp + h * kWarps;
    if (head >= group || visible <= 0 || shared.draws[head].whole == 0) continue;
    const uint32_t heads = shared.heads[lane];
    const HeadDraw& draw = shared.draws[head];
    const uint64_t mass = MassOf(call, call.RowOf(chunk.list, head), first + lane, draw.top);
    float drawn = 0.0f;
    if (heads >> head & 1) {
      drawn = shared.masses[shared.first_pair[lane] + __popc(heads & ((1u << head) - 1))];
    }
    const double share = static_cast<double>(mass) / static_cast<double>(draw.whole);
    rests[h] = (static_cast<float>(share) - drawn) / visible;
  }
  constexpr int kAhead = 4;
  for (int base = 0; base < shared.num_entries; base += kAhead) {
    float columns[kAhead][kPerLane];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = min(base + i, shared.num_entries - 1);
      const auto values = __shfl_sync(~0u, reinterpret_cast<unsigned long long>(own_values), at);
      LoadColumns<float, kPerLane, kWhole>(reinterpret_cast<const float*>(values), head_dim,
                                           columns[i]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
#pragma unroll
      for (int h = 0; h < kWarpHeads; ++h) {
        const float weight = __shfl_sync(~0u, rests[h], (base + i) % 32);
        if (weight == 0.0f || base + i >= shared.num_entries) continue;
#pragma unroll
        for (int c = 0; c < kPerLane; ++c) sums[h][c] = fmaf(columns[i][c], weight, sums[h][c]);
      }
    }
  }
}

// The warps' in their order.
__device__ inline void StoreRates(const SampledCall& call, int list, RateSums rates,
                                  GatherMemory& shared) {
  rates.bounded = WarpSum(rates.bounded);
  rates.certain = WarpSum(rates.certain);
  if (threadIdx.x % 32 == 0) shared.rates[threadIdx.x / 32] = rates;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) rates.Add(shared.rates[w]);
  call.chunk_rates[call.ChunkOf(list, blockIdx.x)] = rates;
}

// A CTA a chunk of a list.
template <class T, int kPerLane, bool kWhole, int kGroup>
__global__ __launch_bounds__(kThreads) void GatherSharedRows(const SampledCall call) {
  __shared__ __align__(16) GatherMemory shared;
  WaitForPrevious();
  const Chunk chunk = ChunkOfCta(call);
  if (chunk.begin >= chunk.end) return;
  const int list = chunk.list;
  const float* state = call.StateOf(list);
  if (threadIdx.x < call.group()) {
    const HeadDraw& draw = call.heads[call.RowOf(list, threadIdx.x)];
    shared.log_norms[threadIdx.x] = state[2 + threadIdx.x] + draw.log_anchor;
  }
  float sums[kWarpHeads][kPerLane] = {};
  uint32_t counts[2] = {};
  RateSums rates{};
  GatherChunk<T, kPerLane, kWhole>(call, chunk, shared, counts, sums, [&](int first) {
    DrawSharedBatch<T, kGroup>(call, chunk, first, shared, counts, rates);
    if (call.HasVariate(list)) AddVariate<kPerLane, kWhole>(call, chunk, first, shared, sums);
  });
  StoreRates(call, list, rates, shared);
}

template <class T, int kPerLane, bool kWhole>
void LaunchGather(const SampledCall& call, cudaStream_t stream) {
  const SampledAttentionParams& params = call.attention;
  const dim3 grid(call.most_chunks, call.num_segments * params.num_kv_heads);
  if (params.num_q_heads / params.num_kv_heads <= 4) {
    LaunchKernel(stream, {grid, dim3(kThreads)}, GatherSharedRows<T, kPerLane, kWhole, 4>, call);
  } else {
    LaunchKernel(stream, {grid, dim3(kThreads)}, GatherSharedRows<T, kPerLane, kWhole, kMaxGroup>,
                 call);
  }
}

}  // namespace

void LaunchSharedGather(const SampledCall& call, cudaStream_t stream) {
  sampled_gather::ForRowsOf(call.attention, [&]<class T, int kPerLane, bool kWhole>() {
    LaunchGather<T, kPerLane, kWhole>(call, stream);
  });
}

}  // namespace augur::kernels
