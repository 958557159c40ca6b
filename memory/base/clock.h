// Time as the engine sees it: monotonic, injectable. Durations and instants are int64 nanoseconds
// (`_ns`).
#pragma once

#include <chrono>
#include <cstdint>

namespace augur::memory {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() const = 0;
};

// The steady clock of the machine. Any thread.
class SteadyClock final : public Clock {
 public:
  int64_t NowNs() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

// Virtual time for tests and the simulation; moves only when told. One thread.
class FakeClock final : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_; }
  void Advance(int64_t ns) { now_ns_ += ns; }

 private:
  int64_t now_ns_ = 0;
};

inline constexpr int64_t kNsPerMs = 1'000'000;
inline constexpr int64_t kNsPerSecond = 1'000'000'000;

}  // namespace augur::memory
