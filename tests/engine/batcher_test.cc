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
          .missing_frames = BlocksFor(num_tokens) - BlocksFor(num_tokens - 1),
          .reclaimable_frames = BlocksFor(num_tokens - 1),
          .decoding = true,
          .paused = false};
}

RunningView Prefilling(memory::SequenceId id, int num_tokens, int num_computed) {
  return {.id = id,
          .num_tokens = num_tokens,
          .num_computed = num_computed,
          .missing_frames = 0,
          .reclaimable_frames = BlocksFor(num_tokens),
          .decoding = false,
          .paused = false};
}

WaitingView Waiting(memory::SequenceId id, int num_tokens, int hit_blocks = 0) {
  return {.id = id,
          .num_tokens = num_tokens,
          .num_computed = 0,
          .device = {.possible = true,
                     .hit_blocks = hit_blocks,
                     .frames = BlocksFor(num_tokens) - hit_blocks,
                     .host_blocks = 0},
          .tiered = {}};
}

// Offered the tiers alone.
WaitingView WaitingTiered(memory::SequenceId id, int num_tokens, int frames, int host_blocks) {
  return {.id = id,
          .num_tokens = num_tokens,
          .num_computed = 0,
          .device = {},
          .tiered = {.possible = true, .frames = frames, .host_blocks = host_blocks}};
}

const PlannedSegment* Find(const BatchPlan& plan, memory::SequenceId id) {
  for (const PlannedSegment& segment : plan.segments) {
    if (segment.sequence == id) return &segment;
  }
  return nullptr;
}

TEST(BatcherTest, DecodesComeFirstAndPrefillFillsTheBudget) {
  const BatchPlan plan = PlanStep(
      {.running = {Prefilling(1, 1000, 0), Decoding(2, 100)}, .waiting = {}, .available_frames = 9},
      kLimits);
  ASSERT_EQ(plan.segments.size(), 2u);
  EXPECT_EQ(plan.segments[0].sequence, 2u);
  EXPECT_TRUE(plan.segments[0].samples);
  EXPECT_EQ(Find(plan, 1)->num_tokens, 256) << "259 rows are left; chunks end on the grid";
  EXPECT_FALSE(Find(plan, 1)->samples);
}

TEST(BatcherTest, TheLastChunkEndsWithTheSequenceAndSamples) {
  const BatchPlan plan = PlanStep(
      {.running = {Prefilling(1, 1000, 960)}, .waiting = {}, .available_frames = 0}, kLimits);
  ASSERT_EQ(plan.segments.size(), 1u);
  EXPECT_EQ(plan.segments[0].num_tokens, 40);
  EXPECT_TRUE(plan.segments[0].samples);
}

TEST(BatcherTest, ADecodeAtABlockEdgeTakesABlock) {
  const BatchPlan plan =
      PlanStep({.running = {Decoding(1, 65)}, .waiting = {}, .available_frames = 1}, kLimits);
  ASSERT_EQ(plan.segments.size(), 1u);
  EXPECT_EQ(plan.segments[0].blocks_after, 2);
}

TEST(BatcherTest, TheYoungestIsPreemptedAndNothingIsAdmittedBesideIt) {
  const BatchPlan plan = PlanStep({.running = {Decoding(1, 65), Decoding(2, 65), Decoding(3, 100)},
                                   .waiting = {Waiting(4, 10)},
                                   .available_frames = 0},
                                  kLimits);
  EXPECT_EQ(plan.preemptions, (std::vector<memory::SequenceId>{3}));
  EXPECT_TRUE(plan.admissions.empty());
  EXPECT_NE(Find(plan, 1), nullptr);
  EXPECT_NE(Find(plan, 2), nullptr) << "the victim gave two blocks, enough for both";
}

TEST(BatcherTest, TheOneThatAsksIsTheVictimWhenItIsTheYoungest) {
  const BatchPlan plan = PlanStep(
      {.running = {Decoding(1, 100), Decoding(2, 65)}, .waiting = {}, .available_frames = 0},
      kLimits);
  EXPECT_EQ(plan.preemptions, (std::vector<memory::SequenceId>{2}));
  EXPECT_EQ(plan.segments.size(), 1u);
}

TEST(BatcherTest, AdmissionIsInOrderAndTheHeadThatDoesNotFitBlocksTheRest) {
  const BatchPlan plan =
      PlanStep({.running = {}, .waiting = {Waiting(1, 640), Waiting(2, 10)}, .available_frames = 9},
               kLimits);
  EXPECT_TRUE(plan.admissions.empty()) << "ten blocks asked, nine there: 2 must not overtake 1";
  const BatchPlan fits = PlanStep(
      {.running = {}, .waiting = {Waiting(1, 640), Waiting(2, 10)}, .available_frames = 12},
      kLimits);
  EXPECT_EQ(fits.admissions.size(), 2u);
}

