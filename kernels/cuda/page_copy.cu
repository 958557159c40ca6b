#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/page_copy.h"
#include "kernels/cuda/warp_math.h"

namespace augur::kernels {
namespace {

constexpr int kWarp = 32;

// Bytes under way are what fills the link: about 130 KiB do, over all CTAs, and one SM moves at
// most some 35 GB/s of the link's 51. 6 pieces of 32 KiB let two CTAs fill it (measured on an H200:
// 50.5 GB/s with two, 51.0 with four); larger pieces only make the first one later.
constexpr int kMaxPieceBytes = 32 * 1024;
constexpr int kRingBytes = 192 * 1024;
// Barriers are statically sized. 32 pieces of 4 KiB are 128 KiB a CTA, enough from two CTAs on.
constexpr int kMaxStages = 32;
constexpr int kBulkAlignment = 16;  // of addresses and sizes of bulk copies

int DivideUp(int value, int by) { return (value - 1) / by + 1; }

// Without launch_dependents, unlike WaitForPrevious(): see CopyPages.
__device__ inline void WaitForPreviousAlone() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__device__ inline void InitBarrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(SharedAddress(barrier)) : "memory");
}

__device__ void Delay(int64_t delay_ns) {
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

__device__ inline void WaitForBarrier(uint64_t* barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  }
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

// Where a piece in the ring goes.
struct Landing {
  std::byte* to;
  uint32_t bytes;
};

// Piece k lies in stage k % stages: loaded (its barrier tells), then stored. Lane 0 issues
// everything; the other lanes only hold entries of the list.
__global__ void __launch_bounds__(kWarp)
    CopyPagesKernel(PageCopyParams params, uint32_t piece_bytes, int stages) {
  // Those left over hold their places no longer than it takes to see it.
  if (params.granted != nullptr && blockIdx.x > 0 &&
      static_cast<int>(blockIdx.x) >= *params.granted) {
    return;
  }
  WaitForPreviousAlone();
  if (params.delay_ns > 0) Delay(params.delay_ns);
  extern __shared__ __align__(128) std::byte ring[];  // [stages][piece_bytes]
  __shared__ __align__(8) uint64_t loaded[kMaxStages];
  __shared__ Landing landings[kMaxStages];  // lane 0's own

  const bool leader = threadIdx.x == 0;
  const int first = static_cast<int>(blockIdx.x);
  int ctas = static_cast<int>(gridDim.x);
  if (params.granted != nullptr) ctas = max(1, min(ctas, *params.granted));
  const int num_pages = params.num_pages == nullptr ? params.known_pages : *params.num_pages;
  if (first >= ctas || num_pages <= first) return;
  const uint32_t page_bytes = static_cast<uint32_t>(params.page_bytes);
  const int64_t my_pages = (num_pages - 1 - first) / ctas + 1;
  const int64_t pieces = my_pages * ((page_bytes + piece_bytes - 1) / piece_bytes);
  if (leader) {
    for (int stage = 0; stage < stages; ++stage) InitBarrier(&loaded[stage]);
    FenceBarriers();
  }

  EntryReader entries(params.pages, num_pages, ctas);
  PageCopy page;
  uint32_t offset = 0;  // in `page`, of the next piece to load
  const auto load_next_into = [&](int stage) {
    if (offset == 0) page = entries.Next();
    if (leader) {
      const uint32_t bytes = min(piece_bytes, page_bytes - offset);
      landings[stage] = {page.to + offset, bytes};
      LoadPiece(ring + stage * piece_bytes, page.from + offset, bytes, &loaded[stage]);
    }
    offset += piece_bytes;
    if (offset >= page_bytes) offset = 0;
  };

  // One stage stays free: while a piece is stored, the stage of the one before it is filled again.
  for (int stage = 0; stage < stages - 1 && stage < pieces; ++stage) load_next_into(stage);
  int stage = 0;
  int free_stage = stages - 1;
  uint32_t parity = 0;
  for (int64_t piece = 0; piece < pieces; ++piece) {
    if (leader) {
      WaitForBarrier(&loaded[stage], parity);
      StorePiece(landings[stage].to, ring + stage * piece_bytes, landings[stage].bytes);
      WaitForStagesBeforeLast();
    }
    if (piece + stages - 1 < pieces) load_next_into(free_stage);
    free_stage = stage;
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  if (leader) WaitForStores();  // the ring is read until then
}

}  // namespace

PageCopyShape ShapeOfPageCopy(int page_bytes) {
  PageCopyShape shape;
  // As few pieces as may be, of equal size: 40 KiB are 20 and 20, not 32 and 8.
  const int pieces = DivideUp(page_bytes, kMaxPieceBytes);
  shape.piece_bytes = DivideUp(DivideUp(page_bytes, pieces), kBulkAlignment) * kBulkAlignment;
  shape.stages = std::min(kRingBytes / shape.piece_bytes, kMaxStages);
  shape.shared_bytes = shape.piece_bytes * shape.stages;
  shape.threads = kWarp;
  return shape;
}

void CopyPages(const PageCopyParams& params, cudaStream_t stream) {
  AUGUR_CHECK(params.page_bytes > 0 && params.page_bytes % kBulkAlignment == 0);
  AUGUR_CHECK(params.page_bytes <= 1 << 30);  // offsets are 32 bits
  AUGUR_CHECK(params.quota > 0);
  const PageCopyShape shape = ShapeOfPageCopy(params.page_bytes);
  // Of the current device, and cheap; so not remembered.
  AUGUR_CUDA(cudaFuncSetAttribute(CopyPagesKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  shape.shared_bytes));
  LaunchKernel(stream,
               {.grid = dim3(static_cast<unsigned>(params.quota)),
                .block = dim3(static_cast<unsigned>(shape.threads)),
                .shared_bytes = static_cast<size_t>(shape.shared_bytes)},
               CopyPagesKernel, params, static_cast<uint32_t>(shape.piece_bytes), shape.stages);
}

void CopyPagesByCopyEngine(const PageCopy* pages, int num_pages, size_t page_bytes,
                           cudaStream_t stream) {
  for (int i = 0; i < num_pages; ++i) {
    AUGUR_CUDA(cudaMemcpyAsync(pages[i].to, pages[i].from, page_bytes, cudaMemcpyDefault, stream));
  }
}

}  // namespace augur::kernels
