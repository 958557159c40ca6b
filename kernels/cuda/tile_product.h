// Products of bfloat16 matrices with sums in float32, for training: shapes that change from call to
// call and operands that lie either way round, where cuBLASLt would want a plan for each. A CTA
// computes 64 x 64 of the result; each sum has one order.
//
// Failure: strides and pointers must be aligned to 16 bytes (a CHECK).
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace augur::kernels {

// An operand: element (i, l) at data[i * stride + l], l being the dimension summed over, or, if
// summed_outside, at data[l * stride + i].
struct TileOperand {
  const __nv_bfloat16* data = nullptr;
  int64_t stride = 0;  // elements
  int64_t batch = 0;   // elements between the operands of two products
  bool summed_outside = false;
};

// c[i, j] (+)= scale * sum over l of a(i, l) b(j, l), `batches` times.
struct TileProduct {
  TileOperand a, b;
  float* c = nullptr;
  int64_t c_stride = 0;
  int64_t c_batch = 0;
  int rows = 0;     // i
  int columns = 0;  // j
  int summed = 0;   // l
  int batches = 1;
  float scale = 1.0f;
  bool accumulate = false;
};

void MultiplyTiles(const TileProduct& product, cudaStream_t stream);

}  // namespace augur::kernels
