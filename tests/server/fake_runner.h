// A model that continues the alphabet: after the token of a letter comes the next letter, after
// anything else an 'a'. The prompt's last byte 'N' makes it fail with a number that is not finite.
// Steps wait while held.
#pragma once

#include <condition_variable>
#include <mutex>

#include "engine/model_runner.h"

namespace augur::server {

class RunnerGate {
 public:
  void Hold() {
    const std::lock_guard lock(mutex_);
    held_ = true;
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    held_ = false;
    released_.notify_all();
  }
  void Pass() {
    std::unique_lock lock(mutex_);
    released_.wait(lock, [this] { return !held_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable released_;
  bool held_ = false;
};

class FakeRunner final : public engine::ModelRunner {
 public:
  explicit FakeRunner(RunnerGate* gate) : gate_(gate) {}

  void Run(const engine::StepInputs& inputs, engine::StepOutputs* outputs) override {
    gate_->Pass();
    outputs->tokens.assign(inputs.segments.size(), 0);
    for (size_t i = 0; i < inputs.segments.size(); ++i) {
      const engine::StepSegment& segment = inputs.segments[i];
      if (!segment.wants_token) continue;
      const int32_t last = inputs.token_ids[segment.rows.first_row + segment.rows.num_rows - 1];
      outputs->tokens[i] = last == 'N'                 ? kernels::kNotFinite
                           : last >= 'a' && last < 'z' ? last + 1
                                                       : 'a';
    }
  }

 private:
  RunnerGate* const gate_;
};

}  // namespace augur::server
