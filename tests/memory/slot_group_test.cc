#include "memory/slot_group.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace augur::memory {
namespace {

constexpr int kAllLanded = 1 << 20;

struct Group {
  std::vector<int32_t> blocks;
  std::vector<int32_t> stamps;
  SlotGroup view() { return {blocks, stamps}; }
};

Group Holding(std::vector<int32_t> blocks, std::vector<int32_t> stamps) {
  return {std::move(blocks), std::move(stamps)};
}

TEST(SlotGroupTest, ResidentBlocksAreFoundInOrderOfTheWantedList) {
  Group group = Holding({7, 2, 5}, {1, 1, 1});
  SlotPlan plan;
  const std::vector<int32_t> wanted = {2, 5, 7};
  PlanSlots(group.view(), wanted, kAllLanded, &plan);
  EXPECT_EQ(plan.entry_slots, (std::vector<int>{1, 2, 0}));
  EXPECT_EQ(plan.hits, 3);
  EXPECT_TRUE(plan.fetches.empty());
  EXPECT_FALSE(plan.must_wait);
}

TEST(SlotGroupTest, EmptySlotsGoFirstThenTheLeastStampThenTheLowerSlot) {
  Group group = Holding({7, 2, kNoBlock, 5, 9}, {3, 2, -1, 2, 8});
  SlotPlan plan;
  const std::vector<int32_t> wanted = {1, 3, 4, 9};
  PlanSlots(group.view(), wanted, kAllLanded, &plan);
  EXPECT_EQ(plan.fetches, (std::vector<SlotFetch>{{2, 1}, {1, 3}, {3, 4}}));
  EXPECT_EQ(plan.entry_slots, (std::vector<int>{2, 1, 3, 4}));
  EXPECT_EQ(plan.hits, 1);
}

TEST(SlotGroupTest, AWantedBlockIsNoVictimHoweverOld) {
  Group group = Holding({7, 2}, {0, 9});
  SlotPlan plan;
  PlanSlots(group.view(), std::vector<int32_t>{3, 7}, kAllLanded, &plan);
  EXPECT_EQ(plan.entry_slots, (std::vector<int>{1, 0}));
}

TEST(SlotGroupTest, ABlockWhoseWriteHasNotLandedIsNoVictim) {
  Group group = Holding({7, 2}, {0, 9});
  SlotPlan plan;
  PlanSlots(group.view(), std::vector<int32_t>{3}, 7, &plan);
  EXPECT_EQ(plan.entry_slots, (std::vector<int>{1})) << "block 7 is older, but not on the host";
  PlanSlots(group.view(), std::vector<int32_t>{3}, 2, &plan);
  EXPECT_TRUE(plan.must_wait);
}

TEST(SlotGroupTest, ApplyEntersBlocksAndStampsAllWantedOnes) {
  Group group = Holding({7, 2, 5}, {1, 2, 3});
  SlotGroup view = group.view();
  const std::vector<int32_t> wanted = {2, 8};
  SlotPlan plan;
  PlanSlots(view, wanted, kAllLanded, &plan);
  ApplySlotPlan(plan, wanted, 40, &view);
  EXPECT_EQ(group.blocks, (std::vector<int32_t>{8, 2, 5}));
  EXPECT_EQ(group.stamps, (std::vector<int32_t>{40, 40, 3}));
}

TEST(SlotGroupTest, ATailTakesAnEmptySlotElseTheOldestBlockThatIsNotForced) {
  Group group = Holding({0, 4, 6, 9}, {1, 3, 2, 4});
  EXPECT_EQ(PlanTailSlot(group.view(), 10, 1, 9), 2) << "block 0 is first, 9 in the window";
  EXPECT_EQ(PlanTailSlot(group.view(), 5, 1, 9), 1) << "block 6 has not landed";
  EXPECT_EQ(PlanTailSlot(group.view(), 4, 1, 9), -1);
  EXPECT_EQ(PlanTailSlot(group.view(), 10, 0, 9), 0) << "no block is first";
  EXPECT_EQ(PlanTailSlot(group.view(), 10, 1, 4), -1) << "all are in the window";
  group.blocks[3] = kNoBlock;
  EXPECT_EQ(PlanTailSlot(group.view(), 0, 1, 9), 3);
}

// Against the rule said another way: whatever the group holds, a plan gives each wanted block a
// slot of its own, moves as few as it can, and takes the victims in order of age.
TEST(SlotGroupTest, RandomPlansKeepTheRules) {
  std::mt19937 random(7);
  SlotPlan plan;
  for (int round = 0; round < 20000; ++round) {
    const int slots = 1 + static_cast<int>(random() % 8);
    Group group;
    std::set<int32_t> held;
    for (int slot = 0; slot < slots; ++slot) {
      const int32_t block = static_cast<int32_t>(random() % 12);
      const bool empty = random() % 4 == 0 || !held.insert(block).second;
      group.blocks.push_back(empty ? kNoBlock : block);
      group.stamps.push_back(empty ? -1 : static_cast<int32_t>(random() % 5));
    }
    std::set<int32_t> choice;
    for (int i = static_cast<int>(random() % (slots + 1)); i > 0; --i) choice.insert(random() % 12);
    const std::vector<int32_t> wanted(choice.begin(), choice.end());
    const int landed = static_cast<int>(random() % 13);
    const Group before = group;
    SlotGroup view = group.view();
    PlanSlots(view, wanted, landed, &plan);
    int victims = 0;
    for (const int32_t block : group.blocks) victims += !choice.contains(block) && block < landed;
    const int missing = static_cast<int>(wanted.size()) - plan.hits;
    ASSERT_EQ(plan.must_wait, missing > victims) << plan.ToString();
    if (plan.must_wait) continue;
    ApplySlotPlan(plan, wanted, 99, &view);
    ASSERT_EQ(std::set<int>(plan.entry_slots.begin(), plan.entry_slots.end()).size(),
              wanted.size());
    int32_t youngest_victim = -1;
    for (const SlotFetch& fetch : plan.fetches) {
      ASSERT_FALSE(choice.contains(before.blocks[fetch.slot]));
      ASSERT_LT(before.blocks[fetch.slot], landed);
      youngest_victim = std::max(youngest_victim, before.stamps[fetch.slot]);
    }
    for (int slot = 0; slot < slots; ++slot) {
      const bool kept = before.blocks[slot] == group.blocks[slot];
      if (!kept || choice.contains(before.blocks[slot]) || before.blocks[slot] >= landed) continue;
      ASSERT_GE(before.stamps[slot], youngest_victim) << "an older block was kept";
    }
  }
}

}  // namespace
}  // namespace augur::memory
