// A model without mathematics, for tests of everything around one. Its "KV" is real: every computed
// token leaves a record in its block and slot, and the token that follows is a hash of the records
// read back through the block table. A sequence that reads a wrong, stale or unwritten block, or
// another tenant's, gets another transcript than ReferenceToken says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model_runner.h"
#include "memory/base/clock.h"

namespace augur::tests {

class RecordingRunner final : public engine::ModelRunner {
 public:
  static constexpr int kVocab = 1000;
  // A prompt that holds this token makes rows that are not finite.
  static constexpr int32_t kPoison = 999;

  // Each Run moves `clock` (may be null) by ns_per_row for every row.
  RecordingRunner(int num_blocks, memory::FakeClock* clock, int64_t ns_per_row);

  void Run(const engine::StepInputs& inputs, engine::StepOutputs* outputs) override;

  // What follows `tokens` for the sampling seed `tenant`.
  static int32_t ReferenceToken(uint64_t tenant, std::span<const int32_t> tokens);

  int64_t rows_run() const { return rows_run_; }

 private:
  struct Record {
    uint64_t tenant = 0;
    int32_t token = -1;
    int32_t position = -1;
  };

  std::vector<Record> pool_;  // [num_blocks * 64]
  memory::FakeClock* const clock_;
  const int64_t ns_per_row_;
  int64_t rows_run_ = 0;
};

}  // namespace augur::tests
