// Elements of the three types in registers: loads, stores and conversions by the rounding of
// dtype.h (to nearest, ties to even).
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/dtype.h"

namespace augur::kernels {

__device__ inline float ToFloat(float value) { return value; }
__device__ inline float ToFloat(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline float ToFloat(__half value) { return __half2float(value); }

template <class T>
__device__ T FromFloat(float value);
template <>
__device__ inline float FromFloat<float>(float value) {
  return value;
}
template <>
__device__ inline __nv_bfloat16 FromFloat<__nv_bfloat16>(float value) {
  return __float2bfloat16_rn(value);
}
template <>
__device__ inline __half FromFloat<__half>(float value) {
  return __float2half_rn(value);
}

// body.template operator()<T>() with the element type of `dtype`.
template <class Body>
void ForElementType(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32:
      return body.template operator()<float>();
    case DType::kBF16:
      return body.template operator()<__nv_bfloat16>();
    case DType::kF16:
      return body.template operator()<__half>();
  }
}

}  // namespace augur::kernels
