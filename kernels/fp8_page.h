// Pages in fp8: rows of keys and values as e4m3 bytes under a power of two for each row, as the
// pages of a host pool may be kept (half the bytes over the link).
//
//   fp8 page:  [K 64 x head_dim][exponents of K 64][V 64 x head_dim][exponents of V 64]   bytes
//
// e4m3 is the OCP format (sign, 4 bits of exponent with bias 7, 3 of mantissa; at most 448, no
// infinity, 0x7f is NaN). Element c of row t is e4m3[t][c] * 2^(exponent[t] - 127); the exponent is
// the smallest at which the row's largest magnitude rounds to 448 or less, so the largest lies in
// [240, 448] of it.
//
// A row is rounded by itself, when it is appended (RopeAppendParams::fp8_rows): every reader, on
// the device or from an fp8 page, has the same values from the first moment on, and nothing
// depends on whether or when a page has moved. Of rounded rows both directions are exact: unpacking
// a packed page gives its bits, packing an unpacked one the same bytes, NaN payloads aside. Rows
// that were never written come back as something, and pack to the same bytes again.
//
// Rounding is to nearest, ties to even; NaN and infinities become NaN, so that a broken row is
// still seen; the sign of zero stays.
//
// Thread: pure. Failure: none.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/host_device.h"
#include "kernels/kv_page.h"

namespace augur::kernels {

constexpr size_t Fp8HalfBytes(int head_dim) { return size_t(kBlockTokens) * (head_dim + 1); }
constexpr size_t Fp8PageBytes(int head_dim) { return 2 * Fp8HalfBytes(head_dim); }

// Where fp8 pages lie, and what they are of. An op that may be given either kind of page knows
// them by their address.
struct Fp8Pages {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;  // begin == end: there are none
  int head_dim = 0;
  DType dtype = DType::kF32;  // of the pages that they are of

  AUGUR_HOST_DEVICE bool holds(const std::byte* at) const { return at >= begin && at < end; }
  size_t plain_half_bytes() const { return size_t(kBlockTokens) * head_dim * BytesOf(dtype); }
  // Of the page, or half of one, whose fp8 form has `fp8_bytes`.
  size_t plain_bytes(size_t fp8_bytes) const {
    return fp8_bytes / Fp8HalfBytes(head_dim) * plain_half_bytes();
  }
  size_t fp8_bytes(size_t plain_bytes) const {
    return head_dim == 0 ? 0 : plain_bytes / plain_half_bytes() * Fp8HalfBytes(head_dim);
  }
};

namespace fp8 {

AUGUR_HOST_DEVICE inline uint32_t BitsOf(float value) {
  union {
    float value;
    uint32_t bits;
  } both = {value};
  return both.bits;
}
AUGUR_HOST_DEVICE inline float FloatOf(uint32_t bits) {
  union {
    uint32_t bits;
    float value;
  } both = {bits};
  return both.value;
}

inline constexpr int kExponentBias = 127;  // of a row's exponent, as float has it
inline constexpr uint8_t kNaN = 0x7f;
inline constexpr uint32_t kInfinityBits = 0x7f800000u;

// Bits of a value's magnitude, 0 for what is not finite: the largest of a row is the largest of
// these.
AUGUR_HOST_DEVICE inline uint32_t FiniteMagnitude(uint32_t bits) {
  const uint32_t magnitude = bits & 0x7fffffffu;
  return magnitude < kInfinityBits ? magnitude : 0u;
}

// Exponent of a row, biased. Within its bounds all multiples of the smallest step are exact in
// dtype and 448 steps of the largest are finite.
AUGUR_HOST_DEVICE inline int ExponentOf(uint32_t largest_magnitude, DType dtype) {
  const int least = dtype == DType::kF16 ? -15 : -117;
  const int most = dtype == DType::kF16 ? 7 : 119;
  // Up to 464 = 1.8125 * 2^8 rounds to 448.
  const int whole = static_cast<int>(largest_magnitude >> 23) - 127;
  const int exponent = whole - 8 + ((largest_magnitude & 0x7fffffu) > 0x680000u ? 1 : 0);
  return kExponentBias + (exponent < least ? least : exponent > most ? most : exponent);
}

AUGUR_HOST_DEVICE inline float PowerOfTwo(int exponent) {
  return FloatOf(static_cast<uint32_t>(exponent + 127) << 23);
}
// What a row is multiplied by before its elements are rounded, and after they are read.
AUGUR_HOST_DEVICE inline float PackingScale(int biased) {
  return PowerOfTwo(kExponentBias - biased);
}
AUGUR_HOST_DEVICE inline float UnpackingScale(int biased) {
  return PowerOfTwo(biased - kExponentBias);
}

AUGUR_HOST_DEVICE inline uint8_t E4M3FromFloat(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Below 2^-6, the smallest normal, steps are 2^-9: the last bit of floats from 2^14 on.
  const uint32_t small = BitsOf(FloatOf(magnitude) + 16384.0f) - BitsOf(16384.0f);
  const uint32_t rounded = ((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3);
  const uint32_t normal = rounded > 0x7eu ? 0x7eu : rounded;
  const uint32_t code = magnitude < 0x3c800000u ? small : normal;
  return magnitude >= kInfinityBits ? kNaN : static_cast<uint8_t>((bits >> 24 & 0x80u) | code);
}

AUGUR_HOST_DEVICE inline float FloatFromE4M3(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  const float small = static_cast<float>(static_cast<int>(magnitude)) * 0.001953125f;  // 2^-9
  uint32_t bits = magnitude < 8u ? BitsOf(small) : (magnitude << 20) + (120u << 23);
  if (magnitude == kNaN) bits = 0x7fc00000u;
  return FloatOf(sign | bits);
}

}  // namespace fp8

// The rest is for the host. `plain` and `fp8`: a page, or its half, and its fp8 form.

// A row of dtype, [head_dim], to the values that its fp8 form has.
void RoundRowToFp8(DType dtype, int head_dim, std::byte* row);
// [64][head_dim] of dtype -> [64 x head_dim][exponents 64]
void PackHalfPage(DType dtype, int head_dim, const std::byte* plain, std::byte* fp8);
void UnpackHalfPage(DType dtype, int head_dim, const std::byte* fp8, std::byte* plain);
// Row t of a half.
void UnpackRow(DType dtype, int head_dim, const std::byte* fp8_half, int t, std::byte* row);
// A page, or half of one, as long as fp8_bytes says; one of the two lies where `pages` says.
void CopyFp8(const Fp8Pages& pages, const std::byte* from, std::byte* to, size_t fp8_bytes);

}  // namespace augur::kernels
