// What the rules of running sequences know of their tokens, in the backend's memory: for each
// sequence with rules a slot of a bias and a word (kernels/ops/adjust_logits.h) for every token of
// the vocabulary. A slot is filled whole from the sequence's tokens when the sequence comes
// (again), so nothing is lost by a preemption; from then on the steps themselves count the tokens
// that they are given, once each, whether the host has seen them yet or not.
//
// Thread: the engine's. Ownership: the memory; the backend outlives it. There are as many slots as
// a step has sequences, so every running sequence may have rules. Failure: Create names the bytes
// and the knob.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model_runner.h"
#include "kernels/backend.h"
#include "kernels/backend_array.h"

namespace augur::engine {

class LogitState {
 public:
  static absl::StatusOr<std::unique_ptr<LogitState>> Create(kernels::Backend* backend, int slots,
                                                            int vocab);
  ~LogitState();
  LogitState(const LogitState&) = delete;
  LogitState& operator=(const LogitState&) = delete;

  // The rule of the segment's last row, slot -1 where it has none. Fills a slot, in order with the
  // ops, for a sequence that has none yet.
  kernels::LogitRule Prepare(const StepSegment& segment);
  // Of the row behind it, whose input is the token that the segment draws.
  kernels::LogitRule Next(const StepSegment& segment) const;
  // The sequence's slot, if it has one, is free again.
  void Remove(memory::SequenceId id);

  // Shapes as in kernels/ops/adjust_logits.h.
  const float* bias() const { return bias_.data(); }
  uint32_t* words() { return words_.data(); }
  int32_t* counted() { return counted_.data(); }

 private:
  // A slot's content on its way from the host.
  struct Staging {
    float* bias = nullptr;      // [vocab]
    uint32_t* words = nullptr;  // [vocab]
    int32_t* counted = nullptr;
    uint64_t mark = 0;  // when it has arrived
  };

  LogitState(kernels::Backend* backend, int slots, int vocab);
  bool allocated() const;
  void Fill(int slot, const StepSegment& segment);

  kernels::Backend* const backend_;
  const int vocab_;
  kernels::BackendArray<float> bias_;       // [slots, vocab]
  kernels::BackendArray<uint32_t> words_;   // [slots, vocab]
  kernels::BackendArray<int32_t> counted_;  // [slots]
  std::array<Staging, 2> staging_;
  size_t next_staging_ = 0;
  std::map<memory::SequenceId, int> slots_;  // of sequences that have one
  std::vector<int> free_slots_;
};

}  // namespace augur::engine
