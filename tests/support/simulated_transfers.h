// A transfer engine in virtual time, as awkward as transfer_engine.h allows: copies of a list run
// in random order on a few units, take random times, sometimes stall; bytes move when a copy
// begins, when it ends, or half and half. From Submit on a target holds garbage, so that reading
// before Done shows, and a source that changes before its copy ends is a fault.
//
// Time passes when somebody else moves the clock, and in Wait. The same calls at the same times
// with the same seed do the same.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "memory/base/clock.h"
#include "memory/transfer_engine.h"

namespace augur::tests {

struct SimulatedTransfersOptions {
  int units = 2;
  size_t queue_copies = 256;  // not begun; a longer list is taken when there is nothing else
  int64_t copy_ns = 1000;     // a copy takes 1 to 2 times as long
  int stall_one_in = 0;       // copies for one that takes 100 times as long; 0: none
};

class SimulatedTransfers final : public memory::TransferEngine {
 public:
  SimulatedTransfers(const SimulatedTransfersOptions& options, uint64_t seed,
                     memory::FakeClock* clock);

  memory::Ticket Submit(memory::TransferKind kind,
                        std::span<const memory::PageCopy> copies) override;
  bool CanSubmit(size_t num_copies) const override;
  bool Done(memory::Ticket ticket) override;
  void Wait(memory::Ticket ticket) override;
  void Cancel(memory::Ticket ticket) override;
  memory::TransferStats Stats() const override;

  // Nothing queued or under way.
  bool quiet() const { return lists_.empty(); }
  int64_t finished_copies() const { return finished_; }
  // What a caller did that the interface forbids; empty: nothing.
  const std::string& fault() const { return fault_; }

 private:
  static constexpr size_t kNumKinds = static_cast<size_t>(memory::TransferKind::kCount);

  struct Copy {
    memory::PageCopy copy;
    uint64_t sum = 0;        // of the source at Submit
    size_t moved_first = 0;  // bytes that move when it begins
  };
  struct List {
    memory::TransferKind kind = memory::TransferKind::kFetch;
    std::vector<Copy> waiting;
    int under_way = 0;
    bool done() const { return waiting.empty() && under_way == 0; }
  };
  struct Unit {
    bool busy = false;
    int64_t until_ns = 0;
    memory::Ticket ticket = memory::kNoTicket;
    Copy copy;
  };

  uint64_t Draw();
  List* Find(memory::Ticket ticket);
  Unit* NextToEnd();
  void RunUntil(int64_t now_ns);
  void Begin(Unit* unit, int64_t at_ns);
  void End(Unit* unit);
  memory::Ticket MostUrgent();
  void DropDone();

  const SimulatedTransfersOptions options_;
  memory::FakeClock* const clock_;
  uint64_t random_;
  memory::Ticket first_ = 1;  // ticket of lists_.front()
  std::deque<List> lists_;    // in order of submission; done ones leave at the front
  std::vector<std::vector<Copy>> spare_;
  std::deque<memory::Ticket> queues_[kNumKinds];
  memory::Ticket raised_ = memory::kNoTicket;  // that Wait waits for
  std::vector<Unit> units_;
  size_t queued_ = 0;
  uint64_t submitted_ = 0;
  int64_t finished_ = 0;
  std::string fault_;
};

}  // namespace augur::tests
