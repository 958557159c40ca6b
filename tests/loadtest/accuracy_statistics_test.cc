// Intervals against values worked out elsewhere.
#include "loadtest/accuracy_statistics.h"

#include <gtest/gtest.h>

namespace augur::loadtest {
namespace {

TEST(WilsonInterval, KnownValues) {
  const Interval eight = WilsonInterval(8, 10);  // statsmodels: 0.4901625, 0.9433178
  EXPECT_NEAR(eight.low, 0.4901625, 1e-6);
  EXPECT_NEAR(eight.high, 0.9433178, 1e-6);
  const Interval half = WilsonInterval(50, 100);  // 0.4038315, 0.5961685
  EXPECT_NEAR(half.low, 0.4038315, 1e-6);
  EXPECT_NEAR(half.high, 0.5961685, 1e-6);
  const Interval none = WilsonInterval(0, 10);  // 0, z^2 / (n + z^2)
  EXPECT_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 0.2775328, 1e-6);
  const Interval all = WilsonInterval(10, 10);
  EXPECT_NEAR(all.low, 0.7224672, 1e-6);
  EXPECT_EQ(all.high, 1);
}

TEST(WilsonInterval, NoQuestionsSayNothing) {
  EXPECT_EQ(WilsonInterval(0, 0).low, 0);
  EXPECT_EQ(WilsonInterval(0, 0).high, 1);
}

TEST(ComparePaired, CountsOnlyDisagreements) {
  std::vector<bool> dense(100, true);
  std::vector<bool> sparse(100, true);
  for (size_t i = 0; i < 5; ++i) sparse[i] = false;              // lost
  for (size_t i = 5; i < 7; ++i) dense[i] = false;               // gained
  for (size_t i = 7; i < 12; ++i) dense[i] = sparse[i] = false;  // both wrong
  const PairedDifference result = ComparePaired(sparse, dense);
  EXPECT_EQ(result.n, 100);
  EXPECT_EQ(result.gained, 2);
  EXPECT_EQ(result.lost, 5);
  EXPECT_DOUBLE_EQ(result.difference, -0.03);
  // -3 / 102 -+ 1.959964 * sqrt(8 - 9 / 102) / 102
  EXPECT_NEAR(result.interval.low, -0.0834611, 1e-6);
  EXPECT_NEAR(result.interval.high, 0.0246375, 1e-6);
}

TEST(ComparePaired, NoDisagreementLeavesDoubt) {
  const PairedDifference result =
      ComparePaired(std::vector<bool>(10, true), std::vector<bool>(10, true));
  EXPECT_EQ(result.difference, 0);
  EXPECT_NEAR(result.interval.high, 0.1633303, 1e-6);  // 1.959964 / 12
  EXPECT_NEAR(result.interval.low, -0.1633303, 1e-6);
}

TEST(ComparePaired, StaysWithinTheRangeAndHoldsTheDifference) {
  const PairedDifference result =
      ComparePaired(std::vector<bool>(10, true), std::vector<bool>(10, false));
  EXPECT_EQ(result.difference, 1);
  EXPECT_EQ(result.interval.high, 1);
  EXPECT_LT(result.interval.low, 1);
  const PairedDifference none = ComparePaired({}, {});
  EXPECT_EQ(none.interval.low, -1);
  EXPECT_EQ(none.interval.high, 1);
}

TEST(Median, OddEvenNone) {
  EXPECT_EQ(Median({3, 1, 2}), 2);
  EXPECT_EQ(Median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(Median({}), 0);
}

}  // namespace
}  // namespace augur::loadtest
