#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/choose_channels.h"

namespace augur::kernels {
namespace {

constexpr int kMaxHeadDim = 256;  // a thread a column

// A CTA a (segment, kv head): a column is chosen when few enough are before it.
__global__ void __launch_bounds__(kMaxHeadDim) ChooseChannelsKernel(ChooseChannelsParams params) {
  WaitForPrevious();
  const ChooseChannelsSegment segment = params.segments[blockIdx.x];
  if (segment.channels == nullptr) return;
  const int kv_head = blockIdx.y, c = threadIdx.x, head_dim = params.head_dim;
  __shared__ float weights[kMaxHeadDim];
  __shared__ bool is_chosen[kMaxHeadDim];
  if (c < head_dim) {
    const float sum = segment.sums[params.sums_offset + int64_t{kv_head} * head_dim + c];
    weights[c] = sum >= 0.0f ? sum : 0.0f;  // NaN counts as nothing
  }
  __syncthreads();
  if (c < head_dim) {
    int before = 0;
    for (int other = 0; other < head_dim; ++other) {
      const bool wins = weights[other] > weights[c] || (weights[other] == weights[c] && other < c);
      before += wins ? 1 : 0;
    }
    is_chosen[c] = before < params.num_channels;
  }
  __syncthreads();
  if (c >= head_dim || !is_chosen[c]) return;
  int place = 0;
  for (int other = 0; other < c; ++other) place += is_chosen[other] ? 1 : 0;
  segment.channels[params.channels_offset + int64_t{kv_head} * params.num_channels + place] = c;
}

}  // namespace

void CudaBackend::ChooseChannels(const ChooseChannelsParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0);
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim <= kMaxHeadDim);
  AUGUR_CHECK(params.num_channels > 0 && params.num_channels <= params.head_dim);
  LaunchKernel(stream_, {dim3(params.num_segments, params.num_kv_heads), dim3(kMaxHeadDim)},
               ChooseChannelsKernel, params);
}

}  // namespace augur::kernels
