// SIGINT, SIGTERM and SIGHUP as something to wait for: the first asks for a drain, the second for an
// end at once.
//
// Thread: the process blocks these signals before it starts any thread (BlockStopSignals);
// SignalThread's thread takes them with sigwait; everyone else reads StopRequest.
// Ownership: StopRequest outlives SignalThread.
// Failure: none.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>

namespace augur::server {

// In main, before any thread is started: threads inherit the mask.
void BlockStopSignals();

class StopRequest {
 public:
  // While the model loads there is nothing to drain and nothing that could be interrupted: a signal
  // then ends the process on the spot, cleanly.
  void BeginLoading();
  void EndLoading();

  void Raise();
  int count() const;

  void Wait();                 // for the first
  void WaitForNs(int64_t ns);  // for the next, or so long

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int count_ = 0;
  bool loading_ = false;
};

class SignalThread {
 public:
  explicit SignalThread(StopRequest* stop);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

}  // namespace augur::server
