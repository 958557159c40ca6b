#include <cstring>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/ops/page_copy.h"

namespace augur::kernels {

// The quota is the device's affair: here the copy has ended when the call returns.
void CpuBackend::CopyPages(const PageCopyParams& params) {
  AUGUR_CHECK(params.page_bytes > 0);
  const int num_pages = params.num_pages == nullptr ? params.known_pages : *params.num_pages;
  const size_t fp8_bytes = params.fp8.fp8_bytes(params.page_bytes);
  ForRows(num_pages, params.page_bytes, [&](int first, int end, int) {
    for (int i = first; i < end; ++i) {
      const PageCopy& page = params.pages[i];
      if (params.fp8.holds(page.from) || params.fp8.holds(page.to)) {
        CopyFp8(params.fp8, page.from, page.to, fp8_bytes);
      } else {
        std::memcpy(page.to, page.from, params.page_bytes);
      }
    }
  });
}

}  // namespace augur::kernels
