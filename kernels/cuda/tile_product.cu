#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/prefill_mma.h"
#include "kernels/cuda/tile_product.h"
#include "kernels/cuda/warp_math.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 128;  // four warps, 32 x 32 of the result each
constexpr int kTile = 64;
constexpr int kDepth = 32;  // of the sum, in shared memory at once
constexpr int kStages = 4;
constexpr int kChunk = 8;  // elements of 16 bytes
// Rows of shared memory are longer than what they hold, so that the eight rows of a fragment lie
// in different banks.
constexpr int kInsideStride = kDepth + kChunk;
constexpr int kOutsideStride = kTile + kChunk;
constexpr int kOperandElements = kTile * kInsideStride;  // as many as kDepth * kOutsideStride, +
static_assert(kOperandElements >= kDepth * kOutsideStride);

// 16 bytes, of which the first `bytes` are read and the others are 0.
__device__ inline void CopyPart(uint32_t to_shared, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from),
               "r"(bytes)
               : "memory");
}

// Elements [first, first + 64) by [depth, depth + 32) of an operand; 0 outside of it.
template <bool kOutside>
__device__ void LoadOperand(const TileOperand& operand, const __nv_bfloat16* data, int first,
                            int count, int depth, int summed, __nv_bfloat16* tile) {
  constexpr int kAcross = (kOutside ? kTile : kDepth) / kChunk;
  constexpr int kChunks = kTile * kDepth / kChunk;
  constexpr int kStride = kOutside ? kOutsideStride : kInsideStride;
#pragma unroll
  for (int n = 0; n < kChunks / kThreads; ++n) {
    const int chunk = n * kThreads + threadIdx.x;
    const int row = chunk / kAcross, column = chunk % kAcross * kChunk;
    const int outer = row + (kOutside ? depth : first);
    const int inner = column + (kOutside ? first : depth);
    const int outer_end = kOutside ? summed : count, inner_end = kOutside ? count : summed;
    const int left = outer < outer_end ? min(max(inner_end - inner, 0), kChunk) : 0;
    const __nv_bfloat16* from = left > 0 ? data + outer * operand.stride + inner : data;
    CopyPart(SharedAddress(tile + row * kStride + column), from, left * 2);
  }
}

// Four matrices of 8 x 8 of an operand at (first, depth): for A in the order of a 16 x 16
// fragment, for B the two fragments of 8 columns each.
template <bool kOutside, bool kIsA>
__device__ void LoadFragments(const __nv_bfloat16* tile, int first, int depth, uint32_t (&m)[4]) {
  const int lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
  const int far_first = (kIsA ? matrix % 2 : matrix / 2) * 8;
  const int far_depth = (kIsA ? matrix / 2 : matrix % 2) * 8;
  if constexpr (kOutside) {
    LoadMatricesTransposed(
        m, SharedAddress(tile + (depth + far_depth + row) * kOutsideStride + first + far_first));
  } else {
    LoadMatrices(
        m, SharedAddress(tile + (first + far_first + row) * kInsideStride + depth + far_depth));
  }
}

__device__ void StoreTile(const TileProduct& product, float* c, const float (&sums)[2][4][4],
                          int first_row, int first_column) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < 2; ++m) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int row = first_row + m * 16 + lane / 4 + i / 2 * 8;
        const int column = first_column + n * 8 + lane % 4 * 2 + i % 2;
        if (row >= product.rows || column >= product.columns) continue;
        float* const to = c + row * product.c_stride + column;
        const float value = sums[m][n][i] * product.scale;
        *to = product.accumulate ? *to + value : value;
      }
    }
  }
}

template <bool kAOutside, bool kBOutside>
__global__ void __launch_bounds__(kThreads) MultiplyTilesKernel(TileProduct product) {
  WaitForPrevious();
  __shared__ __align__(16) __nv_bfloat16 a_tiles[kStages][kOperandElements];
  __shared__ __align__(16) __nv_bfloat16 b_tiles[kStages][kOperandElements];
  const int first_row = blockIdx.y * kTile, first_column = blockIdx.x * kTile;
  const __nv_bfloat16* a = product.a.data + blockIdx.z * product.a.batch;
  const __nv_bfloat16* b = product.b.data + blockIdx.z * product.b.batch;
  const int steps = (product.summed + kDepth - 1) / kDepth;
  const auto load = [&](int step) {
    if (step < steps) {
      const int stage = step % kStages;
      LoadOperand<kAOutside>(product.a, a, first_row, product.rows, step * kDepth, product.summed,
                             a_tiles[stage]);
      LoadOperand<kBOutside>(product.b, b, first_column, product.columns, step * kDepth,
                             product.summed, b_tiles[stage]);
    }
    CommitCopies();
  };
  float sums[2][4][4] = {};
  const int warp = threadIdx.x / 32;
  const int warp_row = warp / 2 * 32, warp_column = warp % 2 * 32;
  for (int step = 0; step < kStages - 1; ++step) load(step);
  for (int step = 0; step < steps; ++step) {
    WaitForCopyGroups<kStages - 2>();
    __syncthreads();
    load(step + kStages - 1);
    const int stage = step % kStages;
#pragma unroll
    for (int depth = 0; depth < kDepth; depth += 16) {
      uint32_t a_fragments[2][4], b_fragments[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        LoadFragments<kAOutside, true>(a_tiles[stage], warp_row + m * 16, depth, a_fragments[m]);
        LoadFragments<kBOutside, false>(b_tiles[stage], warp_column + m * 16, depth,
                                        b_fragments[m]);
      }
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          MultiplyAdd<__nv_bfloat16>(sums[m][n], a_fragments[m], b_fragments[n / 2][n % 2 * 2],
                                     b_fragments[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
  }
  StoreTile(product, product.c + blockIdx.z * product.c_batch, sums, first_row + warp_row,
            first_column + warp_column);
}

void CheckOperand(const TileOperand& operand) {
  AUGUR_CHECK(IsAligned(operand.data, 16) && operand.stride % kChunk == 0 &&
              operand.batch % kChunk == 0);
}

}  // namespace

void MultiplyTiles(const TileProduct& product, cudaStream_t stream) {
  AUGUR_CHECK(product.rows >= 0 && product.columns >= 0 && product.summed >= 0);
  CheckOperand(product.a);
  CheckOperand(product.b);
  const auto tiles = [](int count) { return static_cast<unsigned>((count + kTile - 1) / kTile); };
  const LaunchShape shape{dim3(tiles(product.columns), tiles(product.rows), product.batches),
                          dim3(kThreads)};
  if (product.a.summed_outside) {
    AUGUR_CHECK(product.b.summed_outside);
    LaunchKernel(stream, shape, MultiplyTilesKernel<true, true>, product);
  } else if (product.b.summed_outside) {
    LaunchKernel(stream, shape, MultiplyTilesKernel<false, true>, product);
  } else {
    LaunchKernel(stream, shape, MultiplyTilesKernel<false, false>, product);
  }
}

}  // namespace augur::kernels
