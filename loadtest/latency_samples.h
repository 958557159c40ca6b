// A distribution of times in bounded memory.
//
// The first 65,536 samples are kept as they are, and percentiles of up to so many are exact, by
// linear interpolation between ranks (as numpy does it). Beyond that samples are counted in buckets
// that each reach 1 % higher than the one below, and a percentile is the middle of its bucket: at
// most 0.5 % off from 1 us to 11 days. Count, mean, standard deviation, minimum and maximum are
// exact always.
//
// Thread: one owner. Ownership: a value. Units: milliseconds, or whatever is added. Failure: none;
// what is not finite or below 0 is counted as 0; without samples every figure is 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace augur::loadtest {

class LatencySamples {
 public:
  static constexpr size_t kExactSamples = 65'536;

  // `times`: as if added so often.
  void Add(double value, uint64_t times = 1);

  uint64_t count() const { return count_; }
  double Mean() const { return mean_; }
  double Std() const;  // of the population, as numpy.std
  double Min() const { return min_; }
  double Max() const { return max_; }
  double Sum() const { return mean_ * static_cast<double>(count_); }
  double Percentile(double percent) const;  // 0 to 100
  double Median() const { return Percentile(50); }
  bool exact() const { return buckets_.empty(); }

 private:
  double ValueAtRank(uint64_t rank) const;  // from 0; in buckets

  uint64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // sum of squared distances from the mean (Welford)
  double min_ = 0;
  double max_ = 0;
  mutable bool sorted_ = true;
  mutable std::vector<double> samples_;  // empty once there are buckets
  std::vector<uint64_t> buckets_;
};

}  // namespace augur::loadtest
