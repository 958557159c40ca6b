#include "tests/bench/block_reuse.h"

#include <algorithm>
#include <limits>

#include "kernels/kv_page.h"

namespace augur::bench {
namespace {

void AddTo(std::vector<int64_t>* sums, const std::vector<int64_t>& more) {
  sums->resize(std::max(sums->size(), more.size()));
  for (size_t i = 0; i < more.size(); ++i) (*sums)[i] += more[i];
}

bool Holds(std::span<const int32_t> ascending, int32_t block) {
  return std::binary_search(ascending.begin(), ascending.end(), block);
}

}  // namespace

void ReuseCounts::Add(const ReuseCounts& more) {
  chosen += more.chosen;
  reused += more.reused;
  unseen += more.unseen;
  AddTo(&depths, more.depths);
  AddTo(&slot_hits, more.slot_hits);
}

kernels::StackLaw LawOf(const ReuseCounts& counts, int places) {
  using kernels::StackLaw;
  StackLaw law;
  int64_t below = 0;
  int depth = 0;
  const double others = std::max<double>(1, static_cast<double>(counts.others()));
  for (int bin = 0; bin < StackLaw::kBins; ++bin) {
    const int end = places + places * (bin + 1) / StackLaw::kBinsPerChoice;
    for (; depth < end && depth < static_cast<int>(counts.depths.size()); ++depth) {
      below += counts.depths[depth];
    }
    law.ends[bin] = static_cast<uint32_t>(static_cast<double>(below) / others * 65536.0);
  }
  return law;
}

BlockReuse::BlockReuse(const kernels::SelectionBudget& budget, std::span<const int> spares)
    : budget_(budget) {
  for (const int spare : spares) {
    const size_t slots = budget.top_k + spare;
    slots_.push_back({std::vector<int32_t>(slots, memory::kNoBlock), std::vector<int32_t>(slots)});
  }
}

void BlockReuse::Step(int position, std::span<const int32_t> chosen, ReuseCounts* counts) {
  // Blocks that have left the window go below all others.
  const int end = position / kernels::kBlockTokens + 1 - budget_.local;
  for (int block = budget_.init + static_cast<int>(stack_.size()); block < end; ++block) {
    stack_.push_back(block);
    seen_.push_back(false);
  }
  if (counts != nullptr) CountStack(position, chosen, counts);
  MoveUp(position, chosen);
  Place(position, chosen, counts);
  before_.assign(chosen.begin(), chosen.end());
}

bool BlockReuse::IsFree(int32_t block, int position) const {
  return block >= budget_.init && block < position / kernels::kBlockTokens + 1 - budget_.local;
}

void BlockReuse::CountStack(int position, std::span<const int32_t> chosen, ReuseCounts* counts) {
  for (const int32_t block : chosen) {
    if (!IsFree(block, position)) continue;
    ++counts->chosen;
    if (Holds(before_, block)) {
      ++counts->reused;
    } else if (!seen_[block - budget_.init]) {
      ++counts->unseen;
    } else {
      const size_t depth = std::find(stack_.begin(), stack_.end(), block) - stack_.begin();
      counts->depths.resize(std::max(counts->depths.size(), depth + 1));
      ++counts->depths[depth];
    }
  }
}

void BlockReuse::MoveUp(int position, std::span<const int32_t> chosen) {
  std::stable_partition(stack_.begin(), stack_.end(),
                        [&](int32_t block) { return Holds(chosen, block); });
  for (const int32_t block : chosen) {
    if (IsFree(block, position)) seen_[block - budget_.init] = true;
  }
}

void BlockReuse::Place(int position, std::span<const int32_t> chosen, ReuseCounts* counts) {
  if (counts != nullptr) counts->slot_hits.resize(slots_.size());
  for (size_t i = 0; i < slots_.size(); ++i) {
    memory::SlotGroup group{slots_[i].blocks, slots_[i].stamps};
    for (const int32_t block : chosen) {
      if (counts == nullptr || !IsFree(block, position)) continue;
      counts->slot_hits[i] += memory::FindSlot(group, block) >= 0 ? 1 : 0;
    }
    memory::PlanSlots(group, chosen, std::numeric_limits<int>::max(), &plan_);
    memory::ApplySlotPlan(plan_, chosen, position, &group);
  }
}

}  // namespace augur::bench
