// What the kernels of warpgroup products (wgmma_prefill_attention.cu, sparse_prefill_attention.cu)
// share: one warpgroup copies K and V of pages into operands in shared memory (SwizzledColumnOffset
// says how they lie), others have 64 rows each, 16 a warp, and multiply. Device code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/prefill_mma.h"
#include "kernels/cuda/prefill_rows.h"
#include "kernels/cuda/prefill_tiles.h"
#include "kernels/cuda/prefill_wgmma.h"

namespace augur::kernels {

inline constexpr int kWarpgroup = 128;
inline constexpr int kWarpgroupRows = 64;

// Barriers by name; 0 is __syncthreads().
template <int kBarrier, int kArrivals>
__device__ __forceinline__ void SyncNamed(int next = 0) {
  asm volatile("bar.sync %0, %1;" ::"r"(kBarrier + next), "n"(kArrivals) : "memory");
}

template <int kBarrier, int kArrivals>
__device__ __forceinline__ void ArriveNamed(int next) {
  asm volatile("bar.arrive %0, %1;" ::"r"(kBarrier + next), "n"(kArrivals) : "memory");
}

// Calls body(i, offset in its operand of kRows rows) for this thread's chunks of one page's K or V:
// chunk thread + i * kWarpgroup in the order of global memory.
template <int kHeadDim, int kRows, class Body>
__device__ __forceinline__ void ForOwnChunks(Body&& body) {
  constexpr int kChunks = kHeadDim / 8;
  static_assert(kWarpgroup % (8 * kChunks) == 0);  // a step is whole eights of rows
  const int thread = threadIdx.x % kWarpgroup;
  const int first = SwizzledColumnOffset<kRows>(thread / kChunks, thread % kChunks);
#pragma unroll
  for (int i = 0; i < kBlockTokens * kChunks / kWarpgroup; ++i) {
    body(i, first + i * (kWarpgroup / kChunks) * 128);
  }
}

// Starts a warpgroup's copy of one page's K or V.
template <int kHeadDim, int kRows>
__device__ __forceinline__ void CopyHalfPage(const std::byte* from, uint32_t to_shared) {
  from += threadIdx.x % kWarpgroup * 16;
  ForOwnChunks<kHeadDim, kRows>(
      [&](int i, int offset) { CopyChunk(to_shared + offset, from + i * kWarpgroup * 16); });
}

template <int kHeadDim>
using Queries = uint32_t[kHeadDim / 16][4];  // A fragments

// The warp's 16 rows from packed row `begin` on, rounded to T; rows behind the tile's end are 0.
template <class T, int kHeadDim>
__device__ __forceinline__ void LoadQueries(const PagedAttentionParams& params,
                                            const TileRows& tile, int begin,
                                            Queries<kHeadDim>& queries) {
  const int lane = threadIdx.x % 32;
  const bool aligned =
      params.q_stride % 2 == 0 && reinterpret_cast<uintptr_t>(params.q) % sizeof(float2) == 0;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int packed = begin + row * 8 + lane / 4;
    const bool is_there = packed < tile.span.end;
    const int at = is_there ? packed : tile.span.begin;
    const int64_t token = tile.first_row + at / tile.span.group;
    const int head = tile.first_head + at % tile.span.group;
    const float* const from = params.q + token * params.q_stride + head * kHeadDim + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {  // chunks of 8 columns
      float2 pair;
      if (aligned) {
        pair = *reinterpret_cast<const float2*>(from + i * 8);
      } else {
        pair = {from[i * 8], from[i * 8 + 1]};
      }
      queries[i / 2][i % 2 * 2 + row] = is_there ? PackPair<T>(pair.x, pair.y) : 0u;
    }
  }
}

// Starts scores = queries K^T over an operand of kKeyTiles * 8 keys.
template <class T, int kHeadDim, int kKeyTiles>
__device__ __forceinline__ void StartScores(const Queries<kHeadDim>& queries, uint32_t keys,
                                            float (&scores)[kKeyTiles][4]) {
  constexpr int kRows = kKeyTiles * 8;
  FenceRegisters();
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    const uint32_t at = keys + step / 4 * kSwizzledColumnBytes<kRows> + step % 4 * 32;
    StartProduct<T, false>(scores, queries[step], SharedMatrix<kRows>(at), step > 0);
  }
  CommitProducts();
}

// Starts rows += weights V over an operand of kSteps * 16 keys.
template <class T, int kHeadDim, int kSteps>
__device__ __forceinline__ void StartValues(const uint32_t (&weights)[kSteps][4], uint32_t values,
                                            FragmentRows<kHeadDim>& rows) {
  constexpr int kRows = kSteps * 16;
  FenceRegisters();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    StartProduct<T, true>(rows.out, weights[step], SharedMatrix<kRows>(values + step * 16 * 128),
                          true);
  }
  CommitProducts();
}

}  // namespace augur::kernels
