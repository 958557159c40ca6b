#include "kernels/ops/list_page_copies.h"

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {

void CpuBackend::ListPageCopies(const ListPageCopiesParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads >= 0);
  for (int s = 0; s < params.num_segments; ++s) {
    const PageRange& range = params.segments[s];
    AUGUR_CHECK(range.num_blocks >= 0 && range.num_blocks <= params.max_blocks);
    PageCopy* copies = params.copies + range.first_copy;
    for (int head = 0; head < params.num_kv_heads; ++head) {
      for (int i = 0; i < range.num_blocks; ++i) {
        copies[int64_t{head} * range.num_blocks + i] = {
            range.from[params.from_offset + int64_t{head} * range.from_stride + i],
            range.to[params.to_offset + int64_t{head} * range.to_stride + i]};
      }
    }
  }
}

}  // namespace augur::kernels
