// Products of a group's query heads with keys in shared memory: what exact and sampled attention
// of single rows have in common, so that a key's score has the same bits in both. Device code.
//
// The hardware's layout leaves free which element of K's rows is which of a product's depth: a
// thread takes 16 bytes of a key at a time, elements 32 j + 8 t and following, as depths 2 t,
// 2 t + 1, 2 t + 8, 2 t + 9 of steps 2 j and 2 j + 1. Which key is which column is the caller's
// choice. Lane 4 g + t holds of a result rows g and g + 8 (query heads) and columns 2 t, 2 t + 1.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/warp_math.h"

namespace augur::kernels {

// Of an mma tile: the query heads of a group, padded with zeros.
inline constexpr int kTileRows = 16;

// The query heads of a list, [group][kHeadDim], 16 bytes aligned, as the left side of the products
// with K.
template <class T, int kHeadDim>
__device__ inline void LoadQueries(const float* heads, int group,
                                   uint32_t (&queries)[kHeadDim / 16][4]) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int head = g + 8 * half, column = step / 2 * 32 + 8 * t + step % 2 * 4;
      float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (head < group) four = *reinterpret_cast<const float4*>(heads + head * kHeadDim + column);
      queries[step][half] = PackPair<T>(four.x, four.y);
      queries[step][half + 2] = PackPair<T>(four.z, four.w);
    }
  }
}

// q k of eight keys; `key` is this lane's: that of column g.
template <class T, int kHeadDim>
__device__ inline void ScoreEightKeys(const std::byte* key,
                                      const uint32_t (&queries)[kHeadDim / 16][4], float scale,
                                      float (&scores)[4]) {
  const std::byte* row = key + threadIdx.x % 4 * 16;
  // Two sums, over even and odd steps: half as long a chain of dependent products.
  float even[4] = {}, odd[4] = {};
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; step += 2) {
    const uint4 b = *reinterpret_cast<const uint4*>(row + step * 32);
    MultiplyAdd<T>(even, queries[step], b.x, b.y);
    MultiplyAdd<T>(odd, queries[step + 1], b.z, b.w);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) scores[i] = (even[i] + odd[i]) * scale;
}

}  // namespace augur::kernels
