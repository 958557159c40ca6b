// How the choices of successive tokens hang together, of one (layer, kv head) of one sequence:
// which share was chosen in the step before, how deep the others lie in the stack of blocks by the
// time they were last chosen, and how many of all a group with spare slots would have had.
//
// Stack and reach are those of kernels/ops/drive_choice.h, so that a law that is measured here
// draws choices that measure alike; slots follow memory/slot_group.h, the daemon's own rule.
//
// Thread: one. Ownership: counts are the caller's. Units: blocks. Failure: none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/ops/drive_choice.h"
#include "kernels/ops/select_blocks.h"
#include "memory/slot_group.h"

namespace augur::bench {

// Sums over tokens, and over sequences, layers and heads where they share one. Forced blocks are
// left out.
struct ReuseCounts {
  int64_t chosen = 0;
  int64_t reused = 0;                   // chosen by the token before, too
  int64_t unseen = 0;                   // of the others, those that no token had chosen before
  std::vector<int64_t> depths = {};     // of the rest, by place in the stack
  std::vector<int64_t> slot_hits = {};  // of all chosen, by number of spare slots

  int64_t others() const { return chosen - reused; }
  double reuse() const { return chosen == 0 ? 0 : double(reused) / double(chosen); }
  double hits(size_t spare) const { return chosen == 0 ? 0 : double(slot_hits[spare]) / chosen; }
  void Add(const ReuseCounts& more);
};

// Of tokens that choose `places` free blocks each.
kernels::StackLaw LawOf(const ReuseCounts& counts, int places);

class BlockReuse {
 public:
  // spares: numbers of spare slots.
  BlockReuse(const kernels::SelectionBudget& budget, std::span<const int> spares);
  // `chosen`: ascending, forced blocks among them, of the token at `position`; positions follow
  // each other. counts: null for tokens that are history alone.
  void Step(int position, std::span<const int32_t> chosen, ReuseCounts* counts);

 private:
  struct Slots {
    std::vector<int32_t> blocks, stamps;
  };
  bool IsFree(int32_t block, int position) const;
  void CountStack(int position, std::span<const int32_t> chosen, ReuseCounts* counts);
  void MoveUp(int position, std::span<const int32_t> chosen);
  void Place(int position, std::span<const int32_t> chosen, ReuseCounts* counts);

  const kernels::SelectionBudget budget_;
  std::vector<Slots> slots_;     // [spares]
  std::vector<int32_t> before_;  // chosen by the token before, ascending
  std::vector<int32_t> stack_;   // free blocks; those that were never chosen last
  std::vector<bool> seen_;       // [blocks]
  memory::SlotPlan plan_;
};

}  // namespace augur::bench
