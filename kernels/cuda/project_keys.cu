#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/fp8_row.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_page.h"
#include "kernels/ops/project_keys.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kRoundTokens = 16;  // whose keys are in shared memory
constexpr int kChains = 8;
// Of one (segment, kv head): a prompt's tokens are many, a decode row is one.
constexpr int kMaxCtas = 64;
constexpr int kMaxHeadDim = 256;

// Keys of `tokens` tokens into shared memory, as float.
template <class T, int kVector>
__device__ void LoadKeys(const T* from, int head_dim, int tokens, float* keys) {
  const int vectors = tokens * head_dim / kVector;
  for (int i = threadIdx.x; i < vectors; i += kThreads) {
    float values[kVector];
    LoadFloats(from + i * kVector, values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) keys[i * kVector + j] = values[j];
  }
}

// Likewise of an fp8 page, from `token` on: the keys of a sequence that comes back are read where
// they lie in the host pool.
template <int kVector>
__device__ void LoadFp8Keys(const uint8_t* page, int head_dim, int token, int tokens, float* keys) {
  const int vectors = tokens * head_dim / kVector;
  for (int i = threadIdx.x; i < vectors; i += kThreads) {
    const int first = i * kVector;
    float values[kVector];
    LoadFp8(page, head_dim, token + first / head_dim, first % head_dim, values);
#pragma unroll
    for (int j = 0; j < kVector; ++j) keys[first + j] = values[j];
  }
}

// A CTA strides over the blocks of one (segment, kv head); a thread makes an element of a partial
// key. Dynamic shared memory: the chosen columns [head_dim][num_channels], then keys
// [kRoundTokens][head_dim].
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) ProjectKeysKernel(ProjectKeysParams params) {
  WaitForPrevious();
  const ProjectSegment segment = params.segments[blockIdx.x];
  if (segment.rows.num_rows <= 0) return;
  const int begin = segment.rows.first_position, end = begin + segment.rows.num_rows;
  const int first_block = begin / kBlockTokens;
  const int blocks = (end - 1) / kBlockTokens - first_block + 1;
  if (static_cast<int>(blockIdx.z) >= blocks) return;
  const int kv_head = blockIdx.y, head_dim = params.head_dim, channels = params.num_channels;
  extern __shared__ __align__(16) float columns[];
  float* const keys = columns + head_dim * channels;
  const int32_t* chosen = segment.channels + params.channels_offset + int64_t{kv_head} * channels;
  const float* basis = params.basis + int64_t{kv_head} * head_dim * head_dim;
  for (int i = threadIdx.x; i < head_dim * channels; i += kThreads) {
    const int32_t column = chosen[i % channels];
    // The CPU's CHECK.
    if (column < 0 || column >= head_dim) __trap();
    columns[i] = basis[i / channels * head_dim + column];
  }
  const int block_stride = segment.block_stride > 0 ? segment.block_stride : params.num_kv_heads;
  for (int entry = blockIdx.z; entry < blocks; entry += gridDim.z) {
    const int block = first_block + entry;
    const std::byte* const page =
        segment.pages[params.pages_offset + int64_t{entry} * block_stride +
                      int64_t{kv_head} * segment.head_stride];
    const bool is_fp8 = params.fp8.holds(page);
    T* target =
        reinterpret_cast<T*>(
            segment.targets[params.targets_offset + int64_t{kv_head} * segment.target_stride +
                            block / kPartialPageBlocks]) +
        block % kPartialPageBlocks * kBlockTokens * channels;
    const int first = max(begin - block * kBlockTokens, 0);
    const int last = min(end - block * kBlockTokens, kBlockTokens);
    for (int token = first; token < last; token += kRoundTokens) {
      const int tokens = min(kRoundTokens, last - token);
      __syncthreads();  // the columns, and everyone is through with the keys
      if (is_fp8) {
        LoadFp8Keys<kVector>(reinterpret_cast<const uint8_t*>(page), head_dim, token, tokens, keys);
      } else {
        LoadKeys<T, kVector>(reinterpret_cast<const T*>(page) + token * head_dim, head_dim, tokens,
                             keys);
      }
      __syncthreads();
      for (int item = threadIdx.x; item < tokens * channels; item += kThreads) {
        const float* key = keys + item / channels * head_dim;
        const float* column = columns + item % channels;
        float sums[kChains] = {};
        for (int d = 0; d < head_dim; d += kChains) {
#pragma unroll
          for (int i = 0; i < kChains; ++i) {
            sums[i] = fmaf(key[d + i], column[(d + i) * channels], sums[i]);
          }
        }
        const float sum = ((sums[0] + sums[4]) + (sums[2] + sums[6])) +
                          ((sums[1] + sums[5]) + (sums[3] + sums[7]));
        target[token * channels + item] = FromFloat<T>(sum);
      }
    }
  }
}

}  // namespace

// Pages are aligned to four elements.
void CudaBackend::ProjectKeys(const ProjectKeysParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0);
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim % kChains == 0 &&
              params.head_dim <= kMaxHeadDim);
  AUGUR_CHECK(params.num_channels > 0 && params.num_channels <= params.head_dim);
  const int lists = params.num_segments * params.num_kv_heads;
  if (lists == 0) return;
  const int ctas = std::clamp(2 * num_sms_ / lists, 1, kMaxCtas);
  const LaunchShape shape{.grid = dim3(params.num_segments, params.num_kv_heads, ctas),
                          .block = dim3(kThreads),
                          .shared_bytes = sizeof(float) * params.head_dim *
                                          (size_t(params.num_channels) + kRoundTokens)};
  ForElementType(params.dtype, [&]<class T>() {
    const auto kernel = ProjectKeysKernel<T, 4>;
    AUGUR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shape.shared_bytes)));
    LaunchKernel(stream_, shape, kernel, params);
  });
}

}  // namespace augur::kernels
