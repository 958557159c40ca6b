#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/compress_keys.h"
#include "kernels/ops/list_spills.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 128;

// One thread an entry.
__global__ void __launch_bounds__(kThreads) ListSpillsKernel(ListSpillsParams params) {
  WaitForPrevious();
  const int listed = (params.end_layer - params.first_layer) * params.num_kv_heads;
  const int entry = blockIdx.x * kThreads + threadIdx.x;
  if (entry >= params.num_blocks * listed) return;
  const SpilledBlock spilled = params.blocks[entry / listed];
  // The CPU's CHECKs.
  if (spilled.table < 0 || spilled.host_block < 0 || spilled.block < 0) __trap();
  const int groups = params.num_layers * params.num_kv_heads;
  const int group = params.first_layer * params.num_kv_heads + entry % listed;
  const size_t list = size_t(spilled.table) * groups + group;
  const size_t place = size_t(spilled.host_block) * groups + group;
  if (params.pages != nullptr) {
    if (spilled.block >= params.max_blocks) __trap();
    params.pages[entry] = {params.lists[list * params.max_blocks + spilled.block],
                           params.host + place * params.page_bytes};
  }
  if (params.keys == nullptr) return;
  const int page = spilled.block / kKeyPageBlocks;
  if (page >= params.max_key_pages) __trap();
  params.keys[entry] = {params.key_lists[list * params.max_key_pages + page] +
                            spilled.block % kKeyPageBlocks * params.key_bytes,
                        params.host_keys + place * params.key_bytes};
}

}  // namespace

void CudaBackend::ListSpills(const ListSpillsParams& params) {
  AUGUR_CHECK(params.num_blocks >= 0 && params.num_kv_heads > 0);
  AUGUR_CHECK(params.first_layer >= 0 && params.first_layer <= params.end_layer &&
              params.end_layer <= params.num_layers);
  const int entries =
      params.num_blocks * (params.end_layer - params.first_layer) * params.num_kv_heads;
  LaunchKernel(stream_, {dim3((entries + kThreads - 1) / kThreads), dim3(kThreads)},
               ListSpillsKernel, params);
}

}  // namespace augur::kernels
