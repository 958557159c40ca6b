// Copies of pages between pinned host memory and the device, beside the ops: by a few CTAs (the
// list may be the device's), or by the copy engine (the host must know the list).
//
// Thread: any; a stream is one thread's. Ownership: list and pages are the caller's until the
// stream has passed the copy. Failure: as launch.h. Nothing is allocated and nothing synchronised,
// so both can be recorded into a graph.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops/page_copy.h"

namespace augur::kernels {

// params.quota CTAs of one warp; each takes shared memory for itself, all but some 30 KiB of an
// SM's for pages of 32 KiB or more, so they lie on SMs of their own. 2 to 4 fill a PCIe 5 x16 link.
// CTA c of those granted copies pages c, c + granted, ...: the link is shared evenly, so none has
// more than one page more to do than another.
//
// A kernel behind it on the stream starts when the copy has ended, not early: its CTAs would else
// hold their place on SMs for the whole copy.
void CopyPages(const PageCopyParams& params, cudaStream_t stream);

// Where there are fp8 pages CopyPages is this: CTAs of four warps, which convert what passes
// through shared memory.
void CopyFp8Pages(const PageCopyParams& params, cudaStream_t stream);

// One cudaMemcpyAsync a page, for lists that the host knows (write-behind of finished blocks) and
// pages that are large (a frame is one): costs no SM, but some 3 us a page. A page must not cross a
// multiple of PinnedMemory::kChunkBytes of the pool.
void CopyPagesByCopyEngine(const PageCopy* pages, int num_pages, size_t page_bytes,
                           cudaStream_t stream);

// What CopyPages launches, so that whoever sizes a grid beside it knows what it takes of an SM.
struct PageCopyShape {
  int piece_bytes = 0;   // of one bulk copy
  int stages = 0;        // pieces that a CTA has under way
  int shared_bytes = 0;  // dynamic, of one CTA
  int threads = 0;       // of one CTA
};
PageCopyShape ShapeOfPageCopy(int page_bytes);

}  // namespace augur::kernels
