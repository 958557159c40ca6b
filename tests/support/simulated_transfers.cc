#include "tests/support/simulated_transfers.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/check.h"

namespace augur::tests {
namespace {

using memory::kNoTicket;
using memory::PageCopy;
using memory::Ticket;
using memory::TransferKind;

constexpr int kGarbage = 0xDB;
constexpr int64_t kStall = 100;

uint64_t SumOf(const PageCopy& copy) {
  uint64_t sum = 0;
  for (size_t at = 0; at + sizeof(uint64_t) <= copy.bytes_read(); at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, copy.from + at, sizeof(word));
    sum += word;
  }
  return sum;
}

}  // namespace

SimulatedTransfers::SimulatedTransfers(const SimulatedTransfersOptions& options, uint64_t seed,
                                       memory::FakeClock* clock)
    : options_(options), clock_(clock), random_(seed * 2 + 1), units_(options.units) {}

// xorshift64*
uint64_t SimulatedTransfers::Draw() {
  random_ ^= random_ >> 12;
  random_ ^= random_ << 25;
  random_ ^= random_ >> 27;
  return (random_ * 0x2545f4914f6cdd1dull) >> 16;
}

SimulatedTransfers::List* SimulatedTransfers::Find(Ticket ticket) {
  if (ticket < first_ || ticket == kNoTicket) return nullptr;
  AUGUR_CHECK(ticket - first_ < lists_.size());
  return &lists_[ticket - first_];
}

bool SimulatedTransfers::CanSubmit(size_t num_copies) const {
  return queued_ == 0 || queued_ + num_copies <= options_.queue_copies;
}

Ticket SimulatedTransfers::Submit(TransferKind kind, std::span<const PageCopy> copies) {
  RunUntil(clock_->NowNs());
  if (copies.empty() || !CanSubmit(copies.size())) return kNoTicket;
  const Ticket ticket = first_ + lists_.size();
  List& list = lists_.emplace_back();
  list.kind = kind;
  if (!spare_.empty()) {
    list.waiting = std::move(spare_.back());
    spare_.pop_back();
  }
  for (const PageCopy& copy : copies) {
    const uint64_t way = Draw() % 3;  // of moving the bytes
    list.waiting.push_back({copy, SumOf(copy), copy.fp8 == nullptr ? way * copy.bytes / 2 : 0});
  }
  for (const PageCopy& copy : copies) std::memset(copy.to, kGarbage, copy.bytes_written());
  queues_[static_cast<size_t>(kind)].push_back(ticket);
  queued_ += copies.size();
  submitted_ += copies.size();
  for (Unit& unit : units_) {
    if (!unit.busy) Begin(&unit, clock_->NowNs());
  }
  return ticket;
}

bool SimulatedTransfers::Done(Ticket ticket) {
  RunUntil(clock_->NowNs());
  const List* list = Find(ticket);
  return list == nullptr || list->done();
}

void SimulatedTransfers::Wait(Ticket ticket) {
  raised_ = ticket;
  while (!Done(ticket)) {
    const Unit* next = NextToEnd();
    AUGUR_CHECK(next != nullptr);
    clock_->Advance(std::max<int64_t>(0, next->until_ns - clock_->NowNs()));
  }
  raised_ = kNoTicket;
}

void SimulatedTransfers::Cancel(Ticket ticket) {
  RunUntil(clock_->NowNs());
  List* list = Find(ticket);
  if (list == nullptr) return;
  queued_ -= list->waiting.size();
  list->waiting.clear();
  DropDone();
}

void SimulatedTransfers::RunUntil(int64_t now_ns) {
  for (;;) {
    Unit* unit = NextToEnd();
    if (unit == nullptr || unit->until_ns > now_ns) break;
    End(unit);
    Begin(unit, unit->until_ns);
  }
  DropDone();
}

SimulatedTransfers::Unit* SimulatedTransfers::NextToEnd() {
  Unit* next = nullptr;
  for (Unit& unit : units_) {
    if (unit.busy && (next == nullptr || unit.until_ns < next->until_ns)) next = &unit;
  }
  return next;
}

Ticket SimulatedTransfers::MostUrgent() {
  if (List* raised = Find(raised_); raised != nullptr && !raised->waiting.empty()) return raised_;
  for (std::deque<Ticket>& queue : queues_) {
    while (!queue.empty()) {
      const List* list = Find(queue.front());
      if (list != nullptr && !list->waiting.empty()) return queue.front();
      queue.pop_front();
    }
  }
  return kNoTicket;
}

void SimulatedTransfers::Begin(Unit* unit, int64_t at_ns) {
  const Ticket ticket = MostUrgent();
  if (ticket == kNoTicket) return;
  List& list = *Find(ticket);
  std::swap(list.waiting[Draw() % list.waiting.size()], list.waiting.back());
  unit->copy = list.waiting.back();
  list.waiting.pop_back();
  --queued_;
  ++list.under_way;
  unit->busy = true;
  unit->ticket = ticket;
  int64_t takes_ns = options_.copy_ns + static_cast<int64_t>(Draw() % (options_.copy_ns + 1));
  if (options_.stall_one_in > 0 && Draw() % options_.stall_one_in == 0) takes_ns *= kStall;
  unit->until_ns = at_ns + takes_ns;
  std::memcpy(unit->copy.copy.to, unit->copy.copy.from, unit->copy.moved_first);
}

void SimulatedTransfers::End(Unit* unit) {
  const Copy& copy = unit->copy;
  if (copy.copy.fp8 != nullptr) {
    copy.copy.Run();
  } else {
    std::memcpy(copy.copy.to + copy.moved_first, copy.copy.from + copy.moved_first,
                copy.copy.bytes - copy.moved_first);
  }
  if (SumOf(copy.copy) != copy.sum && fault_.empty()) {
    fault_ = "the source of a copy changed before the copy had ended";
  }
  --Find(unit->ticket)->under_way;
  unit->busy = false;
  ++finished_;
}

void SimulatedTransfers::DropDone() {
  while (!lists_.empty() && lists_.front().done()) {
    spare_.push_back(std::move(lists_.front().waiting));
    lists_.pop_front();
    ++first_;
  }
}

memory::TransferStats SimulatedTransfers::Stats() const {
  memory::TransferStats stats;
  stats.units = options_.units;
  stats.queued_copies = static_cast<int>(queued_);
  stats.by_kind[0].submitted_copies = submitted_;
  stats.by_kind[0].finished_copies = static_cast<uint64_t>(finished_);
  return stats;
}

}  // namespace augur::tests
