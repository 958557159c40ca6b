// Bulk copies through a ring in shared memory, and the list that tells what to copy: the parts of
// kernels that move pages (page_copy.cu, fp8_page_copy.cu). All of it is for one warp, the first of
// its CTA, unless it says otherwise.
#pragma once

#include <cstdint>

#include "kernels/cuda/mbarrier.h"
#include "kernels/cuda/warp_math.h"
#include "kernels/ops/page_copy.h"

namespace augur::kernels {

inline constexpr int kWarp = 32;

// Without launch_dependents, unlike WaitForPrevious(): see CopyPages.
__device__ inline void WaitForPreviousAlone() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Any thread.
__device__ inline void Delay(int64_t delay_ns) {
  int64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    __nanosleep(1000);
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < delay_ns);
}

// Makes the barriers known to the bulk copies, which are another proxy.
__device__ inline void FenceBarriers() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ inline void LoadPiece(std::byte* stage, const std::byte* from, uint32_t bytes,
                                 uint64_t* loaded) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(loaded)),
      "r"(bytes)
      : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(SharedAddress(stage)),
      "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(SharedAddress(loaded))
      : "memory");
}

// A group of its own.
__device__ inline void StorePiece(std::byte* to, const std::byte* stage, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                   __cvta_generic_to_global(to)),
               "r"(SharedAddress(stage)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// The stages of all stores but the last one may be written again.
__device__ inline void WaitForStagesBeforeLast() {
  asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
}

// Of all stores.
__device__ inline void WaitForStages() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

__device__ inline void WaitForStores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// This CTA's entries of the list, every `ctas`th, one after another. Each lane holds one of 32, and
// the 32 after them are already being read: no copy waits for its address. All lanes call it
// together.
class EntryReader {
 public:
  __device__ EntryReader(const PageCopy* pages, int num_pages, int ctas)
      : pages_(pages), num_pages_(num_pages), ctas_(ctas), lane_(static_cast<int>(threadIdx.x)) {
    here_ = Read();
    ahead_ = Read();
  }

  __device__ PageCopy Next() {
    if (used_ == kWarp) {
      here_ = ahead_;
      ahead_ = Read();
      used_ = 0;
    }
    PageCopy entry;
    entry.from = reinterpret_cast<const std::byte*>(
        __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(here_.from), used_));
    entry.to = reinterpret_cast<std::byte*>(
        __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(here_.to), used_));
    ++used_;
    return entry;
  }

 private:
  __device__ PageCopy Read() {
    const int64_t place = blockIdx.x + static_cast<int64_t>(read_ + lane_) * ctas_;
    read_ += kWarp;
    if (place >= num_pages_) return PageCopy{};
    // Past the first-level cache: of a line's entries most are other CTAs'.
    const uint4 words = __ldcg(reinterpret_cast<const uint4*>(pages_ + place));
    PageCopy entry;
    entry.from = reinterpret_cast<const std::byte*>(static_cast<uint64_t>(words.y) << 32 | words.x);
    entry.to = reinterpret_cast<std::byte*>(static_cast<uint64_t>(words.w) << 32 | words.z);
    return entry;
  }

  const PageCopy* pages_;
  int num_pages_;
  int ctas_;
  int lane_;
  int read_ = 0;  // of this CTA's entries
  int used_ = 0;  // of here_
  PageCopy here_;
  PageCopy ahead_;
};

}  // namespace augur::kernels
