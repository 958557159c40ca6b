#include "kernels/ops/list_spills.h"

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/ops/compress_keys.h"

namespace augur::kernels {

void CpuBackend::ListSpills(const ListSpillsParams& params) {
  AUGUR_CHECK(params.num_blocks >= 0 && params.num_kv_heads > 0);
  AUGUR_CHECK(params.first_layer >= 0 && params.first_layer <= params.end_layer &&
              params.end_layer <= params.num_layers);
  const int groups = params.num_layers * params.num_kv_heads;
  const int first = params.first_layer * params.num_kv_heads;
  const int end = params.end_layer * params.num_kv_heads;
  size_t entry = 0;
  for (int i = 0; i < params.num_blocks; ++i) {
    const SpilledBlock& spilled = params.blocks[i];
    AUGUR_CHECK(spilled.table >= 0 && spilled.host_block >= 0 && spilled.block >= 0);
    for (int group = first; group < end; ++group, ++entry) {
      const size_t list = size_t(spilled.table) * groups + group;
      const size_t place = size_t(spilled.host_block) * groups + group;
      if (params.pages != nullptr) {
        AUGUR_CHECK(spilled.block < params.max_blocks);
        params.pages[entry] = {params.lists[list * params.max_blocks + spilled.block],
                               params.host + place * params.page_bytes};
      }
      if (params.keys == nullptr) continue;
      const int page = spilled.block / kKeyPageBlocks;
      AUGUR_CHECK(page < params.max_key_pages);
      params.keys[entry] = {params.key_lists[list * params.max_key_pages + page] +
                                spilled.block % kKeyPageBlocks * params.key_bytes,
                            params.host_keys + place * params.key_bytes};
    }
  }
}

}  // namespace augur::kernels
