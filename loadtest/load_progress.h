// A line about the stage that runs, on standard error: rewritten twice a second on a terminal, else
// a new one every five seconds.
//
// Thread: made and destroyed by one thread; prints on one of its own. Ownership: the runner
// outlives it. Failure: none.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "loadtest/load_runner.h"

namespace augur::loadtest {

// "batch 8: 12 of 32 sent, 9 ended, 0 bad, 81 tokens/s, 2.1 s".
std::string ProgressText(const std::string& stage, const StageProgress& progress);

class LoadProgress {
 public:
  enum class Mode { kOff, kLines, kTerminal };
  // kTerminal where standard error is one, else kLines where `wanted`.
  static Mode ModeOf(bool wanted);

  LoadProgress(Mode mode, std::string stage, const LoadRunner* runner);
  ~LoadProgress();
  LoadProgress(const LoadProgress&) = delete;
  LoadProgress& operator=(const LoadProgress&) = delete;

 private:
  void Print();

  const Mode mode_;
  const std::string stage_;
  const LoadRunner* const runner_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;  // under mutex_
  std::thread thread_;
};

}  // namespace augur::loadtest
