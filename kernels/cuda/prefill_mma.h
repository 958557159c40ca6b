// The instructions of prefill attention: matrix fragments of one warp (mma.sync m16n8k16 with
// float32 accumulators), and copies from global to shared memory that run beside the computation.
// Device code only. Shared memory goes by its 32-bit address.
//
// Fragments, for lane l with g = l / 4 and t = l % 4 (PTX ISA, "Matrix Fragments for
// mma.m16n8k16"):
//   A 16 x 16: a[0] row g, columns 2t and 2t + 1; a[1] row g + 8; a[2] row g, columns + 8; a[3]
//   both B 16 x 8:  b[0] rows 2t and 2t + 1, column g; b[1] rows + 8 C 16 x 8:  c[0], c[1] row g,
//   columns 2t and 2t + 1; c[2], c[3] row g + 8
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace augur::kernels {

__device__ inline uint32_t SharedAddress(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}

// Four 8 x 8 matrices of 2-byte elements: lane l gives the address of row l % 8 of matrix l / 8,
// and gets of each matrix row g, columns 2t and 2t + 1.
__device__ inline void LoadMatrices(uint32_t (&m)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row_address)
               : "memory");
}

// Likewise transposed: of each matrix rows 2t and 2t + 1, column g.
__device__ inline void LoadMatricesTransposed(uint32_t (&m)[4], uint32_t row_address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(row_address)
               : "memory");
}

// c += a b.
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

// 2^x to 2 ulp; 1 for 0, 0 for -infinity, NaN for NaN; results below the normal numbers are 0.
__device__ inline float FastExp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// 16 bytes, both sides aligned, past L1. Complete after this thread's WaitForCopies(), and seen by
// others after a barrier behind it.
__device__ inline void CopyChunk(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from)
               : "memory");
}

// Likewise 8 bytes.
__device__ inline void CopyAddress(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to_shared), "l"(from) : "memory");
}

__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace augur::kernels
