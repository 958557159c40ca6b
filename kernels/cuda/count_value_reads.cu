#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/count_value_reads.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 128;

// One CTA a segment and kv head. Entries of a list have slots of their own.
__global__ void __launch_bounds__(kThreads) CountValueReadsKernel(CountValueReadsParams params) {
  WaitForPrevious();
  const int s = blockIdx.x / params.num_kv_heads;
  const int head = blockIdx.x % params.num_kv_heads;
  const ValueReadsSegment segment = params.segments[s];
  if (segment.row < 0) return;
  const size_t list = size_t(segment.row) * params.num_kv_heads + head;
  const int entries = params.counts[list];
  if (entries > params.selection_stride) __trap();  // the CPU's CHECK
  float* costs = segment.slot_costs + params.slots_offset + int64_t{head} * segment.slot_stride;
  int source_rows = 0;
  for (int entry = threadIdx.x; entry < entries; entry += kThreads) {
    const size_t at = list * params.selection_stride + entry;
    const int32_t slot = params.source_slots[at], rows = params.entry_rows[at];
    if (slot < 0 || rows == 0) continue;
    if (slot >= segment.slot_stride) __trap();
    costs[slot] += ValueReadCost(params, rows);
    source_rows += rows;
  }
  source_rows = __reduce_add_sync(~0u, source_rows);
  if (threadIdx.x % 32 == 0 && source_rows > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(params.source_rows),
              static_cast<unsigned long long>(source_rows));
  }
}

}  // namespace

void CudaBackend::CountValueReads(const CountValueReadsParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0 && params.source_rows != nullptr);
  if (params.num_segments == 0) return;
  LaunchKernel(stream_, {dim3(params.num_segments * params.num_kv_heads), dim3(kThreads)},
               CountValueReadsKernel, params);
}

}  // namespace augur::kernels
