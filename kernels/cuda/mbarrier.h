// Barriers in shared memory that count arrivals (mbarrier): what hands buffers from warps to warps
// and tells when bulk copies have landed. By their shared memory address, or by pointer. Device
// code only.
#pragma once

#include <cstdint>

#include "kernels/cuda/warp_math.h"

namespace augur::kernels {

// By one thread; a __syncthreads must follow.
__device__ inline void InitBarrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void InitBarrier(uint64_t* barrier, int arrivals) {
  InitBarrier(SharedAddress(barrier), arrivals);
}

__device__ inline void ArriveAt(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void ArriveAt(uint64_t* barrier) { ArriveAt(SharedAddress(barrier)); }

// Until the phase of this parity has ended; a fresh barrier's phase of parity 1 counts as ended.
// Any thread may wait.
__device__ inline void WaitForBarrier(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}
__device__ inline void WaitForBarrier(const uint64_t* barrier, uint32_t parity) {
  WaitForBarrier(SharedAddress(barrier), parity);
}

}  // namespace augur::kernels
