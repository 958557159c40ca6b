#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"

namespace augur::kernels {
namespace {

// Four windows of 128 channels at a time, four channels a thread.
constexpr int kThreads = 128;
// Of one (segment, kv head): 64 times four windows are a chunk of 4096 tokens in one round.
constexpr int kMaxCtas = 64;

// Of 16 keys of an fp8 page, likewise.
template <int kVector>
__device__ void LoadFp8Keys(const CompressKeysParams& params, const uint8_t* page, int token,
                            int channel, float (&keys)[kWindowStride][kVector]) {
  const uint8_t* exponents = page + kBlockTokens * params.head_dim;
#pragma unroll
  for (int i = 0; i < kWindowStride; ++i) {
    const float scale = fp8::UnpackingScale(exponents[token + i]);
    const uint8_t* codes = page + (token + i) * params.head_dim + channel;
#pragma unroll
    for (int c = 0; c < kVector; ++c) keys[i][c] = fp8::FloatFromE4M3(codes[c]) * scale;
  }
}

// Channels `channel` and on of 16 keys from `token` on, one ascending chain each; the keys never
// cross a page.
template <class T, int kVector>
__device__ void SumKeys(const CompressKeysParams& params, const CompressSegment& segment, int token,
                        int kv_head, int channel, float (&sums)[kVector]) {
  const int entry = token / kBlockTokens - (segment.rows.first_position / kBlockTokens - 1);
  const int block_stride = segment.block_stride > 0 ? segment.block_stride : params.num_kv_heads;
  const auto* page =
      reinterpret_cast<const T*>(segment.pages[params.pages_offset + int64_t{entry} * block_stride +
                                               int64_t{kv_head} * segment.head_stride]);
  const T* key = page + token % kBlockTokens * params.head_dim + channel;
  float keys[kWindowStride][kVector];
  if (params.fp8.holds(reinterpret_cast<const std::byte*>(page))) {
    LoadFp8Keys(params, reinterpret_cast<const uint8_t*>(page), token % kBlockTokens, channel,
                keys);
  } else {
#pragma unroll
    for (int i = 0; i < kWindowStride; ++i) LoadFloats(key + i * params.head_dim, keys[i]);
  }
#pragma unroll
  for (int c = 0; c < kVector; ++c) sums[c] = 0.0f;
#pragma unroll
  for (int i = 0; i < kWindowStride; ++i) {
#pragma unroll
    for (int c = 0; c < kVector; ++c) sums[c] += keys[i][c];
  }
}

// A CTA strides over the windows of one (segment, kv head). Most decode calls end no window.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) CompressKeysKernel(CompressKeysParams params) {
  WaitForPrevious();
  const Segment rows = params.segments[blockIdx.x].rows;
  if (rows.num_rows <= 0) return;
  const int first_window = rows.first_position == 0 ? 0 : CompleteWindows(rows.first_position - 1);
  const int windows = CompleteWindows(rows.first_position + rows.num_rows - 1) - first_window;
  if (windows == 0) return;
  const CompressSegment segment = params.segments[blockIdx.x];
  const int kv_head = blockIdx.y;
  const int head_vectors = params.head_dim / kVector;
  const int step = gridDim.z * kThreads;
  for (int item = blockIdx.z * kThreads + threadIdx.x; item < windows * head_vectors;
       item += step) {
    const int window = first_window + item / head_vectors;
    const int channel = item % head_vectors * kVector;
    const int token = window * kWindowStride;
    float first[kVector], second[kVector];
    SumKeys<T>(params, segment, token, kv_head, channel, first);
    SumKeys<T>(params, segment, token + kWindowStride, kv_head, channel, second);
#pragma unroll
    for (int c = 0; c < kVector; ++c) first[c] = (first[c] + second[c]) * (1.0f / kWindowTokens);
    const int block = (token + kWindowTokens - 1) / kBlockTokens;
    T* keys = reinterpret_cast<T*>(
        segment.key_pages[params.key_pages_offset + int64_t{kv_head} * segment.key_page_stride +
                          block / kKeyPageBlocks]);
    const int place = block % kKeyPageBlocks * kBlockWindows + (window + 1) % kBlockWindows;
    StoreFloats(first, keys + place * params.head_dim + channel);
  }
}

}  // namespace

// Pages and compressed keys are aligned to four elements where head_dim is a multiple of four.
void CudaBackend::CompressKeys(const CompressKeysParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0 && params.head_dim > 0);
  const int lists = params.num_segments * params.num_kv_heads;
  if (lists == 0) return;
  // Two CTAs an SM: few segments (a prefill call) share them, many (decode) have one each.
  const int ctas = std::clamp(2 * num_sms_ / lists, 1, kMaxCtas);
  const LaunchShape shape{dim3(params.num_segments, params.num_kv_heads, ctas), dim3(kThreads)};
  ForElementType(params.dtype, [&]<class T>() {
    const bool is_wide = params.head_dim % 4 == 0;
    LaunchKernel(stream_, shape, is_wide ? CompressKeysKernel<T, 4> : CompressKeysKernel<T, 1>,
                 params);
  });
}

}  // namespace augur::kernels
