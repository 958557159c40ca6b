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

// Takes the entries that have a slot; the other slots are left in `victims`.
void TakeHits(const PlaceSegment& segment, const PlacedGroup& group, PlacementCounts* counts,
              std::vector<int64_t>* victims) {
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
  }
}

// Gives the others the first of `victims`.
void FetchMisses(const PlaceBlocksParams& params, const PlaceSegment& segment,
                 const PlacedGroup& group, PlacementCounts* counts, std::vector<int64_t>* victims) {
  const auto misses = std::count(group.pages, group.pages + group.count, nullptr);
  AUGUR_CHECK(misses <= static_cast<int64_t>(victims->size()));
  std::partial_sort(victims->begin(), victims->begin() + misses, victims->end());
  counts->fetched += misses;
  auto victim = victims->begin();
  for (int entry = 0; entry < group.count; ++entry) {
    if (group.pages[entry] != nullptr) continue;
    const int slot = SlotOf(*victim++);
    const int32_t block = group.blocks[entry];
    AUGUR_CHECK(block >= 0 && block < segment.source_stride);
    params.copies[(*params.num_copies)++] = {group.sources[block], group.slot_pages[slot]};
    group.pages[entry] = group.slot_pages[slot];
    group.slot_blocks[slot] = block;
    group.slot_stamps[slot] = segment.rows.first_position;
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
        }
        continue;
      }
      AUGUR_CHECK(params.copies != nullptr && params.num_copies != nullptr);
      AUGUR_CHECK(segment.num_slots <= params.max_slots && group.count <= segment.num_slots);
      TakeHits(segment, group, &counts, &place_victims_);
      FetchMisses(params, segment, group, &counts, &place_victims_);
    }
  }
  if (params.placement == nullptr) return;
  params.placement->chosen += counts.chosen;
  params.placement->reused += counts.reused;
  params.placement->spare += counts.spare;
  params.placement->fetched += counts.fetched;
}

}  // namespace augur::kernels
