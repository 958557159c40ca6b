#include "engine/batcher.h"

#include <gtest/gtest.h>

#include <vector>

namespace augur::engine {
namespace {

constexpr BatchLimits kLimits{.max_batch = 4, .max_batched_tokens = 4 + 256};

RunningView Decoding(memory::SequenceId id, int num_tokens) {
  return {.id = id,
          .num_tokens = num_tokens,
          .num_computed = num_tokens - 1,
          .num_blocks = BlocksFor(num_tokens - 1),
          .reclaimable_blocks = BlocksFor(num_tokens - 1),
          .decoding = true,
          .paused = false};
}

RunningView Prefilling(memory::SequenceId id, int num_tokens, int num_computed) {
  return {.id = id,
          .num_tokens = num_tokens,
          .num_computed = num_computed,
          .num_blocks = BlocksFor(num_tokens),
          .reclaimable_blocks = BlocksFor(num_tokens),
          .decoding = false,
          .paused = false};
}

WaitingView Waiting(memory::SequenceId id, int num_tokens, int hit_blocks = 0) {
  return {.id = id,
          .num_tokens = num_tokens,
          .hit_blocks = hit_blocks,
          .cost_blocks = BlocksFor(num_tokens) - hit_blocks};
}

const PlannedSegment* Find(const BatchPlan& plan, memory::SequenceId id) {
  for (const PlannedSegment& segment : plan.segments) {
    if (segment.sequence == id) return &segment;
  }
  return nullptr;
}

TEST(BatcherTest, DecodesComeFirstAndPrefillFillsTheBudget) {
  const BatchPlan plan = PlanStep(
      {.running = {Prefilling(1, 1000, 0), Decoding(2, 100)}, .waiting = {}, .available_blocks = 9},
      kLimits);
  ASSERT_EQ(plan.segments.size(), 2u);
  EXPECT_EQ(plan.segments[0].sequence, 2u);
  EXPECT_TRUE(plan.segments[0].samples);
  EXPECT_EQ(Find(plan, 1)->num_tokens, 256) << "259 rows are left; chunks end on the grid";
  EXPECT_FALSE(Find(plan, 1)->samples);
}

TEST(BatcherTest, TheLastChunkEndsWithTheSequenceAndSamples) {
  const BatchPlan plan = PlanStep(
      {.running = {Prefilling(1, 1000, 960)}, .waiting = {}, .available_blocks = 0}, kLimits);
  ASSERT_EQ(plan.segments.size(), 1u);
  EXPECT_EQ(plan.segments[0].num_tokens, 40);
  EXPECT_TRUE(plan.segments[0].samples);
}

TEST(BatcherTest, ADecodeAtABlockEdgeTakesABlock) {
  const BatchPlan plan =
      PlanStep({.running = {Decoding(1, 65)}, .waiting = {}, .available_blocks = 1}, kLimits);
  ASSERT_EQ(plan.segments.size(), 1u);
  EXPECT_EQ(plan.segments[0].blocks_after, 2);
}

TEST(BatcherTest, TheYoungestIsPreemptedAndNothingIsAdmittedBesideIt) {
  const BatchPlan plan = PlanStep({.running = {Decoding(1, 65), Decoding(2, 65), Decoding(3, 100)},
                                   .waiting = {Waiting(4, 10)},
                                   .available_blocks = 0},
                                  kLimits);
  EXPECT_EQ(plan.preemptions, (std::vector<memory::SequenceId>{3}));
  EXPECT_TRUE(plan.admissions.empty());
  EXPECT_NE(Find(plan, 1), nullptr);
  EXPECT_NE(Find(plan, 2), nullptr) << "the victim gave two blocks, enough for both";
}

TEST(BatcherTest, TheOneThatAsksIsTheVictimWhenItIsTheYoungest) {
  const BatchPlan plan = PlanStep(
      {.running = {Decoding(1, 100), Decoding(2, 65)}, .waiting = {}, .available_blocks = 0},
      kLimits);
  EXPECT_EQ(plan.preemptions, (std::vector<memory::SequenceId>{2}));
  EXPECT_EQ(plan.segments.size(), 1u);
}

TEST(BatcherTest, AdmissionIsInOrderAndTheHeadThatDoesNotFitBlocksTheRest) {
  const BatchPlan plan =
      PlanStep({.running = {}, .waiting = {Waiting(1, 640), Waiting(2, 10)}, .available_blocks = 9},
               kLimits);
  EXPECT_TRUE(plan.admissions.empty()) << "ten blocks asked, nine there: 2 must not overtake 1";
  const BatchPlan fits = PlanStep(
      {.running = {}, .waiting = {Waiting(1, 640), Waiting(2, 10)}, .available_blocks = 12},
      kLimits);
  EXPECT_EQ(fits.admissions.size(), 2u);
}

TEST(BatcherTest, AdmissionLeavesASpareBlockForEachRunningSequence) {
  const BatchState state{.running = {Decoding(1, 10), Decoding(2, 10)},
                         .waiting = {Waiting(3, 64)},
                         .available_blocks = 2};
  EXPECT_TRUE(PlanStep(state, kLimits).admissions.empty());
  BatchState roomy = state;
  roomy.available_blocks = 3;
  EXPECT_EQ(PlanStep(roomy, kLimits).admissions.size(), 1u);
}

TEST(BatcherTest, BatchIsBounded) {
  BatchState state{.running = {}, .waiting = {}, .available_blocks = 100};
  for (memory::SequenceId id = 1; id <= 9; ++id) state.waiting.push_back(Waiting(id, 10));
  EXPECT_EQ(PlanStep(state, kLimits).admissions.size(), 4u);
}

TEST(BatcherTest, AHitStartsBehindTheCachedBlocks) {
  const BatchPlan plan =
      PlanStep({.running = {}, .waiting = {Waiting(1, 130, 2)}, .available_blocks = 4}, kLimits);
  ASSERT_EQ(plan.admissions.size(), 1u);
  EXPECT_EQ(plan.admissions[0].hit_blocks, 2);
  ASSERT_EQ(plan.segments.size(), 1u);
  EXPECT_EQ(plan.segments[0].num_tokens, 2);
  EXPECT_TRUE(plan.segments[0].samples);
}

TEST(BatcherTest, AShortPromptRunsBesideALongOne) {
  const BatchPlan plan = PlanStep({.running = {Prefilling(1, 100000, 0), Prefilling(2, 70, 0)},
                                   .waiting = {},
                                   .available_blocks = 0},
                                  kLimits);
  ASSERT_NE(Find(plan, 2), nullptr);
  EXPECT_TRUE(Find(plan, 2)->samples);
  EXPECT_GE(Find(plan, 1)->num_tokens, 128) << "the oldest keeps half";
}

TEST(BatcherTest, PausedSequencesTakeNoRowsButCanBePreempted) {
  BatchState state{
      .running = {Decoding(1, 65), Decoding(2, 30)}, .waiting = {}, .available_blocks = 0};
  state.running[1].paused = true;
  const BatchPlan plan = PlanStep(state, kLimits);
  EXPECT_EQ(plan.preemptions, (std::vector<memory::SequenceId>{2}));
  ASSERT_EQ(plan.segments.size(), 1u);
  EXPECT_EQ(plan.segments[0].sequence, 1u);
}

TEST(BatcherTest, PlansPrintThemselves) {
  const BatchPlan plan = PlanStep(
      {.running = {Decoding(1, 65), Decoding(2, 65)}, .waiting = {}, .available_blocks = 1},
      kLimits);
  EXPECT_EQ(plan.ToString(), "preempt 2; admit; run 1x1+");
}

}  // namespace
}  // namespace augur::engine
