#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

TEST(ThreadPoolTest, RunsEveryItemOnceAndShowsItsWrites) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.num_threads(), threads);
    std::vector<int> runs(1000, 0);  // plain ints: the pool orders the writes
    std::vector<int64_t> by_thread(threads, 0);
    const int rounds = kSanitized ? 200 : 2000;
    int64_t expected = 0;
    for (int round = 0; round < rounds; ++round) {
      const int items = round * 7 % 41;
      pool.ParallelFor(items, [&](int item, int thread) {
        ++runs[item];
        ++by_thread[thread];
      });
      expected += items;
    }
    int64_t total = 0;
    for (const int64_t count : by_thread) total += count;
    EXPECT_EQ(total, expected);
    int64_t items_run = 0;
    for (const int count : runs) items_run += count;
    EXPECT_EQ(items_run, expected);
  }
}

// A worker that looks at the end of one job while the next, longer one is being set up must not
// take an item of either twice: job lengths alternate and every item counts its runs.
TEST(ThreadPoolTest, LateWorkersTakeNothingTwice) {
  for (const int threads : {2, 4}) {
    ThreadPool pool(threads);
    std::vector<std::atomic<int>> runs(64);
    const int rounds = kSanitized ? 5000 : 100000;
    for (int round = 0; round < rounds; ++round) {
      const int items = round % 2 == 0 ? 2 : 3 + round % 61;
      pool.ParallelFor(items, [&](int item, int) { runs[item].fetch_add(1); });
      for (int i = 0; i < items; ++i) ASSERT_EQ(runs[i].exchange(0), 1) << "round " << round;
    }
  }
}

// Jobs that follow each other at once, and jobs that find the workers asleep.
TEST(ThreadPoolTest, WakesSleepers) {
  ThreadPool pool(4);
  for (int round = 0; round < 60; ++round) {
    if (round % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(10 * round));
    std::vector<int> values(17, 0);
    pool.ParallelFor(17, [&](int item, int) { values[item] = item + round; });
    for (int i = 0; i < 17; ++i) ASSERT_EQ(values[i], i + round);
  }
}

TEST(ThreadPoolTest, SlowItemsAreShared) {
  ThreadPool pool(2);
  std::vector<int> runner(2, -1);
  // Each of two sleepers needs a thread of its own, or they would take twice as long.
  pool.ParallelFor(2, [&](int item, int thread) {
    runner[item] = thread;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
  EXPECT_NE(runner[0], runner[1]);
}

TEST(ThreadPoolTest, StartsAndStopsIdle) {
  for (int i = 0; i < 50; ++i) ThreadPool pool(3);
}

}  // namespace
}  // namespace augur::kernels
