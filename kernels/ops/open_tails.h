#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/ops/segment.h"

namespace augur::kernels {

// A row of a tiered sequence whose k and v go to the slot of its open block.
struct TailSegment {
  Segment rows;  // one row; num_rows 0: the segment is left out
  // [layers][num_kv_heads][source_stride], [layers][num_kv_heads][slot_stride]: of all layers,
  // otherwise as in PlaceSegment.
  std::byte** sources = nullptr;
  int source_stride = 0;
  int32_t* slot_blocks = nullptr;
  int32_t* slot_stamps = nullptr;
  std::byte* const* slot_pages = nullptr;
  float* slot_costs = nullptr;  // null: no slot holds keys alone
  int num_slots = 0;
  int slot_stride = 0;
  int init = 0;   // first blocks that are always chosen
  int local = 0;  // last ones, the row's own among them
};

// Gives the block of each segment's row a slot in every group of layers [1, num_layers), if it has
// none yet, and notes the slot's page as where the block lies for now: sources[..][block]. So
// RopeAppend finds it there. Victims as memory/slot_group.h's PlanTailSlot has them: an empty slot,
// else the least stamp, the lower slot of equals, of blocks that are neither among the first `init`
// nor among the last `local`; those must have been written to their sources before. A new slot is
// stamped with the row's position, and holds values. Calling it again changes nothing.
struct OpenTailsParams {
  const TailSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int num_layers = 0;
  int num_kv_heads = 0;
};

}  // namespace augur::kernels
