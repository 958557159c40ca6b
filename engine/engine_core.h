// The engine as a state machine without threads or a clock of its own: accepted requests go in,
// every Step sweeps, plans, runs and updates, events come out. Engine wraps it in a thread; the
// simulation drives it in virtual time.
//
// Thread: one owner; CountCachedTokens alone may be called from any.
// Ownership: runner, KV store, output and stats are the caller's and outlive the core.
// Failure: nothing a request does fails a step; each request ends by exactly one terminal event.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/batch_plan.h"
#include "engine/batcher.h"
#include "engine/engine_options.h"
#include "engine/engine_stats.h"
#include "engine/model_runner.h"
#include "engine/sequence.h"
#include "engine/token_output.h"
#include "memory/base/clock.h"
#include "memory/kv_store.h"

namespace augur::engine {

// What a step did to the queue and whether there is reason to call again at once.
struct StepReport {
  int rows = 0;                 // computed
  int64_t device_ns = 0;        // that the step waited for a device
  bool moved = false;           // something ran, came or went: another step may have more to do
  bool awaits_copies = false;   // nothing to do but copies are under way: a restore, a closing end
  int left_queue_requests = 0;  // choices admitted for the first time or ended before that
  int64_t left_queue_tokens = 0;  // their prompt tokens, counted once a request
};

// What a step brought to one of its segments.
struct StepResult {
  int32_t token = 0;                                       // sampled, where one was wanted
  const kernels::TokenLogprobsRow* logprobs = nullptr;     // its own, where asked for
  std::span<const kernels::TokenLogprobsRow> prompt = {};  // of tokens of the prompt, likewise
};

class EngineCore {
 public:
  EngineCore(const EngineOptions& options, std::vector<TokenId> eos_token_ids, ModelRunner* runner,
             memory::KvStore* kv, TokenOutput* output, EngineStats* stats,
             const memory::Clock* clock);

  // `request` has passed CheckFits.
  void Add(std::shared_ptr<Request> request);
  StepReport Step();
  // Waits for the copies that Step reported (awaits_copies). The engine's thread naps instead, so
  // that news reaches it; the simulation and tests call this.
  void WaitForCopies();

  // Ends, with `status`, requests of which nothing was ever admitted; or everything.
  StepReport EndQueued(const absl::Status& status);
  StepReport EndAll(const absl::Status& status);

  bool idle() const { return waiting_.empty() && running_.empty() && kv_->num_closing() == 0; }
  // The earliest instant at which Step has something to do although nothing can run (a deadline, a
  // slow reader's limit); kNoDeadline when there is none.
  int64_t NextTimerNs() const;

  uint32_t CountCachedTokens(const std::vector<memory::BlockKey>& keys,
                             uint32_t prompt_tokens) const;
  const memory::KvStore& kv() const { return *kv_; }
  // Moves a running sequence off the device, as the batcher would for want of frames (tests).
  void Preempt(memory::SequenceId id);
  const BatchPlan& last_plan() const { return plan_; }
  // CHECKs the invariants of sequences and blocks against each other (tests and the simulation).
  void CheckInvariants() const;

 private:
  using SequenceMap = std::map<memory::SequenceId, std::unique_ptr<Sequence>>;  // oldest first

  void Sweep(int64_t now_ns, StepReport* report);
  absl::Status VerdictOn(Sequence* sequence, int64_t now_ns) const;
  // First in rank first: by priority, then by age.
  static std::vector<Sequence*> Ranked(const SequenceMap& map);
  static int UsableBlocks(const Sequence& sequence, int tokens);
  const Sequence* Find(memory::SequenceId id) const;  // null: ended
  bool AwaitsPrompt(const Sequence& sequence) const;
  BatchState MakeBatchState() const;
  WaitingView ViewOf(const Sequence& sequence) const;
  AdmissionOption OptionFor(const Sequence& sequence, memory::Residency residency) const;
  memory::KvAdmission AdmissionOf(const Sequence& sequence, memory::Residency residency,
                                  int hits) const;
  // Under kAuto: writes a sequence behind before the frames run out.
  void MirrorBeforePressure();
  void ApplyAdmissions(int64_t now_ns, StepReport* report);
  bool Admit(const PlannedAdmission& admission, int64_t now_ns, StepReport* report);
  void NoteAdmission(Sequence* sequence, int64_t now_ns, StepReport* report);
  void ApplyWarmUps(StepReport* report);
  // Counts those that have become warm.
  void NoteWarm(int64_t now_ns);
  void RunSegments(StepReport* report);
  void GatherInputs(std::vector<StepSegment>* segments);
  void ReserveAhead();
  void Update(const std::vector<StepSegment>& segments, int64_t now_ns, StepReport* report);
  void UpdateOne(Sequence* sequence, const PlannedSegment& planned, const StepResult& result,
                 int64_t now_ns, StepReport* report);
  void PublishPromptBlocks(Sequence* sequence);
  void ReleaseKv(Sequence* sequence, bool finished);
  void AppendToken(Sequence* sequence, const StepResult& result, int64_t now_ns);
  void TellPrompt(Sequence* sequence, std::span<const kernels::TokenLogprobsRow> rows);
  void Finish(Sequence* sequence, FinishReason reason, TokenId stop_id, int64_t now_ns);
  Completion DescribeCompletion(const Sequence& sequence) const;
  // Posts the terminal event, frees the blocks and forgets the sequence.
  void End(memory::SequenceId id, TokenEvent event, StepReport* report);
  // With all choices of its request that there still are; nothing where it has ended.
  void EndWith(memory::SequenceId id, const absl::Status& status, StepReport* report);
  void PostEvents();
  void ExportGauges();

  const EngineOptions options_;
  const std::vector<TokenId> eos_token_ids_;
  ModelRunner* const runner_;
  TokenOutput* const output_;
  EngineStats* const stats_;
  const memory::Clock* const clock_;

  memory::KvStore* const kv_;
  memory::SequenceId next_id_ = 1;
  SequenceMap waiting_;
  SequenceMap running_;
  BatchPlan plan_;
  std::vector<TokenEvent> events_;  // of this step, posted at its end
  std::vector<int32_t> row_tokens_;
  StepOutputs outputs_;
};

}  // namespace augur::engine
