// Arrays of the three element types to and from float on the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace augur::kernels {

inline void WidenElements(DType dtype, const void* from, size_t count, float* to) {
  if (dtype == DType::kF32) {
    std::copy_n(static_cast<const float*>(from), count, to);
    return;
  }
  const auto* bits = static_cast<const uint16_t*>(from);
  for (size_t i = 0; i < count; ++i) {
    to[i] = dtype == DType::kBF16 ? FloatFromBF16(bits[i]) : FloatFromF16(bits[i]);
  }
}

inline void RoundElements(DType dtype, const float* from, size_t count, void* to) {
  if (dtype == DType::kF32) {
    std::copy_n(from, count, static_cast<float*>(to));
    return;
  }
  auto* bits = static_cast<uint16_t*>(to);
  for (size_t i = 0; i < count; ++i) {
    bits[i] = dtype == DType::kBF16 ? BF16FromFloat(from[i]) : F16FromFloat(from[i]);
  }
}

}  // namespace augur::kernels
