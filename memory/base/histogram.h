// A histogram with fixed bucket bounds that one thread fills and any thread reads without a lock.
//
// Thread: Observe from one thread at a time; Snapshot from any, at any time. A snapshot may be torn
// between buckets of observations in flight by at most those observations; counts never go
// backwards.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace augur::memory {

struct HistogramSnapshot {
  std::vector<double> bounds;    // upper bounds, ascending; the last bucket is +Inf
  std::vector<uint64_t> counts;  // bounds.size() + 1, not cumulative
  double sum = 0;
};

class Histogram {
 public:
  static constexpr size_t kMaxBuckets = 32;

  explicit Histogram(std::vector<double> bounds);
  void Observe(double value);
  // As n observations of the same value.
  void Observe(double value, uint64_t n);
  HistogramSnapshot Snapshot() const;

 private:
  std::vector<double> bounds_;
  std::array<std::atomic<uint64_t>, kMaxBuckets + 1> counts_{};
  std::atomic<double> sum_{0};
};

// 0.5 ms to 2,560 s, in seconds: fine enough for a token of a millisecond, wide enough for a
// prefill of forty minutes.
std::vector<double> LatencyBounds();
// 10 us to 10 s, in seconds: waits inside a step.
std::vector<double> ShortLatencyBounds();
// 1, 2, 4, ... up to `max`.
std::vector<double> PowerOfTwoBounds(double max);

}  // namespace augur::memory
