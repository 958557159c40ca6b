#include "kernels/ops/map_pages.h"

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {

void CpuBackend::MapPages(const MapPagesParams& params) {
  AUGUR_CHECK(params.first_layer >= 0 && params.end_layer <= params.num_layers);
  const int heads = params.num_kv_heads;
  const int groups = params.num_layers * heads;
  for (int i = 0; i < params.num_mapped; ++i) {
    const MappedBlock& mapped = params.mapped[i];
    if (mapped.frame < 0) continue;
    AUGUR_CHECK(mapped.table >= 0 && mapped.block >= 0 && mapped.block < params.max_blocks);
    for (int group = params.first_layer * heads; group < params.end_layer * heads; ++group) {
      const size_t list = size_t(mapped.table) * groups + group;
      const size_t page = size_t(mapped.frame) * groups + group + mapped.layer_shift * heads;
      params.lists[list * params.max_blocks + mapped.block] =
          params.pool + page * params.page_bytes + mapped.byte_shift;
    }
  }
}

}  // namespace augur::kernels
