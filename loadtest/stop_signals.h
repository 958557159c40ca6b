// Ctrl-C and SIGTERM as an ordinary call on a thread of its own; a second one ends the process with
// status 130 at once.
//
// Thread: BlockStopSignals in main before any other thread starts, gRPC's included; StopSignals is
// made and destroyed by one thread; stopped() from any. Ownership: what `on_stop` uses outlives the
// object. Failure: none.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace augur::loadtest {

void BlockStopSignals();

class StopSignals {
 public:
  explicit StopSignals(std::function<void()> on_stop);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool stopped() const { return stopped_.load(std::memory_order_acquire); }

 private:
  void WaitForSignals();

  const std::function<void()> on_stop_;
  std::atomic<bool> stopped_{false};
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace augur::loadtest
