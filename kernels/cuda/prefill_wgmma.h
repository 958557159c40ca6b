// The instructions of prefill attention that only Hopper has: products by a warpgroup (four warps
// that start at a multiple of 4) with one operand in shared memory, barriers in shared memory,
// registers that move between warpgroups. Device code only. Shared memory goes by its 32-bit
// address.
//
// A product is asynchronous: from its start to the WaitForProducts() behind its commit neither its
// accumulators nor its fragments of A may be touched, and its operand in shared memory must stay.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/mbarrier.h"
#include "kernels/cuda/prefill_tiles.h"

namespace augur::kernels {

// Matrices of 2-byte elements in shared memory as SwizzledColumnOffset lays them out. Fields:
// address, leading and stride byte offset in units of 16 bytes, and 1 << 62 for swizzling over 128
// bytes. Stride: from 8 rows to the next 8, in both orders below. Leading: from 64 columns to the
// next 64 when the columns are the product's (V); not read when a step takes 16 of 64 columns (K).
template <int kRows>
__device__ inline uint64_t SharedMatrix(uint32_t address) {
  constexpr uint64_t kLeading = kSwizzledColumnBytes<kRows> / 16, kStride = 8 * 128 / 16;
  return (uint64_t{1} << 62) | (kStride << 32) | (kLeading << 16) | ((address & 0x3ffff) >> 4);
}

#define AUGUR_WGMMA_N64(type)                                                                     \
  asm volatile(                                                                                   \
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %37, 0;\n"                              \
      "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                 \
      " {"                                                                                        \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                    \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"            \
      "}, {%32, %33, %34, %35}, %36, accumulate, 1, 1, %38;\n}\n"                                 \
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), \
        "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), \
        "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), \
        "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), \
        "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), \
        "+f"(c[7][2]), "+f"(c[7][3])                                                              \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),    \
        "n"(kTransposed ? 1 : 0))

#define AUGUR_WGMMA_N128(type)                                                                    \
  asm volatile(                                                                                   \
      "{\n.reg .pred accumulate;\nsetp.ne.b32 accumulate, %69, 0;\n"                              \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type                                \
      " {"                                                                                        \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                    \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "          \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "          \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"            \
      "}, {%64, %65, %66, %67}, %68, accumulate, 1, 1, %70;\n}\n"                                 \
      : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]), \
        "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]), \
        "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]), \
        "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]), \
        "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]), \
        "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]), \
        "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]),               \
        "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]),           \
        "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]),           \
        "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),           \
        "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]),           \
        "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])                                            \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(accumulate)),    \
        "n"(kTransposed ? 1 : 0))

// c (+)= a b for 64 rows, 16 a warp, and kTiles * 8 columns; a, c as in prefill_mma.h. b is 16
// deep: transposed, 16 rows of a SharedMatrix; else 16 of its columns.
template <class T, bool kTransposed, int kTiles>
__device__ __forceinline__ void StartProduct(float (&c)[kTiles][4], const uint32_t (&a)[4],
                                             uint64_t b, bool accumulate) {
  static_assert(kTiles == 8 || kTiles == 16);
  constexpr bool kIsBf16 = std::is_same_v<T, __nv_bfloat16>;
  if constexpr (kTiles == 8 && kIsBf16) {
    AUGUR_WGMMA_N64("bf16");
  } else if constexpr (kTiles == 8) {
    AUGUR_WGMMA_N64("f16");
  } else if constexpr (kIsBf16) {
    AUGUR_WGMMA_N128("bf16");
  } else {
    AUGUR_WGMMA_N128("f16");
  }
}

#undef AUGUR_WGMMA_N64
#undef AUGUR_WGMMA_N128

// Before the first product that reads or adds to registers written by other instructions.
__device__ inline void FenceRegisters() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Until at most kPending committed groups are under way.
template <int kPending>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// No instruction, but c counts as read and written here: behind WaitForProducts(), since the
// compiler does not know that accumulators change until then; before it, for work that shall be
// done meanwhile.
template <int kTiles>
__device__ __forceinline__ void KeepInOrder(float (&c)[kTiles][4]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(c[n][i])::"memory");
  }
}

// A store that never happens, as `positive` is not -1: but the assembler keeps stores and waits in
// order, so that what `positive` is made of is worked out before the wait behind this and not after
// it.
__device__ __forceinline__ void FinishBefore(float positive, uint32_t address) {
  asm volatile(
      "{\n.reg .pred never;\nsetp.eq.f32 never, %0, 0fBF800000;\n"
      "@never st.shared.f32 [%1], %0;\n}\n" ::"f"(positive),
      "r"(address)
      : "memory");
}

// What this thread wrote to shared memory, or saw written, is there for products that start later.
__device__ inline void PublishToProducts() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Arrives when all of this thread's copies (CopyChunk) so far are there. Products need a
// PublishToProducts() behind the wait for the barrier.
__device__ inline void ArriveAfterCopies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// By all threads of a warpgroup.
template <int kRegisters>
__device__ inline void RaiseRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void LowerRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace augur::kernels
