#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/bulk_copy.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/page_copy.h"

namespace augur::kernels {
namespace {

// Bytes under way are what fills the link: about 130 KiB do, over all CTAs, and one SM moves at
// most some 35 GB/s of the link's 51. 6 pieces of 32 KiB let two CTAs fill it (measured on an H200:
// 50.5 GB/s with two, 51.0 with four); larger pieces only make the first one later.
constexpr int kMaxPieceBytes = 32 * 1024;
constexpr int kRingBytes = 192 * 1024;
// Barriers are statically sized. 32 pieces of 4 KiB are 128 KiB a CTA, enough from two CTAs on.
constexpr int kMaxStages = 32;
constexpr int kBulkAlignment = 16;  // of addresses and sizes of bulk copies

int DivideUp(int value, int by) { return (value - 1) / by + 1; }

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
    for (int stage = 0; stage < stages; ++stage) InitBarrier(&loaded[stage], 1);
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
  if (params.fp8.begin != params.fp8.end) return CopyFp8Pages(params, stream);
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
