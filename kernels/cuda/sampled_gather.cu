// Sampled attention's third kernel for all estimators but kShared, and its last one: the chunks'
// sums together, what was drawn, and kShared's next state.
#include "kernels/check.h"
#include "kernels/cuda/sampled_gather.h"

namespace augur::kernels {
namespace {

using sampled_gather::Chunk;
using sampled_gather::ChunkOfCta;
using sampled_gather::GatherChunk;
using sampled_gather::GatherMemory;
using sampled_gather::kCtasAnSm;
using sampled_gather::kThreads;
using sampled_gather::kWarpHeads;
using sampled_gather::ListPairs;
using sampled_gather::WalkTiles;

// A CTA a chunk of a list.
template <class T, int kPerLane, bool kWhole>
__global__ __launch_bounds__(kThreads, kCtasAnSm) void GatherSampledRows(const SampledCall call) {
  __shared__ __align__(16) GatherMemory shared;
  WaitForPrevious();
  const Chunk chunk = ChunkOfCta(call);
  if (chunk.begin >= chunk.end) return;
  float sums[kWarpHeads][kPerLane] = {};
  uint32_t counts[2] = {};
  GatherChunk<T, kPerLane, kWhole>(call, chunk, shared, counts, sums, [&](int first) {
    ListPairs<T>(call, chunk, first, shared);
    __syncthreads();
    WalkTiles<false>(call, chunk, first, shared, counts);
    __syncthreads();
  });
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

// The rates' bounds and the predictions' rise: cpu/value_sampling.cc.
constexpr double kMostRowsRate = 16.0;
constexpr float kStateRise = 0.5f;

// As the CPU's DrawShared and BeginShared leave it, from the exact normalisers and the chunks'
// rates.
__device__ inline void WriteNextState(const SampledCall& call, int list, int num_chunks) {
  const SampledAttentionParams& params = call.attention;
  const int group = call.group(), samples = call.SamplesOf(call.SegmentOf(list));
  const float* state = call.StateOf(list);
  float* next_state = call.NextStateOf(list);
  const HeadDraw* heads = call.heads + call.RowOf(list, 0);
  bool is_nan = false;
  RateSums rates{};
  for (int head = 0; head < group; ++head) is_nan |= heads[head].is_nan;
  for (int chunk = 0; chunk < num_chunks && !is_nan; ++chunk) {
    const RateSums& of_chunk = call.chunk_rates[call.ChunkOf(list, chunk)];
    rates.unbounded += of_chunk.unbounded;
    rates.bounded += of_chunk.bounded;
    rates.certain += of_chunk.certain;
  }
  const bool is_fresh = state[0] == 0.0f;
  const float lambda = state[1];
  double off = 0;
  for (int head = 0; head < group; ++head) {
    const HeadDraw& draw = heads[head];
    const float seen = state[2 + head], now = draw.log_norm - draw.log_anchor;
    off += draw.log_norm - (seen + draw.log_anchor);
    next_state[2 + head] = is_nan ? seen : is_fresh ? now : fminf(now, seen + kStateRise);
  }
  next_state[0] = is_nan ? state[0] : 1.0f;
  if (is_nan || is_fresh) {
    next_state[1] =
        is_nan ? lambda : static_cast<float>(samples / fmax(rates.unbounded / kQ32, 1.0));
    return;
  }
  double next = lambda * exp2(off / group);
  if (params.budget == ValueBudget::kDraws) {
    next *= samples * kQ32 / rates.unbounded;
  } else {
    const double wanted = fmax(0.25, samples - static_cast<double>(rates.certain));
    next *= rates.bounded > 0 ? wanted * kQ32 / static_cast<double>(rates.bounded) : 2.0;
  }
  if (!isfinite(next)) next = samples;
  const double least = static_cast<double>(samples) / group;
  const double most = params.budget == ValueBudget::kDraws ? samples : samples * kMostRowsRate;
  next_state[1] = static_cast<float>(fmin(fmax(next, least), most));
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
    const float* sums =
        call.chunk_sums + (call.ChunkOf(list, 0) * group + head) * params.head_dim + column;
    const size_t stride = size_t(group) * params.head_dim;
    float sum = 0.0f;
#pragma unroll 16
    for (int chunk = 0; chunk < num_chunks; ++chunk) sum += sums[chunk * stride];
    StoreOut(params, out + column, sum + poison);
  }
  if (head != 0 || threadIdx.x != 0) return;
  if (params.estimator == ValueEstimator::kShared) WriteNextState(call, list, num_chunks);
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
  const dim3 grid(call.most_chunks, call.num_segments * call.attention.num_kv_heads);
  LaunchKernel(stream, {grid, dim3(kThreads)}, GatherSampledRows<T, kPerLane, kWhole>, call);
}

}  // namespace

void LaunchSampledGather(const SampledCall& call, cudaStream_t stream) {
  if (call.attention.estimator == ValueEstimator::kShared) {
    LaunchSharedGather(call, stream);
  } else {
    sampled_gather::ForRowsOf(call.attention, [&]<class T, int kPerLane, bool kWhole>() {
      LaunchGather<T, kPerLane, kWhole>(call, stream);
    });
  }
  const SampledAttentionParams& params = call.attention;
  const dim3 grid(params.num_q_heads / params.num_kv_heads,
                  call.num_segments * params.num_kv_heads);
  LaunchKernel(stream, {grid, dim3(kMergeThreads)}, MergeSampledChunks, call);
}

}  // namespace augur::kernels
