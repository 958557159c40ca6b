// The continuous batcher: who runs in the next step and how far. A pure function over views, so
// that every rule can be tested and simulated without a model.
//
// Rules, each against a fault that others have shipped. Rank is by priority, the higher number
// first, then by age:
//   1. Decodes come before everything, first in rank first; when frames run out the last in rank of
//      the running sequences is preempted, be it the one that asked. The first is therefore never
//      preempted and always moves.
//   2. Nothing is admitted in a step that preempts.
//   3. Admission is strictly by rank (within a priority first come, first served: preempted
//      sequences are older than new ones), and only when the whole current length fits with a spare
//      frame for every running sequence that grows. A higher priority goes before lower ones for as
//      long as there is any; it takes no place of one that runs but by rule 1.
//   4. Where nothing runs and the first in rank does not fit, a saved sequence may go first: what
//      it holds in the host pool may be what the other lacks.
//   5. What is left of the row budget goes to prefill: the first in rank gets at least half of it,
//      the others follow by least remaining work, so that one long prompt neither starves nor
//      blocks short ones.
//   6. Chunks end on the 64-token grid of the sequence or at its end.
//   7. A cold sequence (resumed, or a prefix hit) is warmed beside the steps of others and takes no
//      row before all has arrived. While somebody takes rows at most warm_up_bytes are on their
//      way, of one sequence after the other, first in rank first, so that each joins as soon as it
//      can; where nobody does, everything may go.
// A paused sequence (slow reader) keeps its blocks and takes no rows; it can be preempted.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/batch_plan.h"

namespace augur::engine {

struct BatchLimits {
  int max_batch = 0;           // running sequences
  int max_batched_tokens = 0;  // rows a step; at least max_batch + 64
  int64_t warm_up_bytes = 0;   // of cold sequences on the link at a time, while others step
};

struct RunningView {
  memory::SequenceId id = 0;
  int num_tokens = 0;
  int num_computed = 0;
  int missing_frames = 0;      // that its next token needs and it has not
  int reclaimable_frames = 0;  // would become available if it were preempted
  bool grows = true;           // takes frames as it grows: it lives on the device
  bool decoding = false;
  bool paused = false;  // takes no rows: a slow reader, or not warm yet
  bool cold = false;    // some of what it must have on the device is still to be handed to the link
  int64_t bytes_on_their_way = 0;  // of what has been
};

// One way to admit a sequence.
struct AdmissionOption {
  bool possible = false;
  int hit_blocks = 0;  // prefix hit, leaving at least one token to compute
  int frames = 0;      // what it would take from available_frames
  int host_blocks = 0;
};

struct WaitingView {
  memory::SequenceId id = 0;
  int num_tokens = 0;
  int num_computed = 0;    // more than 0: saved on the host
  AdmissionOption device;  // tried first
  AdmissionOption tiered;
};

struct BatchState {
  std::vector<RunningView> running;  // first in rank first
  // First in rank first; as many as could be admitted are enough, and those that are saved where
  // nothing runs.
  std::vector<WaitingView> waiting;
  int available_frames = 0;  // free and cached
  int available_host_blocks = 0;
};

BatchPlan PlanStep(const BatchState& state, const BatchLimits& limits);

// Blocks of 64 that hold `tokens` tokens.
constexpr int BlocksFor(int64_t tokens) { return static_cast<int>((tokens + 63) / 64); }

}  // namespace augur::engine
