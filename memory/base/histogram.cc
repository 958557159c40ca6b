#include "memory/base/histogram.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace augur::memory {

Histogram::Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)) {
  AUGUR_CHECK(bounds_.size() <= kMaxBuckets);
  AUGUR_CHECK(std::is_sorted(bounds_.begin(), bounds_.end()));
}

void Histogram::Observe(double value) { Observe(value, 1); }

void Histogram::Observe(double value, uint64_t n) {
  const size_t bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[bucket].fetch_add(n, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(n), std::memory_order_relaxed);
}

HistogramSnapshot Histogram::Snapshot() const {
  HistogramSnapshot snapshot{.bounds = bounds_, .counts = {}, .sum = 0};
  snapshot.counts.reserve(bounds_.size() + 1);
  for (size_t i = 0; i <= bounds_.size(); ++i) {
    snapshot.counts.push_back(counts_[i].load(std::memory_order_relaxed));
  }
  snapshot.sum = sum_.load(std::memory_order_relaxed);
  return snapshot;
}

std::vector<double> LatencyBounds() {
  return {0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03,
          0.05,   0.075, 0.1,   0.15,  0.25,  0.5,    1,    2,     3,    5,
          7.5,    10,    20,    40,    80,    160,    320,  640,   1280, 2560};
}

std::vector<double> ShortLatencyBounds() {
  return {0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01,
          0.02,    0.05,    0.1,     0.2,    0.5,    1,      2,     5,     10};
}

std::vector<double> PowerOfTwoBounds(double max) {
  std::vector<double> bounds;
  for (double bound = 1; bound <= max && bounds.size() < Histogram::kMaxBuckets; bound *= 2) {
    bounds.push_back(bound);
  }
  return bounds;
}

}  // namespace augur::memory
