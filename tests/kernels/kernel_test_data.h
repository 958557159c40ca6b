// What the kernel tests share: the backends under test and reproducible random data.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace augur::kernels {

// Thread and address sanitizers make the loops 10 to 50 times slower: tests shrink their largest
// shapes.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// The instruction sets that this CPU can run.
inline std::vector<CpuIsa> IsasHere() {
  std::vector<CpuIsa> isas{CpuIsa::kGeneric};
  const CpuIsa best = DetectCpuIsa();
  if (best == CpuIsa::kAvx2 || best == CpuIsa::kAvx512) isas.push_back(CpuIsa::kAvx2);
  if (best == CpuIsa::kAvx512) isas.push_back(CpuIsa::kAvx512);
  return isas;
}

inline std::string NameOf(CpuIsa isa) { return MakeCpuBackend({1, isa})->Describe(); }

inline std::vector<float> RandomFloats(size_t count, uint32_t seed, float spread = 1.0f) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> values(count);
  for (float& value : values) value = normal(generator);
  return values;
}

inline float ReadAs(DType dtype, const std::byte* from, size_t index) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, from + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from + index * 2, 2);
  return dtype == DType::kBF16 ? FloatFromBF16(bits) : FloatFromF16(bits);
}

inline void WriteAs(DType dtype, float value, std::byte* to, size_t index) {
  if (dtype == DType::kF32) {
    std::memcpy(to + index * 4, &value, 4);
    return;
  }
  const uint16_t bits = dtype == DType::kBF16 ? BF16FromFloat(value) : F16FromFloat(value);
  std::memcpy(to + index * 2, &bits, 2);
}

// A matrix in `dtype` and the floats it stands for.
struct TypedMatrix {
  TypedMatrix(DType type, const std::vector<float>& source)
      : dtype(type), bytes(source.size() * BytesOf(type)), values(source.size()) {
    for (size_t i = 0; i < source.size(); ++i) {
      WriteAs(dtype, source[i], bytes.data(), i);
      values[i] = ReadAs(dtype, bytes.data(), i);
    }
  }
  DType dtype;
  std::vector<std::byte> bytes;
  std::vector<float> values;
};

inline bool SameBits(const float* a, const float* b, size_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}
inline bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && SameBits(a.data(), b.data(), a.size());
}

}  // namespace augur::kernels
