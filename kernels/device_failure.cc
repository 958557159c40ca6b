#include "kernels/device_failure.h"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <utility>

namespace augur::kernels {
namespace {

constexpr int kExitBrokenDevice = 70;

std::mutex& Mutex() {
  static std::mutex mutex;
  return mutex;
}

std::function<void(const std::string&)>& Handler() {
  static std::function<void(const std::string&)> handler;
  return handler;
}

}  // namespace

void SetDeviceFailureHandler(std::function<void(const std::string&)> handler) {
  const std::lock_guard lock(Mutex());
  Handler() = std::move(handler);
}

void ReportDeviceFailure(const std::string& message) {
  static std::atomic<bool> reported{false};
  if (!reported.exchange(true)) {
    std::function<void(const std::string&)> handler;
    {
      const std::lock_guard lock(Mutex());
      handler = Handler();
    }
    if (handler == nullptr) {
      std::fprintf(stderr, "device failure: %s\n", message.c_str());
      std::_Exit(kExitBrokenDevice);
    }
    handler(message);
  }
  for (;;) pause();
}

}  // namespace augur::kernels
