// Sampled attention's third kernel for all estimators but kShared, and its last one: the chunks'
// sums together, what was drawn, and kShared's next state.
#include "kernels/check.h"
#include "kernels/cuda/sampled_gather.h"
#include "kernels/cuda/sampled_state.h"

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
    WalkTiles(call, chunk, first, shared, counts);
    __syncthreads();
  });
}

constexpr int kMergeThreads = 256;
constexpr int kMergeWarps = kMergeThreads / 32;
constexpr int kStrandChunks = kMaxChunks / kMergeWarps;
constexpr int kMaxHeadDim = 256;

// Of a head: chunks w, w + 8 and so on by warp w, all asked for at once, then the warps in order.
__device__ inline void MergeSums(const SampledCall& call, int list, int head, int num_chunks,
                                 float (&strands)[kMergeWarps][kMaxHeadDim]) {
  const SampledAttentionParams& params = call.attention;
  const int warp = threadIdx.x / 32, group = call.group(), head_dim = params.head_dim;
  const size_t row = call.RowOf(list, head);
  const float poison = call.heads[row].is_nan ? NAN : 0.0f;
  for (int column = threadIdx.x % 32; column < head_dim; column += 32) {
    float chunks[kStrandChunks];
#pragma unroll
    for (int i = 0; i < kStrandChunks; ++i) {
      const int chunk = warp + i * kMergeWarps;
      const size_t at = (call.ChunkOf(list, chunk) * group + head) * head_dim + column;
      chunks[i] = chunk < num_chunks ? call.chunk_sums[at] : 0.0f;
    }
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kStrandChunks; ++i) sum += chunks[i];
    strands[warp][column] = sum;
  }
  __syncthreads();
  const size_t out =
      (size_t(call.SegmentOf(list).row) * params.num_q_heads + call.KvHeadOf(list) * group + head) *
      head_dim;
  for (int column = threadIdx.x; column < head_dim; column += kMergeThreads) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kMergeWarps; ++w) sum += strands[w][column];
    StoreOut(params, out + column, sum + poison);
  }
}

// A CTA a query head.
__global__ __launch_bounds__(kMergeThreads) void MergeSampledChunks(
    const __grid_constant__ SampledCall call) {
  __shared__ float strands[kMergeWarps][kMaxHeadDim];
  WaitForPrevious();
  const SampledAttentionParams& params = call.attention;
  const int list = blockIdx.y, head = blockIdx.x;
  if (list == 0 && head == 0 && threadIdx.x == 0) *call.runs_taken = 0;
  const int entries = call.DrawnEntries(list);
  if (entries == 0) return;
  const int num_chunks = NumChunks(entries);
  MergeSums(call, list, head, num_chunks, strands);
  if (head != 0 || threadIdx.x >= 32) return;
  int64_t drawn[3] = {};
  RateSums rates{};
  for (int chunk = threadIdx.x; chunk < num_chunks; chunk += 32) {
    const ChunkCounts& counts = call.chunk_counts[call.ChunkOf(list, chunk)];
    drawn[0] += counts.draws;
    drawn[1] += counts.rows;
    drawn[2] += counts.distinct;
    if (params.estimator == ValueEstimator::kShared) {
      rates.Add(call.chunk_rates[call.ChunkOf(list, chunk)]);
    }
  }
  if (params.estimator == ValueEstimator::kShared)
    WriteNextState(call, list, call.heads + call.RowOf(list, 0), WarpSum(rates));
  for (int64_t& count : drawn) count = WarpSum(count);
  if (threadIdx.x != 0) return;
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
