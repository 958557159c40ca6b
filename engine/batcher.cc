#include "engine/batcher.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/kv_page.h"

namespace augur::engine {
namespace {

static_assert(kernels::kBlockTokens == 64, "BlocksFor counts blocks of 64 tokens");

// A sequence that has tokens to compute in this step, running or about to be admitted.
struct PrefillWork {
  memory::SequenceId id = 0;
  int start = 0;
  int num_tokens = 0;
  int rows = 0;  // granted so far

  int remaining() const { return num_tokens - start - rows; }
};

class StepPlanner {
 public:
  StepPlanner(const BatchState& state, const BatchLimits& limits)
      : state_(state),
        limits_(limits),
        available_(state.available_frames),
        host_available_(state.available_host_blocks),
        rows_left_(limits.max_batched_tokens),
        num_kept_(state.running.size()) {
    AUGUR_CHECK(limits.max_batched_tokens >= limits.max_batch + kernels::kBlockTokens);
    AUGUR_CHECK(static_cast<int>(state.running.size()) <= limits.max_batch);
  }

  BatchPlan Plan() {
    PlanDecodes();
    CollectRunningPrefills();
    if (plan_.preemptions.empty()) PlanAdmissions();
    PlanPrefills();
    PlanWarmUps();
    return std::move(plan_);
  }

 private:
  // state_.running[0, num_kept_) stays; victims are taken from its end, the last in rank.
  void PlanDecodes() {
    for (size_t i = 0; i < num_kept_; ++i) {
      const RunningView& view = state_.running[i];
      if (view.paused || !view.decoding) continue;
      const int needed = BlocksFor(view.num_tokens);
      const int missing = view.missing_frames;
      while (missing > available_ && i < num_kept_) PreemptLast();
      if (i >= num_kept_) return;  // it was the last itself
      available_ -= missing;
      rows_left_ -= 1;
      plan_.segments.push_back(
          {.sequence = view.id, .num_tokens = 1, .blocks_after = needed, .samples = true});
    }
  }

  void PreemptLast() {
    const RunningView& victim = state_.running[--num_kept_];
    available_ += victim.reclaimable_frames;
    plan_.preemptions.push_back(victim.id);
  }

  void CollectRunningPrefills() {
    for (size_t i = 0; i < num_kept_; ++i) {
      const RunningView& view = state_.running[i];
      if (view.paused || view.decoding) continue;
      AUGUR_CHECK(view.missing_frames == 0);
      prefills_.push_back(
          {.id = view.id, .start = view.num_computed, .num_tokens = view.num_tokens, .rows = 0});
    }
  }

  void PlanAdmissions() {
    int running = static_cast<int>(num_kept_);
    for (size_t i = 0; i < num_kept_; ++i) growing_ += state_.running[i].grows ? 1 : 0;
    bool blocked = false;
    for (const WaitingView& view : state_.waiting) {
      if (running >= limits_.max_batch) return;
      const bool saved = view.num_computed > 0;
      if (blocked && !saved) continue;
      if (Fits(view.device)) {
        Admit(view, view.device, memory::Residency::kDevice);
        ++growing_;
      } else if (Fits(view.tiered)) {
        Admit(view, view.tiered, memory::Residency::kTiered);
      } else if (running == 0) {
        blocked = true;
        continue;
      } else {
        return;
      }
      ++running;
      if (blocked) return;
    }
  }

  bool Fits(const AdmissionOption& option) const {
    return option.possible && option.frames + growing_ <= available_ &&
           option.host_blocks <= host_available_;
  }

  void Admit(const WaitingView& view, const AdmissionOption& option, memory::Residency residency) {
    available_ -= option.frames;
    host_available_ -= option.host_blocks;
    const bool resumed = view.num_computed > 0;
    plan_.admissions.push_back({.sequence = view.id,
                                .residency = residency,
                                .resumed = resumed,
                                .hit_blocks = option.hit_blocks,
                                .total_blocks = BlocksFor(view.num_tokens)});
    // What comes from the host must arrive before anything is computed on it.
    const bool restores =
        residency == memory::Residency::kTiered && (resumed || option.hit_blocks > 0);
    if (restores) return;
    prefills_.push_back({.id = view.id,
                         .start = option.hit_blocks * kernels::kBlockTokens,
                         .num_tokens = view.num_tokens,
                         .rows = 0});
  }

