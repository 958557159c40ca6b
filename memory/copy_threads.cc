#include "memory/copy_threads.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "kernels/check.h"
#include "memory/base/clock.h"

namespace augur::memory {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// A ticket is the number of its submission above the number of its list.
constexpr int kListBits = 20;

int64_t NowNs() { return SteadyClock().NowNs(); }

std::chrono::steady_clock::time_point ToTimePoint(int64_t ns) {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(ns));
}

double NsPer(double per_second) {
  AUGUR_CHECK(per_second >= 0);
  return per_second > 0 ? static_cast<double>(kNsPerSecond) / per_second : 0.0;
}

}  // namespace

CopyThreads::CopyThreads(const CopyThreadsOptions& options)
    : latency_ns_(options.latency_ns),
      ns_per_byte_(NsPer(options.bytes_per_second)),
      ns_per_place_(NsPer(options.places_per_second)),
      timekeeper_ns_(kNever) {
  AUGUR_CHECK(options.num_threads >= 1);
  AUGUR_CHECK(options.queue_copies >= 1 && options.queue_copies <= 1 << kListBits);
  AUGUR_CHECK(options.latency_ns >= 0);
  num_free_copies_ = static_cast<size_t>(options.queue_copies);
  copies_.resize(num_free_copies_);
  lists_.resize(num_free_copies_);
  for (int32_t i = options.queue_copies - 1; i >= 0; --i) {
    copies_[i].next = free_copy_;
    free_copy_ = i;
    lists_[i].next = free_list_;
    free_list_ = i;
  }
  threads_.reserve(static_cast<size_t>(options.num_threads));
  for (int i = 0; i < options.num_threads; ++i) threads_.emplace_back([this] { Run(); });
}

CopyThreads::~CopyThreads() {
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < lists_.size(); ++i) {
      if (lists_[i].ticket != kNoTicket) DropQueued(static_cast<int32_t>(i));
    }
    stopping_ = true;
  }
  idle_.notify_all();
  timekeeper_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Ticket CopyThreads::Submit(TransferKind kind, std::span<const PageCopy> copies) {
  if (copies.empty()) return kNoTicket;
  const std::lock_guard lock(mutex_);
  const int64_t now_ns = NowNs();
  RetireLanded(now_ns);
  if (copies.size() > num_free_copies_ || free_list_ == kNone) return kNoTicket;

  const int32_t number = free_list_;
  List& list = lists_[number];
  free_list_ = list.next;
  list = List{};
  list.ticket = ++num_submitted_ << kListBits | static_cast<uint64_t>(number);
  list.kind = kind;
  list.submitted_ns = now_ns;
  list.first_copy = free_copy_;
  int32_t last_copy = kNone;
  for (const PageCopy& copy : copies) {
    AUGUR_CHECK(copy.from != nullptr && copy.to != nullptr && copy.bytes > 0);
    last_copy = free_copy_;
    copies_[last_copy].copy = copy;
    free_copy_ = copies_[last_copy].next;
  }
  copies_[last_copy].next = kNone;
  num_free_copies_ -= copies.size();
  counts_[static_cast<size_t>(kind)].submitted_copies += copies.size();

  // Lane time that passed while nothing was queued is lost.
  Lane& lane = lanes_[LaneOf(kind)];
  if (lane.queued_copies == 0) lane.free_ns = std::max(lane.free_ns, now_ns);
  lane.queued_copies += static_cast<int>(copies.size());
  Append(QueueOf(kind), number);
  CallThread(now_ns, false);
  return list.ticket;
}

bool CopyThreads::CanSubmit(size_t num_copies) const {
  if (num_copies == 0) return true;
  const std::lock_guard lock(mutex_);
  if (num_copies > num_free_copies_) return false;
  if (free_list_ != kNone) return true;
  // Submit retires landed lists first.
  const int32_t landing = queues_[kLanding].first;
  return landing != kNone && lists_[landing].landing_ns <= NowNs();
}

bool CopyThreads::Done(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const int32_t list = Find(ticket);
  return list == kNone || RetireIfLanded(list, NowNs());
}

