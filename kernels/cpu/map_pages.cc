#include "kernels/ops/map_pages.h"

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {

void CpuBackend::MapPages(const MapPagesParams& params) {
  const int groups = params.num_layers * params.num_kv_heads;
  for (int i = 0; i < params.num_mapped; ++i) {
    const MappedBlock& mapped = params.mapped[i];
    if (mapped.frame < 0) continue;
    AUGUR_CHECK(mapped.table >= 0 && mapped.block >= 0 && mapped.block < params.max_blocks);
    for (int group = 0; group < groups; ++group) {
      const size_t list = size_t(mapped.table) * groups + group;
      params.lists[list * params.max_blocks + mapped.block] =
          params.pool + (size_t(mapped.frame) * groups + group) * params.page_bytes;
    }
  }
}

}  // namespace augur::kernels
