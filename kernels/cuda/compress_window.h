// One window of compressed keys (kernels/ops/compress_keys.h), a few channels a thread: with the
// same bits in whatever kernel.
#pragma once

#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/fp8_row.h"
#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"

namespace augur::kernels {

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
#pragma unroll
    for (int i = 0; i < kWindowStride; ++i) {
      LoadFp8(reinterpret_cast<const uint8_t*>(page), params.head_dim, token % kBlockTokens + i,
              channel, keys[i]);
    }
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

// Channels `channel` and on of `window`.
template <class T, int kVector>
__device__ void WriteWindow(const CompressKeysParams& params, const CompressSegment& segment,
                            int window, int kv_head, int channel) {
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

}  // namespace augur::kernels
