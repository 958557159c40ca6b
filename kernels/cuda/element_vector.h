// Neighbouring elements moved by one load or store of up to 16 bytes, as floats in registers.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/cuda/element.h"

namespace augur::kernels {

template <size_t kBytes>
struct RawWord;
template <>
struct RawWord<2> {
  using Type = uint16_t;
};
template <>
struct RawWord<4> {
  using Type = uint32_t;
};
template <>
struct RawWord<8> {
  using Type = uint2;
};
template <>
struct RawWord<16> {
  using Type = uint4;
};

// `from` is aligned to kCount elements.
template <class T, int kCount>
__device__ void LoadFloats(const T* from, float (&to)[kCount]) {
  using Raw = typename RawWord<sizeof(T) * kCount>::Type;
  const Raw raw = *reinterpret_cast<const Raw*>(from);
  T elements[kCount];
  memcpy(elements, &raw, sizeof(raw));
#pragma unroll
  for (int i = 0; i < kCount; ++i) to[i] = ToFloat(elements[i]);
}

// Likewise `to`.
template <class T, int kCount>
__device__ void StoreFloats(const float (&from)[kCount], T* to) {
  using Raw = typename RawWord<sizeof(T) * kCount>::Type;
  T elements[kCount];
#pragma unroll
  for (int i = 0; i < kCount; ++i) elements[i] = FromFloat<T>(from[i]);
  Raw raw;
  memcpy(&raw, elements, sizeof(raw));
  *reinterpret_cast<Raw*>(to) = raw;
}

inline bool IsAligned(const void* data, size_t bytes) {
  return reinterpret_cast<uintptr_t>(data) % bytes == 0;
}

}  // namespace augur::kernels
