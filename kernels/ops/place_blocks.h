#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/ops/page_copy.h"
#include "kernels/ops/segment.h"

namespace augur::kernels {

// Empty slots hold this block.
inline constexpr int32_t kEmptySlot = -1;
// Cost of a slot that holds values beside its keys.
inline constexpr float kSlotHasValues = -1.0f;

// Where a row's chosen blocks lie. Lists of several layers lie behind each other, so that all share
// one segment: PlaceBlocksParams' offsets lead to the layer's.
struct PlaceSegment {
  Segment rows;  // one row; num_rows 0: the segment is left out
  // [num_kv_heads][source_stride]: where each block of the sequence lies for good: its page on the
  // device where it is resident, its host page where it is tiered.
  std::byte* const* sources = nullptr;
  int source_stride = 0;
  // A tiered sequence's slots, a cache of its host pages; null: resident, blocks are read where
  // they lie. [num_kv_heads][slot_stride], of which num_slots each.
  int32_t* slot_blocks = nullptr;          // kEmptySlot, or the block that the slot holds
  int32_t* slot_stamps = nullptr;          // position of the last token that chose it, or -1
  std::byte* const* slot_pages = nullptr;  // where the slot lies
  // Sampled values: a slot may hold its block's keys alone. Likewise: kSlotHasValues, or what rows
  // of values that were read at the source have cost since the keys came
  // (kernels/ops/count_value_reads.h). Null: all slots hold both.
  float* slot_costs = nullptr;
  int num_slots = 0;  // at least the row's choice
  int slot_stride = 0;
  bool keys_only = false;  // what is missing comes without its values
  // For the counts alone: blocks outside [init, last - local] were not chosen by scores.
  int init = 0;
  int local = 0;
};

// What one layer's calls have counted, added up since the counts were last cleared. Blocks of
// (row, kv head) of tiered sequences that scores chose, forced ones left out, unless it says
// otherwise.
struct PlacementCounts {
  uint64_t chosen = 0;
  uint64_t reused = 0;     // chosen by the token before, too, and still in their slot
  uint64_t spare = 0;      // chosen by an older token, and still in their slot
  uint64_t fetched = 0;    // blocks that had to be copied, forced ones among them
  uint64_t keys_only = 0;  // of those, without their values
  uint64_t moved = 0;      // values that came to keys that were there
};

// For each (row, kv head) the page of every chosen block, and what must be copied before they may
// be read. The rule is memory/slot_group.h's (PlanSlots, then ApplySlotPlan): a block that has a
// slot keeps it; others take victims in order of blocks: empty slots first, lower ones before
// higher, then the least stamp, the lower slot of equals; no block of the choice is a victim. The
// slots of all chosen blocks are stamped with the row's position. Every block that may become a
// victim must have been written to its source before.
//
// With half_bytes, values need not be where keys are: a slot that holds keys alone gets the values,
// too, when its block is chosen by a segment that is not keys_only, or again once it has cost
// move_cost. Until then they are read at the source.
struct PlaceBlocksParams {
  const PlaceSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int num_kv_heads = 0;
  // As SelectBlocks leaves them, of the segment's row.
  const int32_t* blocks = nullptr;    // [rows][num_kv_heads][selection_stride], ascending
  const int32_t* counts = nullptr;    // [rows][num_kv_heads]
  const std::byte** pages = nullptr;  // [rows][num_kv_heads][selection_stride], written
  int selection_stride = 0;           // on a device at most 1024
  int max_slots = 0;                  // of any segment, at most: what the host knows; likewise
  // Copies from sources to slots, in no order; the list begins at 0 in every call. Null: no segment
  // is tiered. Of whole pages; with half_bytes of halves, keys and values apart.
  PageCopy* copies = nullptr;  // [num_segments * num_kv_heads * selection_stride], of halves twice
  int32_t* num_copies = nullptr;         // [1], written
  PlacementCounts* placement = nullptr;  // [1], added to; null: not counted
  // Added to every segment's `sources`, and to its three slot lists, in entries.
  int64_t sources_offset = 0;
  int64_t slots_offset = 0;  // to slot_costs, too

  int half_bytes = 0;         // of a page on the device; 0: no slot holds keys alone
  int source_half_bytes = 0;  // of a source of slots, from its keys to its values
  float move_cost = 0.0f;
  // Written where they are wanted, as pages are: where the values of every chosen block lie, and
  // the slot of those that lie at the source of a slot, -1 of the others.
  const std::byte** values = nullptr;  // null: not wanted
  int32_t* source_slots = nullptr;     // likewise
};

}  // namespace augur::kernels
