#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/fp8_page.h"

namespace augur::kernels {

// One page, from where it lies to where it shall lie. 16-byte aligned, so that a kernel reads an
// entry at once.
struct alignas(16) PageCopy {
  const std::byte* from = nullptr;  // [page_bytes], 16-byte aligned
  std::byte* to = nullptr;          // [page_bytes], 16-byte aligned
};

// Copies pages[0 .. *num_pages) whole, in no order, from pinned host memory to device memory or the
// other way. Two entries never write the same bytes, and none reads what another writes. The list
// and its length are read by the kernel, so a kernel before it may have written them and a recorded
// launch serves lists of any length.
//
// An entry that reads where fp8 pages lie unpacks one, an entry that writes there packs one
// (kernels/fp8_page.h); others are copied as they are. The fp8 side is as long as the page of
// page_bytes, or its half, is in fp8.
//
// Belongs on a lane (Backend::OnLane), beside the ops.
struct PageCopyParams {
  const PageCopy* pages = nullptr;     // [*num_pages]
  const int32_t* num_pages = nullptr;  // [1]; 0 or less: nothing to copy. Null: known_pages
  int known_pages = 0;
  int page_bytes = 0;  // a multiple of 16
  int quota = 0;       // CTAs that the copy may hold at a time, on any device
  // [1]: so many of the quota's CTAs copy, at least one; so a recorded copy can be governed. Null:
  // all. Fixed from where the recorded step begins (elsewhere: the last Follow before the copy) to
  // where it ends: CTAs that are not granted leave without waiting for anything.
  const int32_t* granted = nullptr;
  int64_t delay_ns = 0;  // for tests of orders, on a device: each CTA begins so much later
  Fp8Pages fp8 = {};     // none: all entries are copied as they are
};

}  // namespace augur::kernels
