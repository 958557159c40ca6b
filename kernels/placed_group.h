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
  const int32_t* blocks = nullptr;    // [count]
  const std::byte** pages = nullptr;  // [count]
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
  group.count = params.counts[row];
  if (segment.slot_blocks == nullptr) return group;
  const int64_t slots = params.slots_offset + int64_t{head} * segment.slot_stride;
  group.slot_blocks = segment.slot_blocks + slots;
  group.slot_stamps = segment.slot_stamps + slots;
  group.slot_pages = segment.slot_pages + slots;
  return group;
}

}  // namespace augur::kernels