void CopyThreads::Wait(Ticket ticket) {
  std::unique_lock lock(mutex_);
  const int32_t number = Find(ticket);
  if (number == kNone) return;
  if (lists_[number].first_copy != kNone) {
    Unlink(number);
    Append(kRaised, number);
  }
  awaited_ = ticket;
  // The threads retire a list themselves when it has landed by the time that its last copy ends.
  while (Find(ticket) != kNone && !RetireIfLanded(number, NowNs())) {
    const List& list = lists_[number];
    if (list.queue == kLanding) {
      awaited_copied_.wait_until(lock, ToTimePoint(list.landing_ns));
    } else {
      awaited_copied_.wait(lock);
    }
  }
  awaited_ = kNoTicket;
}

void CopyThreads::Cancel(Ticket ticket) {
  const std::lock_guard lock(mutex_);
  const int32_t number = Find(ticket);
  if (number == kNone || lists_[number].first_copy == kNone) return;
  DropQueued(number);
  if (lists_[number].under_way == 0) {
    Append(kLanding, number);
    RetireIfLanded(number, NowNs());
  }
}

TransferStats CopyThreads::Stats() const {
  TransferStats stats;
  const std::lock_guard lock(mutex_);
  const int64_t now_ns = NowNs();
  stats.by_kind = counts_;
  stats.busy_ns = busy_ns_ + units_busy_ * now_ns - busy_begun_ns_;
  stats.units_busy = units_busy_;
  stats.units = static_cast<int>(threads_.size());
  stats.queued_copies = static_cast<int>(copies_.size() - num_free_copies_);
  // Within a queue the first is the oldest.
  for (size_t queue = 0; queue < kLanding; ++queue) {
    const int32_t first = queues_[queue].first;
    if (first == kNone) continue;
    stats.oldest_queued_ns = std::max(stats.oldest_queued_ns, now_ns - lists_[first].submitted_ns);
  }
  return stats;
}

void CopyThreads::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    const int64_t now_ns = NowNs();
    const Batch batch = Take(now_ns);
    if (batch.num_copies > 0) {
      CallThread(now_ns, batch.bytes <= kBatchBytes);
      ++units_busy_;
      busy_begun_ns_ += now_ns;
      lock.unlock();
      for (size_t i = 0; i < batch.num_copies; ++i) {
        batch.copies[i].Run();
      }
      lock.lock();
      Finish(batch, now_ns, NowNs());
      continue;
    }
    if (stopping_) return;
    const int64_t start_ns = NextStart();
    if (start_ns == kNever || timekeeper_ns_ != kNever) {
      ++num_idle_;
      idle_.wait(lock);
      --num_idle_;
    } else {
      timekeeper_ns_ = start_ns;
      timekeeper_.wait_until(lock, ToTimePoint(start_ns));
      timekeeper_ns_ = kNever;
    }
  }
}

CopyThreads::Batch CopyThreads::Take(int64_t now_ns) {
  Batch batch;
  for (size_t queue = 0; queue < kLanding; ++queue) {
    // The raised queue alone mixes lanes, and it never holds more than one list.
    const int32_t first = queues_[queue].first;
    if (first == kNone || !LaneOpen(lanes_[LaneOf(lists_[first].kind)], now_ns)) continue;
    batch.list = first;
    Begin(&batch, now_ns);
    break;
  }
  return batch;
}

void CopyThreads::Begin(Batch* batch, int64_t now_ns) {
  List& list = lists_[batch->list];
  Lane& lane = lanes_[LaneOf(list.kind)];
  while (list.first_copy != kNone && batch->num_copies < kBatchCopies &&
         batch->bytes < kBatchBytes && LaneOpen(lane, now_ns)) {
    QueuedCopy& queued = copies_[list.first_copy];
    const double cost_ns =
        std::max(static_cast<double>(queued.copy.bytes) * ns_per_byte_, ns_per_place_);
    const double exact_ns = cost_ns + lane.carry_ns;
    const int64_t lane_ns = static_cast<int64_t>(exact_ns);
    lane.carry_ns = exact_ns - static_cast<double>(lane_ns);
    lane.free_ns += lane_ns;
    --lane.queued_copies;
    // A list that overtakes others may be given lane time from before it came; no copy lands sooner
    // than on an idle link.
    const int64_t landing_ns = std::max(lane.free_ns, list.submitted_ns + lane_ns) + latency_ns_;
    list.landing_ns = std::max(list.landing_ns, landing_ns);

    batch->copies[batch->num_copies++] = queued.copy;
    batch->bytes += queued.copy.bytes;
    const int32_t copy = list.first_copy;
    list.first_copy = queued.next;
    queued.next = free_copy_;
    free_copy_ = copy;
    ++num_free_copies_;
  }
  list.under_way += static_cast<int32_t>(batch->num_copies);
  if (list.first_copy == kNone) Unlink(batch->list);
}

