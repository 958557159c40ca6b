#include "memory/base/histogram.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <thread>

namespace augur::memory {
namespace {

TEST(HistogramTest, BoundsAreInclusiveAsPrometheusHasThem) {
  Histogram histogram({1, 2, 4});
  for (const double value : {0.5, 1.0, 1.5, 4.0, 100.0}) histogram.Observe(value);
  const HistogramSnapshot snapshot = histogram.Snapshot();
  EXPECT_EQ(snapshot.counts, (std::vector<uint64_t>{2, 1, 1, 1}));
  EXPECT_DOUBLE_EQ(snapshot.sum, 107.0);
}

TEST(HistogramTest, LatencyBoundsReachFromHalfAMillisecondToFortyMinutes) {
  const std::vector<double> bounds = LatencyBounds();
  EXPECT_DOUBLE_EQ(bounds.front(), 0.0005);
  EXPECT_DOUBLE_EQ(bounds.back(), 2560);
  EXPECT_TRUE(std::is_sorted(bounds.begin(), bounds.end()));
  EXPECT_LE(bounds.size(), Histogram::kMaxBuckets);
}

TEST(HistogramTest, ReadersSeeCountsThatOnlyGrow) {
  Histogram histogram({1});
  std::thread writer([&histogram] {
    for (int i = 0; i < 20000; ++i) histogram.Observe(0.5, 2);
  });
  uint64_t last = 0;
  while (last < 40000) {
    const HistogramSnapshot snapshot = histogram.Snapshot();
    const uint64_t now =
        std::accumulate(snapshot.counts.begin(), snapshot.counts.end(), uint64_t{0});
    ASSERT_GE(now, last);
    last = now;
  }
  writer.join();
}

}  // namespace
}  // namespace augur::memory
