// One native vector of floats, the few operations the bodies need, and their exact meaning on each
// ISA. Included once by each of generic.cc, avx2.cc and avx512.cc, which define AUGUR_ISA and
// AUGUR_ISA_LANES. All names are internal to the including file (see isa_kernels.h for why).
#pragma once

#ifndef AUGUR_ISA
#error "include this from kernels/cpu/isa/<isa>.cc only"
#endif

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if AUGUR_ISA_LANES > 4
#include <immintrin.h>
#endif

namespace augur::kernels::AUGUR_ISA {
namespace {

constexpr int kLanes = AUGUR_ISA_LANES;

typedef float Floats __attribute__((vector_size(kLanes * 4)));
typedef uint32_t Words __attribute__((vector_size(kLanes * 4)));
typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));

#define AUGUR_INLINE inline __attribute__((always_inline))

// One vector a memcpy: two at once go through the stack (3 to 16 times
// slower).
AUGUR_INLINE Floats Load(const float* from) {
  Floats v;
  memcpy(&v, from, sizeof(v));
  return v;
}
AUGUR_INLINE void Store(float* to, Floats v) { memcpy(to, &v, sizeof(v)); }
AUGUR_INLINE Words LoadWords(const void* from) {
  Words v;
  memcpy(&v, from, sizeof(v));
  return v;
}
AUGUR_INLINE Floats AsFloats(Words v) { return (Floats)v; }
AUGUR_INLINE Words AsWords(Floats v) { return (Words)v; }
AUGUR_INLINE Floats Splat(float value) { return value - Floats{}; }

#if AUGUR_ISA_LANES == 4
// One copy: four calls into libm at every Fma would make the generic kernels half a megabyte.
__attribute__((noinline)) Floats FmaLanes(Floats a, Floats b, Floats c) {
  Floats sum;
  for (int i = 0; i < kLanes; ++i) sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return sum;
}
#endif

// a * b + c rounded once.
AUGUR_INLINE Floats Fma(Floats a, Floats b, Floats c) {
#if AUGUR_ISA_LANES == 16
  return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif AUGUR_ISA_LANES == 8
  return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
  return FmaLanes(a, b, c);
#endif
}
AUGUR_INLINE float FmaScalar(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

AUGUR_INLINE Floats Max(Floats a, Floats b) { return a > b ? a : b; }

// Lane numbers 0, 1, ...
AUGUR_INLINE Ints Iota() {
  Ints lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

// v[i] += v[i + half] by halves: the only order in which lanes are summed. Sixty-four floats are
// first folded to one vector in the same way (FoldSum), so the result does not depend on the
// vector's width.
AUGUR_INLINE float SumLanes(Floats v) {
#if AUGUR_ISA_LANES == 16
  v += __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
#elif AUGUR_ISA_LANES == 8
  v += __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
  v += __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
#else
  v += __builtin_shufflevector(v, v, 2, 3, 0, 1);
  v += __builtin_shufflevector(v, v, 1, 0, 3, 2);
#endif
  return v[0];
}

AUGUR_INLINE float MaxLanes(Floats v) {
#if AUGUR_ISA_LANES == 16
  v = Max(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = Max(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  v = Max(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  v = Max(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14));
#elif AUGUR_ISA_LANES == 8
  v = Max(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3));
  v = Max(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5));
  v = Max(v, __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6));
#else
  v = Max(v, __builtin_shufflevector(v, v, 2, 3, 0, 1));
  v = Max(v, __builtin_shufflevector(v, v, 1, 0, 3, 2));
#endif
  return v[0];
}

constexpr int kFold = 64;  // floats that a fixed sum tree folds at once: a block's keys
constexpr int kFoldVectors = kFold / kLanes;

AUGUR_INLINE float FoldSum(Floats (&v)[kFoldVectors]) {
#pragma GCC unroll 8
  for (int half = kFoldVectors / 2; half >= 1; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) v[i] += v[i + half];
  }
  return SumLanes(v[0]);
}

// Rows i and i + kLanes / 2 laid alternately, low and high halves. log2(kLanes) rounds of it
// transpose.
AUGUR_INLINE Words InterleaveLow(Words a, Words b) {
#if AUGUR_ISA_LANES == 16
  return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif AUGUR_ISA_LANES == 8
  return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
  return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}
AUGUR_INLINE Words InterleaveHigh(Words a, Words b) {
#if AUGUR_ISA_LANES == 16
  return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                 31);
#elif AUGUR_ISA_LANES == 8
  return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
  return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}
AUGUR_INLINE void Transpose(Words (&rows)[kLanes]) {
#pragma GCC unroll 4
  for (int round = 1; round < kLanes; round *= 2) {
    Words mixed[kLanes];
#pragma GCC unroll 8
    for (int i = 0; i < kLanes / 2; ++i) {
      mixed[2 * i] = InterleaveLow(rows[i], rows[i + kLanes / 2]);
      mixed[2 * i + 1] = InterleaveHigh(rows[i], rows[i + kLanes / 2]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) rows[i] = mixed[i];
  }
}

// Adding 1.5 * 2^23 rounds to a whole number (nearest even) and leaves it in the low bits.
constexpr float kRoundMagic = 12582912.0f;

// 2^x for x <= 127, 0 below -126 (no subnormals: they would cost an assist each), NaN for NaN. At
// most 2 ulp: polynomial of Cephes exp2f on [-1/2, 1/2].
AUGUR_INLINE Floats Exp2(Floats x) {
  const Floats shifted = x + kRoundMagic;
  const Floats fraction = x - (shifted - kRoundMagic);
  Floats power = Fma(Splat(1.535336188319500e-4f), fraction, Splat(1.339887440266574e-3f));
  power = Fma(power, fraction, Splat(9.618437357674640e-3f));
  power = Fma(power, fraction, Splat(5.550332471162809e-2f));
  power = Fma(power, fraction, Splat(2.402264791363012e-1f));
  power = Fma(power, fraction, Splat(6.931472028550421e-1f));
  power = Fma(power, fraction, Splat(1.0f));
  const Floats scaled = AsFloats(AsWords(power) + (AsWords(shifted) << 23));
  const Floats small = x < -126.0f ? Floats{} : x;  // x itself when it is NaN
  return x >= -126.0f ? scaled : small;
}

// e^x, 0 below -87.3, infinity above 88.3, NaN for NaN. At most 2 ulp: polynomial of Cephes expf,
// ln 2 in two parts.
AUGUR_INLINE Floats Exp(Floats x) {
  const Floats shifted = Fma(x, Splat(1.44269504088896341f), Splat(kRoundMagic));
  const Floats whole = shifted - kRoundMagic;
  Floats r = Fma(whole, Splat(-0.693359375f), x);
  r = Fma(whole, Splat(2.12194440e-4f), r);
  Floats power = Fma(Splat(1.9875691500e-4f), r, Splat(1.3981999507e-3f));
  power = Fma(power, r, Splat(8.3334519073e-3f));
  power = Fma(power, r, Splat(4.1665795894e-2f));
  power = Fma(power, r, Splat(1.6666665459e-1f));
  power = Fma(power, r, Splat(5.0000001201e-1f));
  power = Fma(power, r * r, r) + 1.0f;
  const Floats scaled = AsFloats(AsWords(power) + (AsWords(shifted) << 23));
  const Floats outside = x < -87.3f ? Floats{} : x;
  const Floats bounded = x >= -87.3f ? scaled : outside;
  return x > 88.3f ? Splat(__builtin_inff()) : bounded;
}

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
