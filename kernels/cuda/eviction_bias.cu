#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_page.h"
#include "kernels/ops/eviction_bias.h"

namespace augur::kernels {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMaxCtas = 128;             // of one segment
constexpr float kSoftplusLinear = 20.0f;  // torch.nn.functional.softplus's threshold

// Entry of a block in the segment's lists: `touched` is 0 for the first one that the rows fall
// into.
__device__ inline int64_t EntryOf(const EvictionBiasParams& params, const EvictionSegment& segment,
                                  int touched, int head) {
  const int block_stride = segment.block_stride > 0 ? segment.block_stride : params.num_kv_heads;
  return int64_t{touched} * block_stride + int64_t{head} * segment.head_stride;
}

// Biases are preceded by those of the block before.
__device__ inline float* BiasesOf(const EvictionBiasParams& params, const EvictionSegment& segment,
                                  int touched, int head) {
  return segment.biases[params.biases_offset + EntryOf(params, segment, touched + 1, head)];
}

__device__ inline float WarpSum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

// A warp a token: its values of all kv heads against each kv head's weights, a lane a chain.
template <class T>
__global__ void __launch_bounds__(kThreads) EvictionBiasKernel(EvictionBiasParams params) {
  WaitForPrevious();
  const EvictionSegment segment = params.segments[blockIdx.x];
  const Segment rows = segment.rows;
  const int kv_heads = params.num_kv_heads, head_dim = params.head_dim;
  const int first_block = rows.first_position / kBlockTokens;
  const int lane = threadIdx.x % kWarp;
  for (int i = blockIdx.y * kWarps + threadIdx.x / kWarp; i < rows.num_rows;
       i += gridDim.y * kWarps) {
    const int token = rows.first_position + i;
    const int touched = token / kBlockTokens - first_block, at = token % kBlockTokens;
    for (int head = 0; head < kv_heads; ++head) {
      float sum = 0.0f;
      for (int source = 0; source < kv_heads; ++source) {
        const T* values =
            reinterpret_cast<const T*>(
                segment.pages[params.pages_offset + EntryOf(params, segment, touched, source)]) +
            (kBlockTokens + at) * head_dim;
        const float* weight = params.weight + (int64_t{head} * kv_heads + source) * head_dim;
        for (int d = lane; d < head_dim; d += kWarp) sum = fmaf(ToFloat(values[d]), weight[d], sum);
      }
      sum = WarpSum(sum);
      if (lane != 0) continue;
      if (params.bias != nullptr) sum += params.bias[head];
      const float softplus = sum > kSoftplusLinear ? sum : log1pf(expf(sum));
      BiasesOf(params, segment, touched, head)[at] = params.gate[head] * softplus;
    }
  }
}

__device__ inline float SumWindowHalf(const float* biases) {
  float values[kWindowStride];
#pragma unroll
  for (int i = 0; i < kWindowStride; ++i) values[i] = biases[i];
  float sum = values[0];
#pragma unroll
  for (int i = 1; i < kWindowStride; ++i) sum += values[i];
  return sum;
}

// A thread a (window, kv head) that ends in the rows. Most decode calls end none.
__global__ void __launch_bounds__(kThreads) BiasMeansKernel(EvictionBiasParams params) {
  WaitForPrevious();
  const EvictionSegment segment = params.segments[blockIdx.x];
  const Segment rows = segment.rows;
  if (rows.num_rows <= 0 || segment.mean_pages == nullptr) return;
  const WindowRange windows = WindowsEndingIn(rows);
  const int first_block = rows.first_position / kBlockTokens;
  const auto half_of = [&](int token, int head) {
    return SumWindowHalf(BiasesOf(params, segment, token / kBlockTokens - first_block, head) +
                         token % kBlockTokens);
  };
  for (int item = blockIdx.y * kThreads + threadIdx.x; item < windows.count() * params.num_kv_heads;
       item += gridDim.y * kThreads) {
    const int window = windows.begin + item / params.num_kv_heads;
    const int head = item % params.num_kv_heads;
    const int token = window * kWindowStride;
    const int block = (token + kWindowTokens - 1) / kBlockTokens;
    float* means =
        segment.mean_pages[params.means_offset + int64_t{head} * segment.mean_page_stride +
                           block / kKeyPageBlocks];
    means[block % kKeyPageBlocks * kBlockWindows + (window + 1) % kBlockWindows] =
        (half_of(token, head) + half_of(token + kWindowStride, head)) * (1.0f / kWindowTokens);
  }
}

}  // namespace

void CudaBackend::EvictionBias(const EvictionBiasParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0 && params.head_dim > 0);
  AUGUR_CHECK(params.gate != nullptr && params.weight != nullptr);
  if (params.num_segments == 0) return;
  // As CompressKeys: few segments share the device, many have a CTA each.
  const int ctas = std::clamp(4 * num_sms_ / params.num_segments, 1, kMaxCtas);
  ForElementType(params.dtype, [&]<class T>() {
    LaunchKernel(stream_, {dim3(params.num_segments, ctas), dim3(kThreads)}, EvictionBiasKernel<T>,
                 params);
  });
  const int mean_ctas = std::clamp(num_sms_ / params.num_segments, 1, 8);
  LaunchKernel(stream_, {dim3(params.num_segments, mean_ctas), dim3(kThreads)}, BiasMeansKernel,
               params);
}

}  // namespace augur::kernels
