#include "loadtest/latency_samples.h"

#include <algorithm>
#include <cmath>

namespace augur::loadtest {
namespace {

constexpr double kSmallest = 1e-3;  // upper edge of the first bucket
constexpr double kGrowth = 1.01;
constexpr size_t kBuckets = 2779;  // up to 1e9

size_t BucketOf(double value) {
  if (value <= kSmallest) return 0;
  static const double kLogGrowth = std::log(kGrowth);
  const double at = std::ceil(std::log(value / kSmallest) / kLogGrowth);
  return std::min(static_cast<size_t>(at), kBuckets - 1);
}

double MiddleOf(size_t bucket) {
  if (bucket == 0) return kSmallest / 2;
  return kSmallest * std::pow(kGrowth, static_cast<double>(bucket) - 0.5);
}

}  // namespace

void LatencySamples::Add(double value, uint64_t times) {
  if (times == 0) return;
  if (!std::isfinite(value) || value < 0) value = 0;
  min_ = count_ == 0 ? value : std::min(min_, value);
  max_ = std::max(max_, value);
  count_ += times;
  const double step = value - mean_;
  const auto weight = static_cast<double>(times);
  mean_ += step * weight / static_cast<double>(count_);
  squares_ += weight * step * (value - mean_);

  if (buckets_.empty() && count_ <= kExactSamples) {
    samples_.insert(samples_.end(), static_cast<size_t>(times), value);
    sorted_ = false;
    return;
  }
  if (buckets_.empty()) {
    buckets_.resize(kBuckets);
    for (const double sample : samples_) ++buckets_[BucketOf(sample)];
    samples_ = {};
  }
  buckets_[BucketOf(value)] += times;
}

double LatencySamples::Std() const {
  return count_ == 0 ? 0 : std::sqrt(squares_ / static_cast<double>(count_));
}

double LatencySamples::ValueAtRank(uint64_t rank) const {
  if (rank == 0) return min_;
  if (rank == count_ - 1) return max_;
  uint64_t below = 0;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    below += buckets_[bucket];
    if (below > rank) return std::clamp(MiddleOf(bucket), min_, max_);
  }
  return max_;
}

double LatencySamples::Percentile(double percent) const {
  if (count_ == 0) return 0;
  const double at = std::clamp(percent, 0.0, 100.0) / 100 * static_cast<double>(count_ - 1);
  const auto rank = static_cast<uint64_t>(at);
  if (!buckets_.empty()) return ValueAtRank(rank);
  if (!sorted_) std::sort(samples_.begin(), samples_.end());
  sorted_ = true;
  const double low = samples_[static_cast<size_t>(rank)];
  const double high = samples_[std::min(static_cast<size_t>(rank) + 1, samples_.size() - 1)];
  return low + (high - low) * (at - static_cast<double>(rank));
}

}  // namespace augur::loadtest
