#include "kernels/check.h"
#include "kernels/cuda/cuda_training_ops.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"

namespace augur::kernels {
namespace {

using Element = __nv_bfloat16;

// A CTA a (row, kv head), a thread an element.
__global__ void WriteTokensKernel(WindowKeysParams params) {
  WaitForPrevious();
  const int row = blockIdx.x, head = blockIdx.y, c = threadIdx.x;
  const float k = params.k[int64_t{row} * params.row_stride + head * params.head_dim + c];
  const int64_t token = head * params.key_stride + params.first_position + row;
  static_cast<Element*>(params.tokens)[token * params.head_dim + c] = FromFloat<Element>(k);
}

// Behind it: the windows that the row's token ends.
__global__ void WriteWindowsKernel(WindowKeysParams params) {
  WaitForPrevious();
  const int position = params.first_position + blockIdx.x, head = blockIdx.y, c = threadIdx.x;
  if (position == 0) return;
  const int dim = params.head_dim;
  const int64_t first = head * params.key_stride;
  const Element* tokens = static_cast<const Element*>(params.tokens) + first * dim + c;
  const float before = ToFloat(tokens[int64_t{position - 1} * dim]);
  const float own = ToFloat(tokens[int64_t{position} * dim]);
  static_cast<Element*>(params.fine)[(first + position - 1) * dim + c] =
      FromFloat<Element>((before + own) / 2.0f);
  const int windows = CompleteWindows(position);
  if (windows == CompleteWindows(position - 1)) return;
  float sum = 0.0f;
#pragma unroll
  for (int t = 1 - kWindowTokens; t <= 0; ++t) sum += ToFloat(tokens[int64_t{position + t} * dim]);
  static_cast<Element*>(params.coarse)[(first / kWindowStride + windows) * dim + c] =
      FromFloat<Element>(sum / kWindowTokens);
}

}  // namespace

void CudaTrainingOps::WindowKeys(const WindowKeysParams& params) {
  AUGUR_CHECK(params.dtype == DType::kBF16);
  AUGUR_CHECK(params.rows >= 0 && params.num_kv_heads > 0 && params.head_dim > 0 &&
              params.head_dim <= 256);
  AUGUR_CHECK(params.key_stride % kWindowStride == 0 &&
              params.first_position + params.rows <= params.key_stride);
  const LaunchShape shape{dim3(params.rows, params.num_kv_heads), dim3(params.head_dim)};
  LaunchKernel(stream_, shape, WriteTokensKernel, params);
  LaunchKernel(stream_, shape, WriteWindowsKernel, params);
}

}  // namespace augur::kernels
