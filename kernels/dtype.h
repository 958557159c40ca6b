// Element types of weights and KV pages, and their exact conversions to and from float on the host.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace augur::kernels {

enum class DType { kF32, kBF16, kF16 };

constexpr size_t BytesOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

constexpr const char* NameOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "float32";
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
  }
  return "?";
}

inline float FloatFromBF16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// Round to nearest, ties to even; NaN stays NaN (quiet).
inline uint16_t BF16FromFloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// IEEE binary16 <-> binary32, subnormals included; to fp16 rounds to nearest even, overflow to
// infinity.
float FloatFromF16(uint16_t bits);
uint16_t F16FromFloat(float value);

}  // namespace augur::kernels
