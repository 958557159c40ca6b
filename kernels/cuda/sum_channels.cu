#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/sum_channels.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kTogether = 8;  // (row, head)s whose products a thread has under way
constexpr int kMaxHeadDim = 256;
// Of a basis that fits shared memory beside the queries, three CTAs an SM at head_dim 128.
constexpr int kMostSharedDim = 160;

__device__ inline int RunsOf(const Segment& rows) {
  return rows.num_rows > 0 ? (rows.num_rows + kSumRunRows - 1) / kSumRunRows : 0;
}

// [kTogether] products of a basis' column c with queries in shared memory, each one chain.
__device__ inline void Multiply(const float* queries, const float* basis, int head_dim, int c,
                                float (&sums)[kTogether]) {
  for (int d = 0; d < head_dim; d += 4) {
    float column[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) column[i] = basis[(d + i) * head_dim + c];
#pragma unroll
    for (int p = 0; p < kTogether; ++p) {
      const float4 q = *reinterpret_cast<const float4*>(queries + p * head_dim + d);
      sums[p] = fmaf(q.x, column[0], sums[p]);
      sums[p] = fmaf(q.y, column[1], sums[p]);
      sums[p] = fmaf(q.z, column[2], sums[p]);
      sums[p] = fmaf(q.w, column[3], sums[p]);
    }
  }
}

// A CTA a (run, kv head) adds up the run's magnitudes, a thread a column or two.
template <bool kSharedBasis>
__global__ void __launch_bounds__(kThreads) SumRunsKernel(SumChannelsParams params) {
  WaitForPrevious();
  int segment_index = 0, run = blockIdx.x;
  for (; segment_index < params.num_segments; ++segment_index) {
    const int runs = RunsOf(params.segments[segment_index].rows);
    if (run < runs) break;
    run -= runs;
  }
  if (segment_index == params.num_segments) return;
  const Segment rows = params.segments[segment_index].rows;
  const int head_dim = params.head_dim, heads = params.heads_per_group, kv_head = blockIdx.y;
  extern __shared__ __align__(16) float shared[];
  float* const queries = shared;  // [kTogether][head_dim]
  const float* basis = params.basis + int64_t{kv_head} * head_dim * head_dim;
  if constexpr (kSharedBasis) {
    float* const kept = shared + kTogether * head_dim;
    for (int i = threadIdx.x; i < head_dim * head_dim; i += kThreads) kept[i] = basis[i];
    basis = kept;
  }
  const int first_row = run * kSumRunRows;
  const int pairs = min(kSumRunRows, rows.num_rows - first_row) * heads;
  constexpr int kColumns = kMaxHeadDim / kThreads;
  float totals[kColumns] = {};
  for (int pair = 0; pair < pairs; pair += kTogether) {
    __syncthreads();  // the basis, and everyone is through with the queries
    for (int i = threadIdx.x; i < kTogether * head_dim; i += kThreads) {
      const int at = pair + i / head_dim;
      const int64_t row = int64_t{rows.first_row} + first_row + at / heads;
      queries[i] = at < pairs ? params.q[row * params.q_stride +
                                         (kv_head * heads + at % heads) * head_dim + i % head_dim]
                              : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const int c = n * kThreads + threadIdx.x;
      if (c >= head_dim) break;
      float sums[kTogether] = {};
      Multiply(queries, basis, head_dim, c, sums);
#pragma unroll
      for (int p = 0; p < kTogether; ++p) totals[n] += fabsf(sums[p]);
    }
  }
  float* const out = params.runs + (int64_t{blockIdx.x} * params.num_kv_heads + kv_head) * head_dim;
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    const int c = n * kThreads + threadIdx.x;
    if (c < head_dim) out[c] = totals[n];
  }
}

// A CTA a (segment, kv head): its runs, ascending.
__global__ void __launch_bounds__(kMaxHeadDim) AddRunsKernel(SumChannelsParams params) {
  WaitForPrevious();
  const ChannelSegment segment = params.segments[blockIdx.x];
  int first_run = 0;
  for (int s = 0; s < static_cast<int>(blockIdx.x); ++s) {
    first_run += RunsOf(params.segments[s].rows);
  }
  const int kv_head = blockIdx.y, c = threadIdx.x, runs = RunsOf(segment.rows);
  if (c >= params.head_dim || runs == 0) return;
  float* const to = segment.sums + params.sums_offset + int64_t{kv_head} * params.head_dim + c;
  float sum = *to;
  for (int run = first_run; run < first_run + runs; ++run) {
    sum += params.runs[(int64_t{run} * params.num_kv_heads + kv_head) * params.head_dim + c];
  }
  *to = sum;
}

}  // namespace

void CudaBackend::SumChannels(const SumChannelsParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.rows >= 0 && params.num_kv_heads > 0 &&
              params.heads_per_group > 0);
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim % 4 == 0 && params.head_dim <= kMaxHeadDim);
  AUGUR_CHECK(params.q_stride >= params.num_kv_heads * params.heads_per_group * params.head_dim);
  AUGUR_CHECK(params.num_segments == 0 || params.runs != nullptr);
  const bool is_shared = params.head_dim <= kMostSharedDim;
  const auto kernel = is_shared ? SumRunsKernel<true> : SumRunsKernel<false>;
  const int shared_rows = kTogether + (is_shared ? params.head_dim : 0);
  const size_t bytes = sizeof(float) * params.head_dim * shared_rows;
  AUGUR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
  const int runs = params.num_segments == 0 ? 0 : SumRuns(params.rows, params.num_segments);
  LaunchKernel(
      stream_,
      {.grid = dim3(runs, params.num_kv_heads), .block = dim3(kThreads), .shared_bytes = bytes},
      kernel, params);
  LaunchKernel(stream_, {dim3(params.num_segments, params.num_kv_heads), dim3(kMaxHeadDim)},
               AddRunsKernel, params);
}

}  // namespace augur::kernels
