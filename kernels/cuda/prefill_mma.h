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

#include <cstdint>

#include "kernels/cuda/warp_math.h"

namespace augur::kernels {

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

// Ends a group of this thread's copies.
__device__ inline void CommitCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most the kPending youngest groups of this thread are under way.
template <int kPending>
__device__ inline void WaitForCopyGroups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace augur::kernels
