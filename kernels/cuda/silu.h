// silu(x) = x / (1 + exp(-x)), with the same bits wherever gates are computed.
#pragma once

#include <type_traits>

namespace augur::kernels {

// T: what the result is rounded to.
template <class T>
__device__ float Silu(float x) {
  if constexpr (std::is_same_v<T, float>) return x / (1.0f + expf(-x));
  // Good to 1e-6, where a 16-bit result keeps 2^-11 at best; exact division would cost as much time
  // as the memory. A quotient of less than 2^-119 may become zero.
  return __fdividef(x, 1.0f + __expf(-x));
}

}  // namespace augur::kernels
