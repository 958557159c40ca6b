// A fixed team of threads for one caller: ParallelFor hands out items 0..n-1, the calling thread
// works too, and returns when all are done. Which thread runs which item is left to chance, so an
// item must give the same bits on any of them.
//
// Thread: one ParallelFor at a time, never from inside a body. Everything written before the call
// is seen by the bodies, everything they write is seen after it. Ownership: owns its threads,
// joined by the destructor. No call allocates. Failure: none; fewer cores than threads cost time
// only.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace augur::kernels {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // the calling thread among them; at least 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // body(item, thread) for every item in [0, num_items); thread in [0, num_threads()) names scratch
  // that no other body uses meanwhile.
  template <class Body>
  void ParallelFor(int num_items, const Body& body) {
    Run(
        num_items,
        [](const void* context, int item, int thread) {
          (*static_cast<const Body*>(context))(item, thread);
        },
        &body);
  }

 private:
  using Function = void (*)(const void* context, int item, int thread);

  void Run(int num_items, Function function, const void* context);
  void WorkerLoop(int thread);
  bool WaitForJob(uint32_t seen_job);
  void RunItems(uint32_t job, int thread);

  // The open job: its number in the high half, how many items nobody has taken yet in the low half.
  // A worker takes one by compare-and-swap. Whether there is one to take is in the swapped word
  // itself: with the count beside it, a late worker could match the old job's number with the new
  // job's count and run an item twice. While items are left the caller is inside Run, so what was
  // read of the job before a successful swap belongs to it; what was read before a failed one is
  // thrown away.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  std::atomic<Function> function_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<uint32_t> num_items_{0};

  alignas(64) std::atomic<int> num_parked_{0};
  std::atomic<bool> stopping_{false};
  std::mutex park_mutex_;
  std::condition_variable park_;
  bool oversubscribed_ = false;  // more threads than usable cores
  std::vector<std::thread> workers_;
};

}  // namespace augur::kernels