TEST(BatcherTest, AdmissionLeavesASpareBlockForEachRunningSequence) {
  const BatchState state{.running = {Decoding(1, 10), Decoding(2, 10)},
                         .waiting = {Waiting(3, 64)},
                         .available_frames = 2};
  EXPECT_TRUE(PlanStep(state, kLimits).admissions.empty());
  BatchState roomy = state;
  roomy.available_frames = 3;
  EXPECT_EQ(PlanStep(roomy, kLimits).admissions.size(), 1u);
}

TEST(BatcherTest, BatchIsBounded) {
  BatchState state{.running = {}, .waiting = {}, .available_frames = 100};
  for (memory::SequenceId id = 1; id <= 9; ++id) state.waiting.push_back(Waiting(id, 10));
  EXPECT_EQ(PlanStep(state, kLimits).admissions.size(), 4u);
}

TEST(BatcherTest, AHitStartsBehindTheCachedBlocks) {
  const BatchPlan plan =
      PlanStep({.running = {}, .waiting = {Waiting(1, 130, 2)}, .available_frames = 4}, kLimits);
  ASSERT_EQ(plan.admissions.size(), 1u);
  EXPECT_EQ(plan.admissions[0].hit_blocks, 2);
  ASSERT_EQ(plan.segments.size(), 1u);
  EXPECT_EQ(plan.segments[0].num_tokens, 2);
  EXPECT_TRUE(plan.segments[0].samples);
}

TEST(BatcherTest, AShortPromptRunsBesideALongOne) {
  const BatchPlan plan = PlanStep({.running = {Prefilling(1, 100000, 0), Prefilling(2, 70, 0)},
                                   .waiting = {},
                                   .available_frames = 0},
                                  kLimits);
  ASSERT_NE(Find(plan, 2), nullptr);
  EXPECT_TRUE(Find(plan, 2)->samples);
  EXPECT_GE(Find(plan, 1)->num_tokens, 128) << "the oldest keeps half";
}

TEST(BatcherTest, PausedSequencesTakeNoRowsButCanBePreempted) {
  BatchState state{
      .running = {Decoding(1, 65), Decoding(2, 30)}, .waiting = {}, .available_frames = 0};
  state.running[1].paused = true;
  const BatchPlan plan = PlanStep(state, kLimits);
  EXPECT_EQ(plan.preemptions, (std::vector<memory::SequenceId>{2}));
  ASSERT_EQ(plan.segments.size(), 1u);
  EXPECT_EQ(plan.segments[0].sequence, 1u);
}

TEST(BatcherTest, TheDeviceIsTriedFirstAndTheTiersWhenItIsFull) {
  WaitingView view = Waiting(1, 640);
  view.tiered = WaitingTiered(1, 640, 4, 10).tiered;
  const BatchState roomy{
      .running = {}, .waiting = {view}, .available_frames = 10, .available_host_blocks = 10};
  ASSERT_EQ(PlanStep(roomy, kLimits).admissions.size(), 1u);
  EXPECT_EQ(PlanStep(roomy, kLimits).admissions[0].residency, memory::Residency::kDevice);
  BatchState tight = roomy;
  tight.available_frames = 9;
  ASSERT_EQ(PlanStep(tight, kLimits).admissions.size(), 1u);
  EXPECT_EQ(PlanStep(tight, kLimits).admissions[0].residency, memory::Residency::kTiered);
  tight.available_host_blocks = 9;
  EXPECT_TRUE(PlanStep(tight, kLimits).admissions.empty());
}

TEST(BatcherTest, HostBlocksOfEarlierAdmissionsAreTaken) {
  const BatchState state{.running = {},
                         .waiting = {WaitingTiered(1, 640, 2, 10), WaitingTiered(2, 640, 2, 10)},
                         .available_frames = 100,
                         .available_host_blocks = 19};
  EXPECT_EQ(PlanStep(state, kLimits).admissions.size(), 1u);
}

TEST(BatcherTest, ATieredSequenceNeedsNoSpareFrame) {
  BatchState state{.running = {Decoding(1, 10)},
                   .waiting = {Waiting(2, 64)},
                   .available_frames = 1,
                   .available_host_blocks = 0};
  EXPECT_TRUE(PlanStep(state, kLimits).admissions.empty());
  state.running[0].grows = false;
  EXPECT_EQ(PlanStep(state, kLimits).admissions.size(), 1u);
}