  void PlanPrefills() {
    if (prefills_.empty()) return;
    const int spare = prefills_.size() > 1 ? rows_left_ / 2 : 0;
    // At least one block for the first, whatever the budget.
    Grant(&prefills_[0], std::max(rows_left_ - spare, std::min(rows_left_, kernels::kBlockTokens)));
    std::vector<PrefillWork*> others;
    for (size_t i = 1; i < prefills_.size(); ++i) others.push_back(&prefills_[i]);
    std::stable_sort(others.begin(), others.end(), [](const PrefillWork* a, const PrefillWork* b) {
      return a->remaining() < b->remaining();
    });
    for (PrefillWork* work : others) Grant(work, rows_left_);
    Grant(&prefills_[0], rows_left_);
    for (const PrefillWork& work : prefills_) {
      if (work.rows == 0) continue;
      plan_.segments.push_back({.sequence = work.id,
                                .num_tokens = work.rows,
                                .blocks_after = BlocksFor(work.num_tokens),
                                .samples = work.remaining() == 0});
    }
  }

  void PlanWarmUps() {
    const bool alone = plan_.segments.empty();
    int64_t left = alone ? std::numeric_limits<int64_t>::max() : limits_.warm_up_bytes;
    for (size_t i = 0; i < num_kept_ && !alone; ++i) left -= state_.running[i].bytes_on_their_way;
    for (size_t i = 0; i < num_kept_ && left > 0; ++i) {
      const RunningView& view = state_.running[i];
      if (!view.cold) continue;
      plan_.warm_ups.push_back({.sequence = view.id, .most_bytes = left});
      if (!alone) return;
    }
  }

  // Gives up to `rows` more rows, ending on the grid or at the end of the sequence.
  void Grant(PrefillWork* work, int rows) {
    int granted = std::min(rows, work->remaining());
    if (granted < work->remaining()) {
      const int end = work->start + work->rows + granted;
      granted = std::max(0, granted - end % kernels::kBlockTokens);
    }
    work->rows += granted;
    rows_left_ -= granted;
  }

  const BatchState& state_;
  const BatchLimits& limits_;
  int available_;
  int host_available_;
  int rows_left_;
  size_t num_kept_;
  int growing_ = 0;  // sequences, running or admitted, that take frames as they grow
  std::vector<PrefillWork> prefills_;  // in rank
  BatchPlan plan_;
};

}  // namespace

BatchPlan PlanStep(const BatchState& state, const BatchLimits& limits) {
  return StepPlanner(state, limits).Plan();
}

int BatchPlan::num_rows() const {
  int rows = 0;
  for (const PlannedSegment& segment : segments) rows += segment.num_tokens;
  return rows;
}

std::string BatchPlan::ToString() const {
  std::string text = "preempt";
  for (const memory::SequenceId id : preemptions) absl::StrAppend(&text, " ", id);
  absl::StrAppend(&text, "; admit");
  for (const PlannedAdmission& admission : admissions) {
    absl::StrAppend(&text, " ", admission.sequence, "(",
                    admission.residency == memory::Residency::kTiered ? "tiered, " : "",
                    admission.resumed ? "resumed, " : "", "hit ", admission.hit_blocks, " of ",
                    admission.total_blocks, ")");
  }
  for (const PlannedWarmUp& warm_up : warm_ups) {
    absl::StrAppend(&text, "; warm ", warm_up.sequence, " by ", warm_up.most_bytes);
  }
  absl::StrAppend(&text, "; run");
  for (const PlannedSegment& segment : segments) {
    absl::StrAppend(&text, " ", segment.sequence, "x", segment.num_tokens,
                    segment.samples ? "+" : "");
  }
  return text;
}

}  // namespace augur::engine
