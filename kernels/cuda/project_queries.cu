#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/project_queries.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kChains = 8;
constexpr int kMaxHeadDim = 256;

// A CTA a (segment, kv head), row after row: the group's sum, its turn, then a thread a (chain,
// channel).
__global__ void __launch_bounds__(kThreads) ProjectQueriesKernel(ProjectQueriesParams params) {
  WaitForPrevious();
  const QuerySegment segment = params.segments[blockIdx.x];
  if (segment.rows.num_rows <= 0) return;
  const int kv_head = blockIdx.y, head_dim = params.head_dim, channels = params.num_channels;
  const int half = head_dim / 2;
  __shared__ float query[kMaxHeadDim];
  __shared__ float chains[kChains * kMaxHeadDim];  // [kChains][channels]
  const float* basis = params.basis + int64_t{kv_head} * head_dim * head_dim;
  const int32_t* chosen = segment.channels + params.channels_offset + int64_t{kv_head} * channels;
  for (int i = 0; i < segment.rows.num_rows; ++i) {
    const int64_t row = int64_t{segment.rows.first_row} + i;
    const float* q =
        params.q + row * params.q_stride + int64_t{kv_head} * params.heads_per_group * head_dim;
    const int64_t angles = int64_t{segment.first_angle + segment.rows.first_position + i} * half;
    __syncthreads();  // the row before
    for (int d = threadIdx.x; d < half; d += kThreads) {
      float left = q[d], right = q[d + half];
      for (int head = 1; head < params.heads_per_group; ++head) {
        left += q[head * head_dim + d];
        right += q[head * head_dim + d + half];
      }
      const float cos = params.cos[angles + d], sin = params.sin[angles + d];
      query[d] = left * cos - right * sin;
      query[d + half] = right * cos + left * sin;
    }
    __syncthreads();
    for (int item = threadIdx.x; item < kChains * channels; item += kThreads) {
      const int chain = item / channels;
      const int32_t column = chosen[item % channels];
      if (column < 0 || column >= head_dim) __trap();  // the CPU's CHECK
      float sum = 0.0f;
#pragma unroll 4
      for (int d = chain; d < head_dim; d += kChains) {
        sum = fmaf(query[d], basis[d * head_dim + column], sum);
      }
      chains[item] = sum;
    }
    __syncthreads();
    float* out = params.out + (row * params.num_kv_heads + kv_head) * channels;
    for (int c = threadIdx.x; c < channels; c += kThreads) {
      const auto sum = [&](int chain) { return chains[chain * channels + c]; };
      out[c] = ((sum(0) + sum(4)) + (sum(2) + sum(6))) + ((sum(1) + sum(5)) + (sum(3) + sum(7)));
    }
  }
}

}  // namespace

void CudaBackend::ProjectQueries(const ProjectQueriesParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0 && params.heads_per_group > 0);
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim % kChains == 0 &&
              params.head_dim <= kMaxHeadDim);
  AUGUR_CHECK(params.num_channels > 0 && params.num_channels <= params.head_dim);
  AUGUR_CHECK(params.q_stride >= params.num_kv_heads * params.heads_per_group * params.head_dim);
  LaunchKernel(stream_, {dim3(params.num_segments, params.num_kv_heads), dim3(kThreads)},
               ProjectQueriesKernel, params);
}

}  // namespace augur::kernels
