#include "kernels/ops/place_blocks.h"

#include <algorithm>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/kv_page.h"
#include "kernels/placed_group.h"

namespace augur::kernels {
namespace {

int EntryOf(const PlacedGroup& group, int32_t block) {
  const int32_t* end = group.blocks + group.count;
  const int32_t* at = std::lower_bound(group.blocks, end, block);
  return at == end || *at != block ? -1 : static_cast<int>(at - group.blocks);
}

// Orders slots as victims: empty ones, then the least stamp; the lower slot of equals.
int64_t RankOf(const PlacedGroup& group, int slot) {
  if (group.slot_blocks[slot] == kEmptySlot) return slot;
  return ((int64_t{group.slot_stamps[slot]} + (int64_t{1} << 32)) << 20) + slot;
}
int SlotOf(int64_t rank) { return static_cast<int>(rank & ((1 << 20) - 1)); }

// Lists what of a block's page goes to a slot: in halves where there are any.
void AddCopy(const PlaceBlocksParams& params, const std::byte* from, std::byte* to, bool keys,
             bool values) {
  if (params.half_bytes == 0) {
    params.copies[(*params.num_copies)++] = {from, to};
    return;
  }
  if (keys) params.copies[(*params.num_copies)++] = {from, to};
  if (values) {
    params.copies[(*params.num_copies)++] = {from + params.source_half_bytes,
                                             to + params.half_bytes};
  }
}

// Notes where the values of an entry in `slot` lie.
void TellValues(const PlaceBlocksParams& params, const PlacedGroup& group, int entry, int slot) {
  const bool here = group.slot_costs == nullptr || group.slot_costs[slot] < 0.0f;
  if (group.values != nullptr) {
    group.values[entry] = here ? group.slot_pages[slot] + params.half_bytes
                               : group.sources[group.blocks[entry]] + params.source_half_bytes;
  }
  if (group.source_slots != nullptr) group.source_slots[entry] = here ? -1 : slot;
}

// Takes the entries that have a slot; the other slots are left in `victims`.
void TakeHits(const PlaceBlocksParams& params, const PlaceSegment& segment,
              const PlacedGroup& group, PlacementCounts* counts, std::vector<int64_t>* victims) {
  const int position = segment.rows.first_position;
  const int local_begin = position / kBlockTokens - segment.local + 1;
  const auto by_scores = [&](int32_t block) {
    return block >= segment.init && block < local_begin;
  };
  counts->chosen += std::count_if(group.blocks, group.blocks + group.count, by_scores);
  std::fill_n(group.pages, group.count, nullptr);
  victims->clear();
  for (int slot = 0; slot < segment.num_slots; ++slot) {
    const int32_t block = group.slot_blocks[slot];
    const int entry = block == kEmptySlot ? -1 : EntryOf(group, block);
    if (entry < 0) {
      victims->push_back(RankOf(group, slot));
      continue;
    }
    AUGUR_CHECK(group.pages[entry] == nullptr);
    group.pages[entry] = group.slot_pages[slot];
    if (by_scores(block)) {
      (group.slot_stamps[slot] == position - 1 ? counts->reused : counts->spare) += 1;
    }
    group.slot_stamps[slot] = position;
    if (group.slot_costs != nullptr && group.slot_costs[slot] >= 0.0f &&
        (!segment.keys_only || group.slot_costs[slot] >= params.move_cost)) {
      AddCopy(params, group.sources[block], group.slot_pages[slot], false, true);
      group.slot_costs[slot] = kSlotHasValues;
      counts->moved += 1;
    }
    TellValues(params, group, entry, slot);
  }
}

// Gives the others the first of `victims`.
void FetchMisses(const PlaceBlocksParams& params, const PlaceSegment& segment,
                 const PlacedGroup& group, PlacementCounts* counts, std::vector<int64_t>* victims) {
  const auto misses = std::count(group.pages, group.pages + group.count, nullptr);
  AUGUR_CHECK(misses <= static_cast<int64_t>(victims->size()));
  std::partial_sort(victims->begin(), victims->begin() + misses, victims->end());
  const bool keys_only = group.slot_costs != nullptr && segment.keys_only;
  counts->fetched += misses;
  if (keys_only) counts->keys_only += misses;
  auto victim = victims->begin();
  for (int entry = 0; entry < group.count; ++entry) {
    if (group.pages[entry] != nullptr) continue;
    const int slot = SlotOf(*victim++);
    const int32_t block = group.blocks[entry];
    AUGUR_CHECK(block >= 0 && block < segment.source_stride);
    AddCopy(params, group.sources[block], group.slot_pages[slot], true, !keys_only);
    group.pages[entry] = group.slot_pages[slot];
    group.slot_blocks[slot] = block;
    group.slot_stamps[slot] = segment.rows.first_position;
    if (group.slot_costs != nullptr) group.slot_costs[slot] = keys_only ? 0.0f : kSlotHasValues;
    TellValues(params, group, entry, slot);
  }
}

}  // namespace

void CpuBackend::PlaceBlocks(const PlaceBlocksParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0);
  PlacementCounts counts;
  if (params.num_copies != nullptr) *params.num_copies = 0;
  for (int s = 0; s < params.num_segments; ++s) {
    const PlaceSegment& segment = params.segments[s];
    AUGUR_CHECK(segment.rows.num_rows == 0 || segment.rows.num_rows == 1);
    if (segment.rows.num_rows == 0) continue;
    for (int head = 0; head < params.num_kv_heads; ++head) {
      const PlacedGroup group = GroupOf(params, segment, head);
      AUGUR_CHECK(group.count >= 0 && group.count <= params.selection_stride);
      if (group.slot_blocks == nullptr) {
        for (int i = 0; i < group.count; ++i) {
          AUGUR_CHECK(group.blocks[i] >= 0 && group.blocks[i] < segment.source_stride);
          group.pages[i] = group.sources[group.blocks[i]];
          if (group.values != nullptr) group.values[i] = group.pages[i] + params.half_bytes;
          if (group.source_slots != nullptr) group.source_slots[i] = -1;
        }
        continue;
      }
      AUGUR_CHECK(params.copies != nullptr && params.num_copies != nullptr);
      AUGUR_CHECK(segment.num_slots <= params.max_slots && group.count <= segment.num_slots);
      TakeHits(params, segment, group, &counts, &place_victims_);
      FetchMisses(params, segment, group, &counts, &place_victims_);
    }
  }
  if (params.placement == nullptr) return;
  params.placement->chosen += counts.chosen;
  params.placement->reused += counts.reused;
  params.placement->spare += counts.spare;
  params.placement->fetched += counts.fetched;
  params.placement->keys_only += counts.keys_only;
  params.placement->moved += counts.moved;
}

}  // namespace augur::kernels
