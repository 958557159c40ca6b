// Transfers between the pools by threads and memcpy, as fast as memcpy or paced like a PCIe link.
//
// The imitated link has two lanes, host to device (fetch, prefetch, restore) and device to host
// (spill), each shared by all threads. A copy occupies its lane for
//     max(bytes / bytes_per_second, 1 / places_per_second)
// and lands latency_ns after its lane time ended. The latency does not hold the lane, as a read in
// flight does not hold PCIe: a list on an idle lane takes latency + sum of lane times, and the
// latencies of lists overlap. Lane time is virtual: while copies queue, the next one's time starts
// where the last one's ended, however late a thread woke, so that the long-run rate is exact and
// never above the limit. An idle lane saves up nothing.
//
// A copy begins (its bytes are read, it cannot be cancelled any more) at most kLookAheadNs before
// its lane time. No thread spins: one idle thread sleeps until the next lane time, the others until
// they are called.
//
// Thread, ownership, failure: transfer_engine.h. Stats and CanSubmit hold the one mutex for less
// than a microsecond; nothing is copied under it. Nothing allocates after the constructor.
// Bounds: `queue_copies` copies that have not begun, and as many tickets in flight. The destructor
// drops what has not begun and waits for the memcpys under way.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "memory/transfer_engine.h"

namespace augur::memory {

struct CopyThreadsOptions {
  int num_threads = 1;           // >= 1
  int queue_copies = 65'536;     // 1 .. 2^20
  double bytes_per_second = 0;   // of each direction; 0: as fast as memcpy
  double places_per_second = 0;  // copies a second, of each direction; 0: no limit
  int64_t latency_ns = 0;        // from the end of a copy's lane time to its landing
};

class CopyThreads final : public TransferEngine {
 public:
  // A thread books lane time this far ahead and then sleeps until it has run out. An urgent copy
  // may find as much of its lane promised away.
  static constexpr int64_t kLookAheadNs = 100'000;

  explicit CopyThreads(const CopyThreadsOptions& options);
  ~CopyThreads() override;
  CopyThreads(const CopyThreads&) = delete;
  CopyThreads& operator=(const CopyThreads&) = delete;

  Ticket Submit(TransferKind kind, std::span<const PageCopy> copies) override;
  bool CanSubmit(size_t num_copies) const override;
  bool Done(Ticket ticket) override;
  void Wait(Ticket ticket) override;
  void Cancel(Ticket ticket) override;

  // finished_copies and finished_bytes count what memcpy has done: on a paced link that is early by
  // the copy's lane time and the latency. units_busy and busy_ns count memcpy, not sleeping.
  TransferStats Stats() const override;

 private:
  static constexpr int32_t kNone = -1;
  static constexpr size_t kNumKinds = static_cast<size_t>(TransferKind::kCount);
  static constexpr size_t kRaised = 0;               // queue of the ticket that Wait waits for
  static constexpr size_t kLanding = kNumKinds + 1;  // all copied, the link not done with them
  static constexpr size_t kNumQueues = kNumKinds + 2;
  static constexpr size_t kBatchCopies = 8;  // taken by a thread at once, of one list
  static constexpr size_t kBatchBytes = 64 << 10;

  struct QueuedCopy {
    PageCopy copy;
    int32_t next = kNone;  // of the same list, or free
  };
  // A list in flight. Its number in tickets_ is the low bits of its ticket.
  struct List {
    Ticket ticket = kNoTicket;  // kNoTicket: free
    TransferKind kind = TransferKind::kFetch;
    int32_t first_copy = kNone;  // not begun
    int32_t under_way = 0;       // copies in a thread's hands
    int64_t submitted_ns = 0;
    int64_t landing_ns = 0;     // of the copies begun so far, the latest
    size_t queue = kNumQueues;  // kNumQueues: in none
    int32_t previous = kNone;   // in the queue
    int32_t next = kNone;       // in the queue, or free
  };
  struct Queue {
    int32_t first = kNone;
    int32_t last = kNone;
  };
  struct Lane {
    int64_t free_ns = 0;  // all lane time before it is promised away
    double carry_ns = 0;  // lane time promised away beyond free_ns, below 1 ns
    int queued_copies = 0;
  };
  struct Batch {
    int32_t list = kNone;
    size_t num_copies = 0;
    size_t bytes = 0;
    std::array<PageCopy, kBatchCopies> copies;
  };

  static size_t LaneOf(TransferKind kind) { return kind == TransferKind::kSpill ? 1 : 0; }
  static size_t QueueOf(TransferKind kind) { return static_cast<size_t>(kind) + 1; }

  void Run();  // a thread's life
  // Everything below needs the mutex.
  Batch Take(int64_t now_ns);
  void Begin(Batch* batch, int64_t now_ns);
  void Finish(const Batch& batch, int64_t begun_ns, int64_t now_ns);
  bool LaneOpen(const Lane& lane, int64_t now_ns) const;
  int64_t NextStart() const;  // when a lane with queued copies is free; kNever when none are queued
  // Calls a thread if there is something to begin now, or to sleep for that no thread will see to.
  // `back_soon`: the calling thread will see to what comes later.
  void CallThread(int64_t now_ns, bool back_soon);

  int32_t Find(Ticket ticket) const;  // kNone when done
  bool RetireIfLanded(int32_t list, int64_t now_ns);
  void RetireLanded(int64_t now_ns);
  void DropQueued(int32_t list);
  void Append(size_t queue, int32_t list);
  void Unlink(int32_t list);

  const int64_t latency_ns_;
  const double ns_per_byte_;
  const double ns_per_place_;

  mutable std::mutex mutex_;
  std::vector<QueuedCopy> copies_;
  int32_t free_copy_ = kNone;
  size_t num_free_copies_ = 0;
  std::vector<List> lists_;
  int32_t free_list_ = kNone;
  uint64_t num_submitted_ = 0;
  std::array<Queue, kNumQueues> queues_;
  std::array<Lane, 2> lanes_;

  std::array<TransferCounts, kNumKinds> counts_;
  int units_busy_ = 0;
  int64_t busy_ns_ = 0;        // of memcpys that have ended
  int64_t busy_begun_ns_ = 0;  // summed over memcpys under way

  bool stopping_ = false;
  int num_idle_ = 0;  // threads in idle_
  std::condition_variable idle_;
  int64_t timekeeper_ns_;  // what the one thread in timekeeper_ sleeps for; kNever: no thread does
  std::condition_variable timekeeper_;
  Ticket awaited_ = kNoTicket;  // by the caller of Wait
  std::condition_variable awaited_copied_;

  std::vector<std::thread> threads_;
};

}  // namespace augur::memory
