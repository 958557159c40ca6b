#include "kernels/ops/count_value_reads.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {
namespace {

// Of one segment's lists; gives the rows that were read at sources.
uint64_t AddCosts(const CountValueReadsParams& params, const ValueReadsSegment& segment) {
  uint64_t source_rows = 0;
  for (int head = 0; head < params.num_kv_heads; ++head) {
    const size_t list = size_t(segment.row) * params.num_kv_heads + head;
    const int32_t* rows = params.entry_rows + list * params.selection_stride;
    const int32_t* slots = params.source_slots + list * params.selection_stride;
    float* costs = segment.slot_costs + params.slots_offset + int64_t{head} * segment.slot_stride;
    AUGUR_CHECK(params.counts[list] <= params.selection_stride);
    for (int entry = 0; entry < params.counts[list]; ++entry) {
      if (slots[entry] < 0 || rows[entry] == 0) continue;
      AUGUR_CHECK(slots[entry] < segment.slot_stride);
      costs[slots[entry]] += ValueReadCost(params, rows[entry]);
      source_rows += rows[entry];
    }
  }
  return source_rows;
}

}  // namespace

void CpuBackend::CountValueReads(const CountValueReadsParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0);
  for (int s = 0; s < params.num_segments; ++s) {
    const ValueReadsSegment& segment = params.segments[s];
    if (segment.row >= 0) *params.source_rows += AddCosts(params, segment);
  }
}

}  // namespace augur::kernels
