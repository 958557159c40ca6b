// Ctrl-C (and SIGTERM) as a cancellation of the call that is under way.
//
// The signals are blocked in every thread that is started after the constructor and taken by a
// thread of the watch's own, so that the cancellation runs as ordinary code and not inside a signal
// handler. A second signal ends the process at once. Thread: made and destroyed by one thread,
// before the channel is made; interrupted() from any. Ownership: the context outlives the watch.
// Failure: none.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <csignal>
#include <thread>

namespace augur::client {

class InterruptWatch {
 public:
  explicit InterruptWatch(grpc::ClientContext* context);
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  bool interrupted() const { return interrupted_.load(std::memory_order_acquire); }

 private:
  void WaitForSignals();

  grpc::ClientContext* const context_;
  sigset_t signals_;
  sigset_t previous_;
  std::atomic<bool> interrupted_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace augur::client