void CopyThreads::Finish(const Batch& batch, int64_t begun_ns, int64_t now_ns) {
  --units_busy_;
  busy_begun_ns_ -= begun_ns;
  busy_ns_ += now_ns - begun_ns;
  List& list = lists_[batch.list];
  TransferCounts& counts = counts_[static_cast<size_t>(list.kind)];
  counts.finished_copies += batch.num_copies;
  counts.finished_bytes += batch.bytes;
  list.under_way -= static_cast<int32_t>(batch.num_copies);
  if (list.under_way > 0 || list.first_copy != kNone) return;
  Append(kLanding, batch.list);
  if (list.ticket == awaited_) awaited_copied_.notify_one();
  RetireIfLanded(batch.list, now_ns);
}

bool CopyThreads::LaneOpen(const Lane& lane, int64_t now_ns) const {
  return lane.free_ns <= now_ns + kLookAheadNs;
}

int64_t CopyThreads::NextStart() const {
  int64_t start_ns = kNever;
  for (const Lane& lane : lanes_) {
    if (lane.queued_copies > 0) start_ns = std::min(start_ns, lane.free_ns);
  }
  return start_ns;
}

void CopyThreads::CallThread(int64_t now_ns, bool back_soon) {
  const int64_t start_ns = NextStart();
  if (start_ns == kNever) return;
  const bool open = start_ns <= now_ns + kLookAheadNs;
  const bool no_timekeeper = timekeeper_ns_ == kNever;
  if (num_idle_ > 0 && (open || (no_timekeeper && !back_soon))) {
    idle_.notify_one();
  } else if (!no_timekeeper && (open || start_ns < timekeeper_ns_)) {
    timekeeper_.notify_one();
  }
}

int32_t CopyThreads::Find(Ticket ticket) const {
  if (ticket == kNoTicket) return kNone;
  AUGUR_CHECK(ticket >> kListBits <= num_submitted_);
  const uint64_t number = ticket & ((uint64_t{1} << kListBits) - 1);
  AUGUR_CHECK(number < lists_.size());
  return lists_[number].ticket == ticket ? static_cast<int32_t>(number) : kNone;
}

bool CopyThreads::RetireIfLanded(int32_t number, int64_t now_ns) {
  List& list = lists_[number];
  if (list.queue != kLanding || list.landing_ns > now_ns) return false;
  Unlink(number);
  list.ticket = kNoTicket;
  list.next = free_list_;
  free_list_ = number;
  return true;
}

// Lists land in nearly the order in which their last copies ended; one that waits behind a later
// one keeps its place a little longer than it must.
void CopyThreads::RetireLanded(int64_t now_ns) {
  while (queues_[kLanding].first != kNone && RetireIfLanded(queues_[kLanding].first, now_ns)) {
  }
}

void CopyThreads::DropQueued(int32_t number) {
  List& list = lists_[number];
  if (list.first_copy == kNone) return;
  Lane& lane = lanes_[LaneOf(list.kind)];
  while (list.first_copy != kNone) {
    const int32_t copy = list.first_copy;
    list.first_copy = copies_[copy].next;
    copies_[copy].next = free_copy_;
    free_copy_ = copy;
    ++num_free_copies_;
    --lane.queued_copies;
    ++counts_[static_cast<size_t>(list.kind)].cancelled_copies;
  }
  Unlink(number);
}

void CopyThreads::Append(size_t queue, int32_t number) {
  List& list = lists_[number];
  Queue& end = queues_[queue];
  list.queue = queue;
  list.previous = end.last;
  list.next = kNone;
  (end.last == kNone ? end.first : lists_[end.last].next) = number;
  end.last = number;
}

void CopyThreads::Unlink(int32_t number) {
  List& list = lists_[number];
  Queue& ends = queues_[list.queue];
  (list.previous == kNone ? ends.first : lists_[list.previous].next) = list.next;
  (list.next == kNone ? ends.last : lists_[list.next].previous) = list.previous;
  list.queue = kNumQueues;
  list.previous = kNone;
  list.next = kNone;
}

}  // namespace augur::memory
