#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/rms_norm.h"

namespace augur::kernels {
namespace {

constexpr int kWarp = 32;
constexpr int kMinThreads = 128;
constexpr int kMaxThreads = 1024;  // a row of 4096 in one load each: decode calls have few rows
// Vectors of a row that a thread keeps between the two passes; 1024 threads hold 16384 floats.
constexpr int kKept = 4;

// The same bits in every lane: both partners of an exchange add the same two numbers.
__device__ float WarpSum(float value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

// The order of the sum follows from the number of threads, which follows from the row's length.
__device__ float BlockSum(float value) {
  __shared__ float sums[kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  value = WarpSum(value);
  if (lane == 0) sums[warp] = value;
  __syncthreads();
  return WarpSum(lane < static_cast<int>(blockDim.x) / kWarp ? sums[lane] : 0.0f);
}

template <int kVector>
__device__ float AddSquares(const float (&x)[kVector], float sum) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum = fmaf(x[i], x[i], sum);
  return sum;
}

template <class T, int kVector>
__device__ void StoreNormed(const float (&x)[kVector], const float (&weight)[kVector], float factor,
                            T* out) {
  float values[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = x[i] * factor * weight[i];
  StoreFloats(values, out);
}

// One CTA a row. A thread reads what it will write before the barrier, or itself right before
// writing it, so out may be x.
template <class T, int kVector>
__global__ void __launch_bounds__(kMaxThreads) RmsNormKernel(RmsNormParams params) {
  WaitForPrevious();
  const int hidden = params.hidden;
  const int row = blockIdx.x;
  const int source = params.row_ids == nullptr ? row : params.row_ids[row];
  const float* x = params.x + size_t(source) * hidden;
  T* out = static_cast<T*>(params.out) + size_t(row) * hidden;
  const int first = threadIdx.x * kVector;
  const int step = blockDim.x * kVector;

  float kept[kKept][kVector] = {}, weight[kKept][kVector] = {};
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int c = first + k * step;
    if (c >= hidden) continue;
    LoadFloats(x + c, kept[k]);
    LoadFloats(params.weight + c, weight[k]);
  }
#pragma unroll
  for (int k = 0; k < kKept; ++k) sum = AddSquares(kept[k], sum);
  for (int c = first + kKept * step; c < hidden; c += step) {
    float more[kVector];
    LoadFloats(x + c, more);
    sum = AddSquares(more, sum);
  }
  const float mean = BlockSum(sum) / static_cast<float>(hidden);
  const float factor = 1.0f / sqrtf(mean + params.epsilon);

#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int c = first + k * step;
    if (c < hidden) StoreNormed(kept[k], weight[k], factor, out + c);
  }
  for (int c = first + kKept * step; c < hidden; c += step) {
    float more[kVector], more_weight[kVector];
    LoadFloats(x + c, more);
    LoadFloats(params.weight + c, more_weight);
    StoreNormed(more, more_weight, factor, out + c);
  }
}

}  // namespace

void CudaBackend::RmsNorm(const RmsNormParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.hidden > 0);
  AUGUR_CHECK(params.out != params.x || params.out_dtype == DType::kF32);
  // By the row's length alone, and not by where it lies: the order of the sum depends on it.
  const bool is_wide = params.hidden % 4 == 0;
  const int vectors = params.hidden / (is_wide ? 4 : 1);
  const int whole_warps = (vectors + kWarp - 1) / kWarp * kWarp;
  const LaunchShape shape{dim3(params.rows),
                          dim3(std::clamp(whole_warps, kMinThreads, kMaxThreads))};
  ForElementType(params.out_dtype, [&]<class T>() {
    if (!is_wide) return LaunchKernel(stream_, shape, RmsNormKernel<T, 1>, params);
    AUGUR_CHECK(IsAligned(params.x, 16) && IsAligned(params.weight, 16));
    AUGUR_CHECK(IsAligned(params.out, 4 * sizeof(T)));
    LaunchKernel(stream_, shape, RmsNormKernel<T, 4>, params);
  });
}

}  // namespace augur::kernels
