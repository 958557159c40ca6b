// Instructions that decode and prefill attention share: products of a warp's fragments, pairs of
// 16-bit elements, powers of two, and the 32-bit addresses by which shared memory goes. Device code
// only.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace augur::kernels {

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// c += a b: a 16 x 16, b 16 x 8, by tensor cores (mma.sync m16n8k16; prefill_mma.h says who holds
// what).
template <class T>
__device__ inline void MultiplyAdd(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                   uint32_t b1) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, __half>);
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

// Two elements in a register, the first one low.
template <class T>
__device__ inline uint32_t PackPair(float low, float high) {
  uint32_t pair;
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<T, __half>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

// NaN where one of the two is.
__device__ inline float MaxOrNan(float a, float b) {
  float largest;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(largest) : "f"(a), "f"(b));
  return largest;
}

// 2^x to 2 ulp; 1 for 0, 0 for -infinity, NaN for NaN; results below the normal numbers are 0.
__device__ inline float FastExp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

}  // namespace augur::kernels
