// Turns the health name `live` off while the engine has been stuck in one step for longer than a
// limit, and on again when it moves: a supervisor that restarts on liveness should see a stuck
// device, not a long prefill.
//
// Thread: its own, once a second.
// Ownership: health and what `stalled_ns` reads outlive it.
// Failure: none.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>

#include "server/health_service.h"

namespace augur::server {

class LivenessWatchdog {
 public:
  // `stalled_ns`: how long the engine has been without progress while it had work.
  LivenessWatchdog(std::function<int64_t()> stalled_ns, int64_t limit_ns, int64_t period_ns,
                   HealthService* health);
  ~LivenessWatchdog();
  LivenessWatchdog(const LivenessWatchdog&) = delete;
  LivenessWatchdog& operator=(const LivenessWatchdog&) = delete;

 private:
  void RunLoop();
  void Look();

  const std::function<int64_t()> stalled_ns_;
  const int64_t limit_ns_;
  const int64_t period_ns_;
  HealthService* const health_;
  bool live_ = true;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace augur::server
