// KV pages, or their keys alone, on their way from global to shared memory. Device code of
// decode_attention.cu and sampled_scores.cu.
//
// A page arrives as it lies in memory, by one bulk copy of K and one of V: copies of 2 KiB to
// places 16 bytes apart, which would spare the readers all bank conflicts, reach 7% less of the
// memory's bandwidth. Readers choose instead which thread reads what (decode_attention.cu).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/mbarrier.h"
#include "kernels/cuda/warp_math.h"
#include "kernels/kv_page.h"

namespace augur::kernels {

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

// kHalves: 2, or 1 for K alone.
template <int kHeadDim, int kHalves = 2>
struct PageRing {
  static constexpr int kRowBytes = kHeadDim * 2;
  static constexpr int kHalfBytes = kBlockTokens * kRowBytes;  // of K; as many of V
  static constexpr int kPageBytes = kHalves * kHalfBytes;

  struct alignas(128) Page {
    std::byte bytes[kPageBytes];
  };
  // 4 pages at head_dim 128. About 64 KiB in flight keep an SM at its share of the bandwidth, the
  // rest bridges the ends of runs.
  static constexpr int kStages = (128 << 10) / sizeof(Page);
  using Place = RingPlace<kStages>;

  Page pages[kStages];
  uint64_t full[kStages];   // mbarriers: the page has landed
  uint64_t empty[kStages];  // the threads that attend are done with it

  // Bytes from the start of a Page.
  static __device__ int KeyOffset(int key) { return key * kRowBytes; }
  static __device__ int ValueOffset(int key) { return kHalfBytes + key * kRowBytes; }

  // By one thread; a __syncthreads must follow.
  __device__ void Init(int num_reading_warps) {
    for (int stage = 0; stage < kStages; ++stage) {
      InitBarrier(&full[stage], 1);
      InitBarrier(&empty[stage], num_reading_warps * 32);
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
    if (lane < kHalves) {
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
          "[%0], [%1], %2, [%3], %4;" ::"r"(
              SharedAddress(pages[place.stage].bytes + lane * kHalfBytes)),
          "l"(page + lane * kHalfBytes), "r"(kHalfBytes), "r"(barrier), "l"(policy)
          : "memory");
    }
    __syncwarp();
  }

  // By a whole warp: the page at its place, once it has landed.
  __device__ Page& WaitFull(const Place& place) {
    Wait(full[place.stage], place.parity);
    return pages[place.stage];
  }

  // By a whole warp: it will not touch the page again. Every lane arrives, though __syncwarp() and
  // one lane's arrival would order as much: racecheck sees only what the arriving thread itself
  // has done (README.md), and the time is the same.
  __device__ void Release(const Place& place) { ArriveAt(&empty[place.stage]); }

 private:
  // By a whole warp.
  static __device__ void Wait(const uint64_t& barrier, uint32_t parity) {
    WaitForBarrier(&barrier, parity);
    __syncwarp();
  }
};

}  // namespace augur::kernels