TEST(BatcherTest, WhatIsRestoredTakesNoRowsInTheStepThatAdmitsIt) {
  WaitingView hit = WaitingTiered(1, 200, 4, 4);
  hit.tiered.hit_blocks = 2;
  WaitingView saved = WaitingTiered(2, 200, 4, 0);
  saved.num_computed = 199;
  const BatchPlan plan = PlanStep({.running = {},
                                   .waiting = {hit, saved, WaitingTiered(3, 200, 4, 4)},
                                   .available_frames = 20,
                                   .available_host_blocks = 20},
                                  kLimits);
  ASSERT_EQ(plan.admissions.size(), 3u);
  EXPECT_FALSE(plan.admissions[0].resumed);
  EXPECT_TRUE(plan.admissions[1].resumed);
  EXPECT_EQ(Find(plan, 1), nullptr);
  EXPECT_EQ(Find(plan, 2), nullptr);
  ASSERT_NE(Find(plan, 3), nullptr);
  EXPECT_EQ(Find(plan, 3)->num_tokens, 200);
}

TEST(BatcherTest, PlansPrintThemselves) {
  const BatchPlan plan = PlanStep(
      {.running = {Decoding(1, 65), Decoding(2, 65)}, .waiting = {}, .available_frames = 1},
      kLimits);
  EXPECT_EQ(plan.ToString(), "preempt 2; admit; run 1x1+");
}

// A saved sequence holds host blocks that the first in rank may lack: where nothing runs it goes
// first, and where something runs the rank holds.
TEST(BatcherTest, WhatIsSavedGoesFirstWhereNothingElseCan) {
  const WaitingView first = WaitingTiered(9, 300, 2, 8);
  const WaitingView fresh = WaitingTiered(3, 64, 1, 1);
  WaitingView saved = WaitingTiered(4, 200, 2, 0);
  saved.num_computed = 199;
  BatchState state{.running = {},
                   .waiting = {first, fresh, saved},
                   .available_frames = 20,
                   .available_host_blocks = 7};
  const BatchPlan plan = PlanStep(state, kLimits);
  ASSERT_EQ(plan.admissions.size(), 1u) << plan.ToString();
  EXPECT_EQ(plan.admissions[0].sequence, 4u);
  state.running = {Decoding(1, 100)};
  EXPECT_TRUE(PlanStep(state, kLimits).admissions.empty());
}

// Of bytes on their way and still to come.
RunningView Cold(memory::SequenceId id, int64_t bytes_on_their_way, bool cold) {
  RunningView view = Decoding(id, 1000);
  view.grows = false;
  view.missing_frames = 0;
  view.paused = true;
  view.cold = cold;
  view.bytes_on_their_way = bytes_on_their_way;
  return view;
}

TEST(BatcherTest, ColdSequencesAreWarmedOneAfterTheOtherWhileSomebodySteps) {
  BatchLimits limits = kLimits;
  limits.warm_up_bytes = 1000;
  const auto plan = [&](std::vector<RunningView> running) {
    return PlanStep({.running = std::move(running), .waiting = {}, .available_frames = 10}, limits);
  };
  BatchPlan found = plan({Decoding(1, 100), Cold(2, 0, true), Cold(3, 0, true)});
  ASSERT_EQ(found.warm_ups.size(), 1u);
  EXPECT_EQ(found.warm_ups[0].sequence, 2u);
  EXPECT_EQ(found.warm_ups[0].most_bytes, 1000);
  EXPECT_EQ(Find(found, 2), nullptr);
  // What is left beside the end of the first goes to the second.
  found = plan({Decoding(1, 100), Cold(2, 400, false), Cold(3, 0, true)});
  ASSERT_EQ(found.warm_ups.size(), 1u);
  EXPECT_EQ(found.warm_ups[0].sequence, 3u);
  EXPECT_EQ(found.warm_ups[0].most_bytes, 600);
  EXPECT_TRUE(plan({Decoding(1, 100), Cold(2, 1010, true)}).warm_ups.empty());
  // Nobody takes rows.
  found = plan({Cold(2, 5000, true), Cold(3, 0, true)});
  ASSERT_EQ(found.warm_ups.size(), 2u);
  EXPECT_GT(found.warm_ups[1].most_bytes, int64_t{1} << 60);
}

}  // namespace
}  // namespace augur::engine
