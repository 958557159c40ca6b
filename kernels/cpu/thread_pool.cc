#include "kernels/cpu/thread_pool.h"

#include <sched.h>

#include <chrono>

#include "kernels/check.h"

namespace augur::kernels {
namespace {

using Clock = std::chrono::steady_clock;

// How long a worker looks for the next job before it sleeps. Ops of a decode step follow each other
// within a few microseconds, while waking a sleeper costs tens: see kernels/README.md for the
// measured times.
constexpr std::chrono::microseconds kSpin{50};
// With more threads than cores a spinner steals the core of the one it waits for.
constexpr std::chrono::microseconds kSpinOversubscribed{2};
constexpr int kPausesPerRound = 16;  // under a microsecond; between two looks at the clock
// The caller's wait for the last items, in pauses (some 40 ns each): an item is at most tens of
// microseconds of work, so a longer wait means that its thread has lost its core.
constexpr int kPausesBeforeYield = 2000;

int NumUsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return CPU_COUNT(&set);
}

uint32_t JobOf(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 32); }
uint32_t ItemsLeft(uint64_t ticket) { return static_cast<uint32_t>(ticket); }

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  AUGUR_CHECK(num_threads >= 1);
  oversubscribed_ = num_threads > NumUsableCores();
  workers_.reserve(num_threads - 1);
  for (int thread = 1; thread < num_threads; ++thread) {
    workers_.emplace_back([this, thread] { WorkerLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(park_mutex_);
    stopping_.store(true);
  }
  park_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int num_items, Function function, const void* context) {
  if (num_items <= 1 || workers_.empty()) {
    for (int item = 0; item < num_items; ++item) function(context, item, 0);
    return;
  }
  done_.store(0, std::memory_order_relaxed);
  function_.store(function, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  num_items_.store(static_cast<uint32_t>(num_items), std::memory_order_relaxed);
  const uint32_t job = JobOf(ticket_.load(std::memory_order_relaxed)) + 1;
  // Sequentially consistent against num_parked_: either we see the sleeper, or it sees the job.
  ticket_.store(static_cast<uint64_t>(job) << 32 | static_cast<uint32_t>(num_items));
  if (num_parked_.load() > 0) {
    std::lock_guard lock(park_mutex_);
    park_.notify_all();
  }
  RunItems(job, 0);
  for (int round = 0; done_.load(std::memory_order_acquire) != static_cast<uint32_t>(num_items);
       ++round) {
    // The last items are being run elsewhere. Their thread may need this very core.
    if (oversubscribed_ || round > kPausesBeforeYield) {
      std::this_thread::yield();
    } else {
      __builtin_ia32_pause();
    }
  }
}

void ThreadPool::WorkerLoop(int thread) {
  uint32_t seen_job = 0;
  while (WaitForJob(seen_job)) {
    seen_job = JobOf(ticket_.load(std::memory_order_acquire));
    RunItems(seen_job, thread);
  }
}

// False when the pool stops.
bool ThreadPool::WaitForJob(uint32_t seen_job) {
  const auto has_job = [&] { return JobOf(ticket_.load()) != seen_job; };
  const Clock::time_point deadline = Clock::now() + (oversubscribed_ ? kSpinOversubscribed : kSpin);
  do {
    for (int i = 0; i < kPausesPerRound; ++i) {
      if (has_job()) return true;
      __builtin_ia32_pause();
    }
  } while (!stopping_.load(std::memory_order_relaxed) && Clock::now() < deadline);
  std::unique_lock lock(park_mutex_);
  num_parked_.fetch_add(1);
  park_.wait(lock, [&] { return stopping_.load() || has_job(); });
  num_parked_.fetch_sub(1);
  return !stopping_.load();
}

void ThreadPool::RunItems(uint32_t job, int thread) {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (JobOf(ticket) == job && ItemsLeft(ticket) > 0) {
    const Function function = function_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const uint32_t item = num_items_.load(std::memory_order_relaxed) - ItemsLeft(ticket);
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    function(context, static_cast<int>(item), thread);
    done_.fetch_add(1, std::memory_order_release);
    ticket = ticket_.load(std::memory_order_acquire);
  }
}

}  // namespace augur::kernels
