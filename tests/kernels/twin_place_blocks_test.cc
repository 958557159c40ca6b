#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/kernels/kernel_test_data.h"
#include "tests/kernels/placed_history.h"

namespace augur::kernels {
namespace {

// One block after another, as the rule is written.
SlotPlacement PlacePlainly(SlotState* slots, const std::vector<int32_t>& wanted, int position) {
  SlotPlacement placement{std::vector<int>(wanted.size(), -1), {}};
  std::vector<bool> is_taken(slots->blocks.size(), false);
  for (size_t i = 0; i < wanted.size(); ++i) {
    for (size_t slot = 0; slot < slots->blocks.size(); ++slot) {
      if (slots->blocks[slot] != wanted[i]) continue;
      placement.entry_slots[i] = static_cast<int>(slot);
      is_taken[slot] = true;
    }
  }
  const auto goes_before = [&](size_t a, size_t b) {
    const bool a_empty = slots->blocks[a] == kEmptySlot, b_empty = slots->blocks[b] == kEmptySlot;
    if (a_empty || b_empty) return a_empty && !b_empty;
    return slots->stamps[a] < slots->stamps[b];
  };
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (placement.entry_slots[i] >= 0) continue;
    size_t victim = slots->blocks.size();
    for (size_t slot = 0; slot < slots->blocks.size(); ++slot) {
      if (is_taken[slot]) continue;
      if (victim == slots->blocks.size() || goes_before(slot, victim)) victim = slot;
    }
    is_taken[victim] = true;
    placement.entry_slots[i] = static_cast<int>(victim);
    placement.fetches.push_back({static_cast<int>(victim), wanted[i]});
  }
  for (const auto& [slot, block] : placement.fetches) slots->blocks[slot] = block;
  for (const int slot : placement.entry_slots) slots->stamps[slot] = position;
  return placement;
}

void CheckHistory(Backend& backend, const PlaceShape& shape, int steps, uint32_t seed) {
  PlacedHistory history(backend, shape, seed);
  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    history.Step(PlacePlainly, /*recorded=*/step % 3 == 1);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(TwinPlaceBlocksTest, HistoriesOfEveryShape) {
  const int steps = kSanitized ? 20 : 100;
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    const std::vector<PlaceShape> shapes = {
        {.slots = {1}, .blocks = 5, .init = 0, .local = 1},
        {.slots = {3, 0, 1}, .kv_heads = 3, .layers = 2, .most_chosen = 3, .blocks = 9},
        {.slots = {31, 32, 33}, .kv_heads = 2, .most_chosen = 31, .blocks = 40},
        // As large as the slots, and with spare ones.
        {.slots = {64, 96, 0, 64}, .kv_heads = 2, .layers = 3, .most_chosen = 64, .blocks = 100},
        {.slots = {192, 0, 97, 150}, .kv_heads = 2, .most_chosen = 96, .blocks = 600, .local = 32},
        {.slots = {0, 0}, .kv_heads = 2, .layers = 2, .most_chosen = 20, .blocks = 64},
    };
    for (size_t i = 0; i < shapes.size(); ++i) {
      SCOPED_TRACE(name + " shape " + std::to_string(i));
      CheckHistory(*backend, shapes[i], steps, static_cast<uint32_t>(i));
      if (HasFatalFailure()) return;
    }
  }
}

// Values that stay behind, come with their keys, and come later.
TEST(TwinPlaceBlocksTest, SlotsThatHoldKeysAlone) {
  const int steps = kSanitized ? 20 : 100;
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    const std::vector<PlaceShape> shapes = {
        {.slots = {1}, .blocks = 5, .init = 0, .local = 1, .halves = true},
        {.slots = {3, 0, 1},
         .kv_heads = 3,
         .layers = 2,
         .most_chosen = 3,
         .blocks = 9,
         .halves = true},
        {.slots = {64, 96, 0, 64},
         .kv_heads = 2,
         .layers = 3,
         .most_chosen = 64,
         .blocks = 100,
         .halves = true},
        {.slots = {1024, 500}, .most_chosen = 700, .blocks = 1500, .halves = true},
    };
    for (size_t i = 0; i < shapes.size(); ++i) {
      SCOPED_TRACE(name + " shape " + std::to_string(i));
      CheckHistory(*backend, shapes[i], i == 3 ? 12 : steps, static_cast<uint32_t>(20 + i));
      if (HasFatalFailure()) return;
    }
  }
}

// As many slots, and as large choices, as the device takes.
TEST(TwinPlaceBlocksTest, LargestGroups) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    SCOPED_TRACE(name);
    CheckHistory(*backend, {.slots = {1024, 256, 1000}, .most_chosen = 255, .blocks = 2000}, 12, 7);
    CheckHistory(*backend, {.slots = {1024, 500}, .most_chosen = 700, .blocks = 1500}, 12, 8);
  }
}

TEST(TwinPlaceBlocksTest, ManySegments) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    SCOPED_TRACE(name);
    std::vector<int> slots;
    for (int s = 0; s < 64; ++s) slots.push_back(s % 5 == 4 ? 0 : 6 + s);
    CheckHistory(*backend, {.slots = slots, .kv_heads = 8, .most_chosen = 40, .blocks = 90},
                 kSanitized ? 4 : 20, 9);
  }
}

TEST(TwinPlaceBlocksTest, NoSegmentsCopyNothing) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    SharedArray<PageCopy> copies(*backend, 1);
    SharedArray<int32_t> num_copies(*backend, 1);
    backend->PlaceBlocks({.num_kv_heads = 2,
                          .selection_stride = 4,
                          .max_slots = 8,
                          .copies = copies.data(),
                          .num_copies = num_copies.data()});
    backend->Synchronize();
    EXPECT_EQ(num_copies[0], 0) << name;
  }
}

}  // namespace
}  // namespace augur::kernels
