// KV pages on their way from global to shared memory, and matrices of them from there to registers.
// Device code of decode_attention.cu.
//
// A page arrives by bulk copies of kRowGroup rows each, and each row group lies 16 bytes further
// than its size asks. The rows of a group fall on the same banks, those of equal rank in the page's
// eight groups of K, or of V, on eight different ones: so ldmatrix takes one row of each group and
// meets no conflict, without a copy a row.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kv_page.h"

namespace augur::kernels {

inline constexpr int kRowGroup = 8;

__device__ inline uint32_t SharedAddress(const void* data) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(data));
}

// Of what is read once: it leaves L2 to partial results, activations and weights.
__device__ inline uint64_t PolicyReadOnce() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Orders this thread's writes to shared memory before bulk copies that a later barrier lets start.
__device__ inline void FenceBeforeBulkCopies() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Four 8 x 8 matrices of 2-byte elements: lane 8 m + r holds the address of row r of matrix m. Lane
// 4 g + t gets elements 2 t, 2 t + 1 of row g; transposed, of column g.
__device__ inline void LoadMatrices(uint32_t row, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row));
}
__device__ inline void LoadMatricesTransposed(uint32_t row, uint32_t (&matrices)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(row));
}

// Which page of the ring a warp is at; starts equal in the warps that load and attend.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;  // of the rounds so far

  __device__ void Advance() {
    if (++stage < kStages) return;
    stage = 0;
    parity ^= 1;
  }
};

template <int kHeadDim>
struct PageRing {
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kGroupBytes = kRowGroup * kRowBytes;
  static constexpr int kGroupStride = kGroupBytes + 16;
  static_assert(kGroupBytes % 128 == 0, "then groups differ by one of eight places of 16 bytes");
  static constexpr int kHalfGroups = kBlockTokens / kRowGroup;  // of K; as many of V
  static constexpr int kPageBytes = 2 * kBlockTokens * kRowBytes;

  struct alignas(16) Page {
    std::byte bytes[2 * kHalfGroups * kGroupStride];
  };
  // 5 pages at head_dim 128. About 64 KiB in flight keep an SM at its share of the bandwidth, the
  // rest bridges the ends of runs; what a CTA has beside the ring takes about 58 KiB.
  static constexpr int kStages = (164 << 10) / sizeof(Page);
  using Place = RingPlace<kStages>;

  Page pages[kStages];
  uint64_t full[kStages];   // mbarriers: the page has landed
  uint64_t empty[kStages];  // the warps that attend are done with it

  // Bytes from the start of a Page.
  static __device__ int KeyOffset(int key) {
    return key / kRowGroup * kGroupStride + key % kRowGroup * kRowBytes;
  }
  static __device__ int ValueOffset(int key) { return kHalfGroups * kGroupStride + KeyOffset(key); }

  // By one thread; a __syncthreads must follow.
  __device__ void Init(int num_readers) {
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(full[stage], 1);
      InitBarrier(empty[stage], num_readers);
    }
    FenceBeforeBulkCopies();
  }

  // By a whole warp: starts the copy of a page as soon as its place is free.
  __device__ void Load(const Place& place, const std::byte* page, uint64_t policy) {
    Wait(empty[place.stage], place.parity ^ 1);
    const uint32_t barrier = SharedAddress(&full[place.stage]);
    const int lane = threadIdx.x % 32;
    if (lane == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier),
                   "r"(kPageBytes)
                   : "memory");
    }
    __syncwarp();
    if (lane < 2 * kHalfGroups) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
          "[%0], [%1], %2, [%3], %4;" ::"r"(
              SharedAddress(pages[place.stage].bytes + lane * kGroupStride)),
          "l"(page + lane * kGroupBytes), "r"(kGroupBytes), "r"(barrier), "l"(policy)
          : "memory");
    }
    __syncwarp();
  }

  // By a whole warp: the page at its place, once it has landed.
  __device__ Page& WaitFull(const Place& place) {
    Wait(full[place.stage], place.parity);
    return pages[place.stage];
  }

  // By a whole warp: it will not touch the page again.
  __device__ void Release(const Place& place) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      asm volatile(
          "mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(&empty[place.stage]))
          : "memory");
    }
  }

 private:
  static __device__ void InitBarrier(uint64_t& barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(&barrier)),
                 "r"(arrivals)
                 : "memory");
  }

  // Until the phase of this parity has ended; a fresh barrier's phase of parity 1 counts as ended.
  static __device__ void Wait(const uint64_t& barrier, uint32_t parity) {
    const uint32_t address = SharedAddress(&barrier);
    uint32_t ended = 0;
    while (ended == 0) {
      asm volatile(
          "{\n\t.reg .pred p;\n\t"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
          "selp.u32 %0, 1, 0, p;\n\t}"
          : "=r"(ended)
          : "r"(address), "r"(parity)
          : "memory");
    }
    __syncwarp();
  }
};

}  // namespace augur::kernels
