#include "kernels/ops/open_tails.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/kv_page.h"
#include "kernels/ops/place_blocks.h"

namespace augur::kernels {
namespace {

// The slot that holds `block`, else the one that it takes; -1: there is none.
int TailSlot(const TailSegment& segment, const int32_t* blocks, const int32_t* stamps,
             int32_t block) {
  const int32_t* end = blocks + segment.num_slots;
  const int32_t* found = std::find(blocks, end, block);
  if (found != end) return static_cast<int>(found - blocks);
  found = std::find(blocks, end, kEmptySlot);
  if (found != end) return static_cast<int>(found - blocks);
  const int local_begin = block - std::max(segment.local, 1) + 1;
  int victim = -1;
  for (int slot = 0; slot < segment.num_slots; ++slot) {
    if (blocks[slot] < segment.init || blocks[slot] >= local_begin) continue;
    if (victim < 0 || stamps[slot] < stamps[victim]) victim = slot;
  }
  return victim;
}

}  // namespace

void CpuBackend::OpenTails(const OpenTailsParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0);
  for (int s = 0; s < params.num_segments; ++s) {
    const TailSegment& segment = params.segments[s];
    AUGUR_CHECK(segment.rows.num_rows == 0 || segment.rows.num_rows == 1);
    if (segment.rows.num_rows == 0) continue;
    const int32_t block = segment.rows.first_position / kBlockTokens;
    AUGUR_CHECK(block < segment.source_stride);
    const size_t groups = size_t(params.num_layers) * params.num_kv_heads;
    for (size_t group = params.num_kv_heads; group < groups; ++group) {
      int32_t* blocks = segment.slot_blocks + group * segment.slot_stride;
      int32_t* stamps = segment.slot_stamps + group * segment.slot_stride;
      const int slot = TailSlot(segment, blocks, stamps, block);
      AUGUR_CHECK(slot >= 0);
      if (blocks[slot] != block) {
        blocks[slot] = block;
        stamps[slot] = segment.rows.first_position;
        if (segment.slot_costs != nullptr) {
          segment.slot_costs[group * segment.slot_stride + slot] = kSlotHasValues;
        }
      }
      segment.sources[group * segment.source_stride + block] =
          segment.slot_pages[group * segment.slot_stride + slot];
    }
  }
}

}  // namespace augur::kernels
