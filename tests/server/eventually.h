// Waiting for something that another thread does, without a fixed sleep.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

namespace augur::server {

// True as soon as `condition` is; false when it has not become so in time.
inline bool Eventually(const std::function<bool()>& condition,
                       std::chrono::seconds limit = std::chrono::seconds(20)) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace augur::server
