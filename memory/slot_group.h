// The slots of one (sequence, layer, kv head): which block each holds, and the plan that makes a
// selection resident. Under `tiered` the host page is the truth and a slot a cache of it.
//
// Plain data and pure functions: PlanSlots decides, ApplySlotPlan changes the map, and whoever
// called them moves the bytes. On CUDA the same rule runs on the device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace augur::memory {

inline constexpr int32_t kNoBlock = -1;

// Views into the sequence's maps.
struct SlotGroup {
  std::span<int32_t> blocks;  // [slots] block in the slot, kNoBlock: empty
  std::span<int32_t> stamps;  // [slots] position of the last token that chose it
};

struct SlotFetch {
  int slot = 0;
  int32_t block = 0;
  bool operator==(const SlotFetch&) const = default;
};

struct SlotPlan {
  std::vector<int> entry_slots;    // slot of each wanted block, in order
  std::vector<SlotFetch> fetches;  // blocks to copy into slots, victims already chosen
  int hits = 0;                    // wanted blocks that were resident
  // Too few victims: every slot is wanted or holds a block whose write has not landed. The plan is
  // void; wait for a write and plan again.
  bool must_wait = false;

  std::vector<bool> taken;  // scratch of PlanSlots: slots spoken for

  std::string ToString() const;
};

// Makes `wanted` (ascending, distinct, at most as many as slots) resident. Victims: empty slots
// first, then the least stamp, the lower slot of equals; never a wanted block, never one at or
// behind `landed_blocks` (its host page is not written yet).
void PlanSlots(const SlotGroup& group, std::span<const int32_t> wanted, int landed_blocks,
               SlotPlan* plan);

// Enters the fetched blocks and stamps all wanted ones.
void ApplySlotPlan(const SlotPlan& plan, std::span<const int32_t> wanted, int32_t stamp,
                   SlotGroup* group);

// The slot of `block`, or -1.
int FindSlot(const SlotGroup& group, int32_t block);

// The slot that a new tail block takes: an empty one, else the least stamp among blocks below
// `landed_blocks` that are outside [0, init) and [local_begin, ...). -1: wait for a write.
int PlanTailSlot(const SlotGroup& group, int landed_blocks, int init, int local_begin);

}  // namespace augur::memory
