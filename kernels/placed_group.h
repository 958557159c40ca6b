// The lists of one (segment, kv head) of PlaceBlocks, on either backend.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/ops/place_blocks.h"

namespace augur::kernels {

struct PlacedGroup {
  std::byte* const* sources = nullptr;  // [source_stride]
  int32_t* slot_blocks = nullptr;       // [num_slots], as the two below; null: resident
  int32_t* slot_stamps = nullptr;
  std::byte* const* slot_pages = nullptr;
  float* slot_costs = nullptr;         // null: all slots hold keys and values
  const int32_t* blocks = nullptr;     // [count]
  const std::byte** pages = nullptr;   // [count]
  const std::byte** values = nullptr;  // [count]; null: not wanted
  int32_t* source_slots = nullptr;     // likewise
  int count = 0;
};

AUGUR_HOST_DEVICE inline PlacedGroup GroupOf(const PlaceBlocksParams& params,
                                             const PlaceSegment& segment, int head) {
  const size_t row = size_t(segment.rows.first_row) * params.num_kv_heads + head;
  const size_t list = row * params.selection_stride;
  PlacedGroup group;
  group.sources = segment.sources + params.sources_offset + size_t(head) * segment.source_stride;
  group.blocks = params.blocks + list;
  group.pages = params.pages + list;
  if (params.values != nullptr) group.values = params.values + list;
  if (params.source_slots != nullptr) group.source_slots = params.source_slots + list;
  group.count = params.counts[row];
  if (segment.slot_blocks == nullptr) return group;
  const int64_t slots = params.slots_offset + int64_t{head} * segment.slot_stride;
  group.slot_blocks = segment.slot_blocks + slots;
  group.slot_stamps = segment.slot_stamps + slots;
  group.slot_pages = segment.slot_pages + slots;
  if (params.half_bytes > 0 && segment.slot_costs != nullptr) {
    group.slot_costs = segment.slot_costs + slots;
  }
  return group;
}

}  // namespace augur::kernels
