#include "memory/slot_group.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace augur::memory {
namespace {

// The empty slot, or the one stamped longest ago, for which `may_go` holds; -1 if there is none.
template <class MayGo>
int PickVictim(const SlotGroup& group, const MayGo& may_go) {
  int victim = -1;
  for (int slot = 0; slot < static_cast<int>(group.blocks.size()); ++slot) {
    if (!may_go(slot)) continue;
    if (group.blocks[slot] == kNoBlock) return slot;
    if (victim < 0 || group.stamps[slot] < group.stamps[victim]) victim = slot;
  }
  return victim;
}

}  // namespace

int FindSlot(const SlotGroup& group, int32_t block) {
  const auto found = std::find(group.blocks.begin(), group.blocks.end(), block);
  return found == group.blocks.end() ? -1 : static_cast<int>(found - group.blocks.begin());
}

void PlanSlots(const SlotGroup& group, std::span<const int32_t> wanted, int landed_blocks,
               SlotPlan* plan) {
  AUGUR_CHECK(wanted.size() <= group.blocks.size());
  plan->entry_slots.assign(wanted.size(), -1);
  plan->fetches.clear();
  plan->hits = 0;
  plan->must_wait = false;
  // Both ways round: which wanted blocks are here, and which slots are spoken for.
  std::vector<bool>& taken = plan->taken;
  taken.assign(group.blocks.size(), false);
  for (size_t slot = 0; slot < group.blocks.size(); ++slot) {
    if (group.blocks[slot] == kNoBlock) continue;
    const auto at = std::lower_bound(wanted.begin(), wanted.end(), group.blocks[slot]);
    if (at == wanted.end() || *at != group.blocks[slot]) continue;
    plan->entry_slots[at - wanted.begin()] = static_cast<int>(slot);
    taken[slot] = true;
    ++plan->hits;
  }
  for (size_t entry = 0; entry < wanted.size(); ++entry) {
    if (plan->entry_slots[entry] >= 0) continue;
    const int victim = PickVictim(
        group, [&](int slot) { return !taken[slot] && group.blocks[slot] < landed_blocks; });
    if (victim < 0) {
      plan->must_wait = true;
      return;
    }
    taken[victim] = true;
    plan->entry_slots[entry] = victim;
    plan->fetches.push_back({victim, wanted[entry]});
  }
}

void ApplySlotPlan(const SlotPlan& plan, std::span<const int32_t> wanted, int32_t stamp,
                   SlotGroup* group) {
  AUGUR_CHECK(!plan.must_wait && plan.entry_slots.size() == wanted.size());
  for (const SlotFetch& fetch : plan.fetches) group->blocks[fetch.slot] = fetch.block;
  for (size_t entry = 0; entry < wanted.size(); ++entry) {
    const int slot = plan.entry_slots[entry];
    AUGUR_CHECK(group->blocks[slot] == wanted[entry]);
    group->stamps[slot] = stamp;
  }
}

int PlanTailSlot(const SlotGroup& group, int landed_blocks, int init, int local_begin) {
  return PickVictim(group, [&](int slot) {
    const int32_t block = group.blocks[slot];
    return block == kNoBlock || (block < landed_blocks && block >= init && block < local_begin);
  });
}

std::string SlotPlan::ToString() const {
  std::string text = absl::StrCat(entry_slots.size(), " wanted, ", hits, " resident");
  if (must_wait) return absl::StrCat(text, ", no victim: wait for a write");
  for (const SlotFetch& fetch : fetches) {
    absl::StrAppend(&text, ", block ", fetch.block, " -> slot ", fetch.slot);
  }
  return text;
}

}  // namespace augur::memory
