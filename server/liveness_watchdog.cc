#include "server/liveness_watchdog.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>

#include "memory/base/clock.h"

namespace augur::server {

LivenessWatchdog::LivenessWatchdog(std::function<int64_t()> stalled_ns, int64_t limit_ns,
                                   int64_t period_ns, HealthService* health)
    : stalled_ns_(std::move(stalled_ns)),
      limit_ns_(limit_ns),
      period_ns_(period_ns),
      health_(health) {
  thread_ = std::thread([this] { RunLoop(); });
}

LivenessWatchdog::~LivenessWatchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void LivenessWatchdog::RunLoop() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    Look();
    lock.lock();
    wake_.wait_for(lock, std::chrono::nanoseconds(period_ns_), [this] { return stopping_; });
  }
}

void LivenessWatchdog::Look() {
  const int64_t stalled_ns = stalled_ns_();
  const bool live = stalled_ns <= limit_ns_;
  if (live == live_) return;
  live_ = live;
  health_->Set(kLiveName, live);
  if (live) {
    spdlog::warn("engine moves again, live=true");
  } else {
    spdlog::error("engine stuck stalled_s={:.1f} limit_s={:.1f} live=false",
                  static_cast<double>(stalled_ns) / memory::kNsPerSecond,
                  static_cast<double>(limit_ns_) / memory::kNsPerSecond);
  }
}

}  // namespace augur::server
