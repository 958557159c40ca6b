// Thousands of random submissions, waits, cancels and looks at the statistics against a model of
// both pools: what a done ticket copied is there, nothing else was written, and every copy is
// counted once.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "memory/copy_threads.h"

namespace augur::memory {
namespace {

constexpr int kPages = 256;

using Page = std::vector<std::byte>;

struct Flight {
  Ticket ticket = kNoTicket;
  bool cancelled = false;
  bool to_host = false;
  std::vector<int> pages;
};

class Pools {
 public:
  Pools(const CopyThreadsOptions& options, uint32_t seed)
      : random_(seed), device_(kPages), host_(kPages), busy_(kPages), threads_(options) {
    for (int i = 0; i < kPages; ++i) {
      const size_t bytes = 8 * (1 + Draw(600));
      device_[i].assign(bytes, std::byte{0});
      host_[i].assign(bytes, std::byte{0});
    }
  }

  void Submit() {
    Flight flight;
    const auto kind = static_cast<TransferKind>(Draw(4));
    flight.to_host = kind == TransferKind::kSpill;
    std::vector<PageCopy> copies;
    for (uint32_t left = 1 + Draw(24); left > 0; --left) {
      const int page = static_cast<int>(Draw(kPages));
      if (busy_[page]) continue;
      busy_[page] = true;
      Page& from = Source(flight, page);
      Page& to = Target(flight, page);
      std::fill(from.begin(), from.end(), std::byte(++stamp_ % 255 + 1));
      std::fill(to.begin(), to.end(), std::byte{0});
      flight.pages.push_back(page);
      copies.push_back({from.data(), to.data(), from.size()});
    }
    const bool can = threads_.CanSubmit(copies.size());
    flight.ticket = threads_.Submit(kind, copies);
    if (copies.empty()) return;
    if (flight.ticket == kNoTicket) {
      EXPECT_FALSE(can);  // room that was there stays there until we take it
      ++refused_;
      for (const int page : flight.pages) busy_[page] = false;
      return;
    }
    EXPECT_GT(flight.ticket, last_);
    last_ = flight.ticket;
    submitted_ += copies.size();
    flights_.push_back(std::move(flight));
  }

  void Step() {
    const uint32_t what = Draw(10);
    if (what < 4 || flights_.empty()) return Submit();
    const size_t chosen = Draw(static_cast<uint32_t>(flights_.size()));
    Flight& flight = flights_[chosen];
    if (what == 4) threads_.Wait(flight.ticket);
    if (what == 5) {
      threads_.Cancel(flight.ticket);
      flight.cancelled = true;
    }
    if (!threads_.Done(flight.ticket)) {
      EXPECT_NE(what, 4u);
      return;
    }
    Land(flight);
    flights_.erase(flights_.begin() + static_cast<std::ptrdiff_t>(chosen));
  }

  void Finish() {
    for (const Flight& flight : flights_) {
      threads_.Wait(flight.ticket);
      Land(flight);
    }
    flights_.clear();
    const TransferStats stats = threads_.Stats();
    uint64_t submitted = 0;
    uint64_t ended = 0;
    for (const TransferCounts& counts : stats.by_kind) {
      submitted += counts.submitted_copies;
      ended += counts.finished_copies + counts.cancelled_copies;
    }
    EXPECT_EQ(submitted, submitted_);
    EXPECT_EQ(ended, submitted_);
    EXPECT_EQ(stats.queued_copies, 0);
    EXPECT_EQ(stats.oldest_queued_ns, 0);
    EXPECT_EQ(stats.units_busy, 0);
    EXPECT_GT(stats.busy_ns, 0);
  }

  const CopyThreads& threads() const { return threads_; }
  uint64_t refused() const { return refused_; }

 private:
  uint32_t Draw(uint32_t bound) { return static_cast<uint32_t>(random_() % bound); }
  Page& Source(const Flight& flight, int page) {
    return flight.to_host ? device_[page] : host_[page];
  }
  Page& Target(const Flight& flight, int page) {
    return flight.to_host ? host_[page] : device_[page];
  }
  // A page of a cancelled ticket was copied whole or not at all.
  void Land(const Flight& flight) {
    for (const int page : flight.pages) {
      const Page& from = Source(flight, page);
      const Page& to = Target(flight, page);
      const bool dropped = flight.cancelled && to == Page(to.size());
      ASSERT_TRUE(dropped || to == from) << "page " << page;
      busy_[page] = false;
    }
  }

  std::mt19937 random_;
  std::vector<Page> device_;
  std::vector<Page> host_;
  std::vector<bool> busy_;
  std::vector<Flight> flights_;
  Ticket last_ = kNoTicket;
  uint64_t submitted_ = 0;
  uint64_t refused_ = 0;
  uint32_t stamp_ = 0;
  CopyThreads threads_;
};

// Answers how often the queue was full.
uint64_t RunStress(const CopyThreadsOptions& options, int steps) {
  uint64_t refused = 0;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    Pools pools(options, seed);
    // Counters that another thread reads, once a step, never go backwards and never run ahead of
    // each other.
    std::atomic<int> step = 0;
    std::thread reader([&pools, &step] {
      int64_t last_busy_ns = 0;
      for (int seen = 0; seen >= 0; seen = step) {
        const TransferStats stats = pools.threads().Stats();
        for (const TransferCounts& counts : stats.by_kind) {
          EXPECT_LE(counts.finished_copies + counts.cancelled_copies, counts.submitted_copies);
        }
        EXPECT_GE(stats.busy_ns, last_busy_ns);
        last_busy_ns = stats.busy_ns;
        EXPECT_LE(stats.units_busy, stats.units);
        step.wait(seen);
      }
    });
    for (int i = 1; i <= steps; ++i) {
      pools.Step();
      step = i;
      step.notify_one();
    }
    pools.Finish();
    step = -1;
    step.notify_one();
    reader.join();
    refused += pools.refused();
  }
  return refused;
}

TEST(CopyThreadsStressTest, AsFastAsMemcpy) { EXPECT_EQ(RunStress({.num_threads = 3}, 5'000), 0u); }

TEST(CopyThreadsStressTest, OneThread) { EXPECT_EQ(RunStress({.num_threads = 1}, 3'000), 0u); }

TEST(CopyThreadsStressTest, SmallQueue) {
  EXPECT_GT(RunStress({.num_threads = 2, .queue_copies = 20}, 5'000), 0u);
}

TEST(CopyThreadsStressTest, PacedWithLatency) {
  RunStress({.num_threads = 3,
             .queue_copies = 200,
             .bytes_per_second = 5e8,
             .places_per_second = 1e6,
             .latency_ns = 50'000},
            3'000);
}

}  // namespace
}  // namespace augur::memory
