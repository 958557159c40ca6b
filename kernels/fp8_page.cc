#include "kernels/fp8_page.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/check.h"

namespace augur::kernels {
namespace {

template <DType kType>
float Load(const std::byte* row, int c) {
  if constexpr (kType == DType::kF32) {
    float value;
    std::memcpy(&value, row + size_t(c) * 4, 4);
    return value;
  } else {
    uint16_t bits;
    std::memcpy(&bits, row + size_t(c) * 2, 2);
    return kType == DType::kBF16 ? FloatFromBF16(bits) : FloatFromF16(bits);
  }
}

// A value that dtype has.
template <DType kType>
void Store(float value, std::byte* row, int c) {
  if constexpr (kType == DType::kF32) {
    std::memcpy(row + size_t(c) * 4, &value, 4);
  } else {
    const uint16_t bits = kType == DType::kBF16
                              ? static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16)
                              : F16FromFloat(value);
    std::memcpy(row + size_t(c) * 2, &bits, 2);
  }
}

template <DType kType>
int ExponentOfRow(const std::byte* row, int head_dim) {
  uint32_t largest = 0;
  for (int c = 0; c < head_dim; ++c) {
    const uint32_t magnitude = fp8::FiniteMagnitude(std::bit_cast<uint32_t>(Load<kType>(row, c)));
    largest = std::max(largest, magnitude);
  }
  return fp8::ExponentOf(largest, kType);
}

template <DType kType>
uint8_t PackOneRow(const std::byte* row, int head_dim, std::byte* codes) {
  const int exponent = ExponentOfRow<kType>(row, head_dim);
  const float scale = fp8::PackingScale(exponent);
  for (int c = 0; c < head_dim; ++c) {
    codes[c] = std::byte{fp8::E4M3FromFloat(Load<kType>(row, c) * scale)};
  }
  return static_cast<uint8_t>(exponent);
}

template <DType kType>
void UnpackOneRow(const std::byte* codes, int exponent, int head_dim, std::byte* row) {
  const float scale = fp8::UnpackingScale(exponent);
  for (int c = 0; c < head_dim; ++c) {
    Store<kType>(fp8::FloatFromE4M3(static_cast<uint8_t>(codes[c])) * scale, row, c);
  }
}

template <class Act>
void ForType(DType dtype, const Act& act) {
  switch (dtype) {
    case DType::kF32:
      return act.template operator()<DType::kF32>();
    case DType::kBF16:
      return act.template operator()<DType::kBF16>();
    case DType::kF16:
      return act.template operator()<DType::kF16>();
  }
}

}  // namespace

void RoundRowToFp8(DType dtype, int head_dim, std::byte* row) {
  ForType(dtype, [&]<DType kType>() {
    const int exponent = ExponentOfRow<kType>(row, head_dim);
    const float packing = fp8::PackingScale(exponent), unpacking = fp8::UnpackingScale(exponent);
    for (int c = 0; c < head_dim; ++c) {
      const uint8_t code = fp8::E4M3FromFloat(Load<kType>(row, c) * packing);
      Store<kType>(fp8::FloatFromE4M3(code) * unpacking, row, c);
    }
  });
}

void PackHalfPage(DType dtype, int head_dim, const std::byte* plain, std::byte* fp8) {
  const size_t row_bytes = size_t(head_dim) * BytesOf(dtype);
  std::byte* const exponents = fp8 + size_t(kBlockTokens) * head_dim;
  ForType(dtype, [&]<DType kType>() {
    for (int t = 0; t < kBlockTokens; ++t) {
      exponents[t] =
          std::byte{PackOneRow<kType>(plain + t * row_bytes, head_dim, fp8 + size_t(t) * head_dim)};
    }
  });
}

void UnpackRow(DType dtype, int head_dim, const std::byte* fp8_half, int t, std::byte* row) {
  const int exponent = static_cast<int>(fp8_half[size_t(kBlockTokens) * head_dim + t]);
  ForType(dtype, [&]<DType kType>() {
    UnpackOneRow<kType>(fp8_half + size_t(t) * head_dim, exponent, head_dim, row);
  });
}

void UnpackHalfPage(DType dtype, int head_dim, const std::byte* fp8, std::byte* plain) {
  const size_t row_bytes = size_t(head_dim) * BytesOf(dtype);
  for (int t = 0; t < kBlockTokens; ++t) {
    UnpackRow(dtype, head_dim, fp8, t, plain + t * row_bytes);
  }
}

void CopyFp8(const Fp8Pages& pages, const std::byte* from, std::byte* to, size_t fp8_bytes) {
  const size_t half = Fp8HalfBytes(pages.head_dim);
  AUGUR_CHECK(fp8_bytes > 0 && fp8_bytes % half == 0);
  const size_t plain_half = pages.plain_half_bytes();
  const bool unpacks = pages.holds(from);
  AUGUR_CHECK(unpacks != pages.holds(to));
  for (size_t i = 0; i < fp8_bytes / half; ++i) {
    if (unpacks) {
      UnpackHalfPage(pages.dtype, pages.head_dim, from + i * half, to + i * plain_half);
    } else {
      PackHalfPage(pages.dtype, pages.head_dim, from + i * plain_half, to + i * half);
    }
  }
}

}  // namespace augur::kernels
