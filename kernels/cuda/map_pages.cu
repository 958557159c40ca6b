#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/map_pages.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 64;  // one list each: 32 layers of two kv heads in one round

// One CTA a block.
__global__ void __launch_bounds__(kThreads) MapPagesKernel(MapPagesParams params) {
  WaitForPrevious();
  const MappedBlock mapped = params.mapped[blockIdx.x];
  if (mapped.frame < 0) return;
  // The CPU's CHECK: anywhere else it would write over other memory.
  if (mapped.table < 0 || mapped.block < 0 || mapped.block >= params.max_blocks) __trap();
  const int groups = params.num_layers * params.num_kv_heads;
  const int end = params.end_layer * params.num_kv_heads;
  for (int group = params.first_layer * params.num_kv_heads + threadIdx.x; group < end;
       group += kThreads) {
    const size_t list = size_t(mapped.table) * groups + group;
    const size_t page =
        size_t(mapped.frame) * groups + group + mapped.layer_shift * params.num_kv_heads;
    params.lists[list * params.max_blocks + mapped.block] =
        params.pool + page * params.page_bytes + mapped.byte_shift;
  }
}

}  // namespace

void CudaBackend::MapPages(const MapPagesParams& params) {
  AUGUR_CHECK(params.num_mapped >= 0 && params.num_layers >= 0 && params.num_kv_heads >= 0);
  AUGUR_CHECK(params.first_layer >= 0 && params.end_layer <= params.num_layers);
  LaunchKernel(stream_, {dim3(params.num_mapped), dim3(kThreads)}, MapPagesKernel, params);
}

}  // namespace augur::kernels
