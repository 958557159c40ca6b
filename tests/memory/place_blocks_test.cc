// kernels/ must not see memory/, and has the rule of the slots a second time: both say the same on
// random histories.
#include "kernels/ops/place_blocks.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "kernels/ops/open_tails.h"
#include "memory/slot_group.h"
#include "tests/kernels/placed_history.h"

namespace augur::memory {
namespace {

constexpr int kAllLanded = 1 << 30;

kernels::SlotPlacement PlaceAsMemory(kernels::SlotState* slots, const std::vector<int32_t>& wanted,
                                     int position) {
  SlotGroup group{slots->blocks, slots->stamps};
  SlotPlan plan;
  PlanSlots(group, wanted, kAllLanded, &plan);
  ApplySlotPlan(plan, wanted, position, &group);
  kernels::SlotPlacement placement{plan.entry_slots, {}};
  for (const SlotFetch& fetch : plan.fetches)
    placement.fetches.push_back({fetch.slot, fetch.block});
  return placement;
}

TEST(PlaceBlocksTest, IsMemorysRule) {
  const auto backend = kernels::MakeCpuBackend({.num_threads = 1});
  const std::vector<kernels::PlaceShape> shapes = {
      {.slots = {1, 2}, .most_chosen = 2, .blocks = 6},
      {.slots = {16, 0, 24}, .kv_heads = 2, .layers = 2, .most_chosen = 16, .blocks = 40},
      {.slots = {192, 128}, .kv_heads = 2, .most_chosen = 96, .blocks = 500},
  };
  for (size_t i = 0; i < shapes.size(); ++i) {
    kernels::PlacedHistory history(*backend, shapes[i], static_cast<uint32_t>(i));
    for (int step = 0; step < 150; ++step) {
      SCOPED_TRACE("shape " + std::to_string(i) + " step " + std::to_string(step));
      history.Step(PlaceAsMemory, /*recorded=*/false);
      if (HasFatalFailure()) return;
    }
  }
}

// A sequence's open block moves on; other blocks are stamped at random, as choices would.
TEST(OpenTailsTest, IsMemorysRule) {
  const auto backend = kernels::MakeCpuBackend({.num_threads = 1});
  std::mt19937 random(3);
  for (const int num_slots : {3, 8, 40}) {
    std::vector<int32_t> blocks(2 * num_slots, kNoBlock), stamps(2 * num_slots, -1);
    std::vector<std::byte*> slot_pages(2 * num_slots, nullptr), sources(2 * 400, nullptr);
    const int init = 1, local = num_slots == 3 ? 1 : 2;
    for (int position = 0; position < 400 * kernels::kBlockTokens; position += 1 + random() % 90) {
      const int block = position / kernels::kBlockTokens;
      std::vector<int32_t> expected = blocks, expected_stamps = stamps;
      SlotGroup group{std::span(expected).subspan(num_slots),
                      std::span(expected_stamps).subspan(num_slots)};
      if (FindSlot(group, block) < 0) {
        const int slot = PlanTailSlot(group, kAllLanded, init, block - local + 1);
        ASSERT_GE(slot, 0);
        group.blocks[slot] = block;
        group.stamps[slot] = position;
      }
      const kernels::TailSegment segment{.rows = {0, 1, position},
                                         .sources = sources.data(),
                                         .source_stride = 400,
                                         .slot_blocks = blocks.data(),
                                         .slot_stamps = stamps.data(),
                                         .slot_pages = slot_pages.data(),
                                         .num_slots = num_slots,
                                         .slot_stride = num_slots,
                                         .init = init,
                                         .local = local};
      backend->OpenTails(
          {.segments = &segment, .num_segments = 1, .num_layers = 2, .num_kv_heads = 1});
      ASSERT_EQ(blocks, expected) << position;
      ASSERT_EQ(stamps, expected_stamps) << position;
      for (int slot = num_slots; slot < 2 * num_slots; ++slot) {
        if (random() % 3 == 0 && blocks[slot] != kNoBlock) stamps[slot] = position;
      }
    }
  }
}

}  // namespace
}  // namespace augur::memory
