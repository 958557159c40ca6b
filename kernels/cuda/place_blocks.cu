#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_page.h"
#include "kernels/ops/place_blocks.h"
#include "kernels/placed_group.h"

namespace augur::kernels {
namespace {

constexpr int kWarp = 32;
// A thread has one slot and one entry of the choice.
constexpr int kMaxThreads = 1024;

// A thread's slot and entry, asked for at once: each wait for memory costs a good part of the call.
struct Holding {
  int32_t block = 0;  // of the entry
  int32_t held = kEmptySlot;
  int32_t stamp = 0;
  float cost = kSlotHasValues;
  std::byte* page = nullptr;  // of the slot
};

// Where the values of an entry are.
enum class EntryValues : int8_t { kAtSource, kInSlot, kComing };

// What a CTA's threads tell each other.
struct PlaceScratch {
  std::byte* slot_pages[kMaxThreads];
  int32_t wanted[kMaxThreads];
  int16_t entry_slots[kMaxThreads];  // -1: has none yet
  EntryValues entry_values[kMaxThreads];
  int32_t victim_ages[kMaxThreads];   // by rising slot
  int16_t victim_slots[kMaxThreads];  // likewise
  int16_t victims[kMaxThreads];       // in the order in which they go
  int warp_counts[kMaxThreads / kWarp];
  int counts[4];  // chosen, reused, spare, moved
  int first_copy;
};

// How many threads before this one have `value`s, summed; *total is that of all threads. Sums of
// the lower half are below 2^16, so two counts go in one.
__device__ int SumBefore(int value, PlaceScratch& scratch, int* total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int upto = value;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, upto, step);
    if (lane >= step) upto += other;
  }
  __syncthreads();  // warp_counts may still be read
  if (lane == kWarp - 1) scratch.warp_counts[warp] = upto;
  __syncthreads();
  int before = 0, sum = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) {
    const int count = scratch.warp_counts[w];
    before += w < warp ? count : 0;
    sum += count;
  }
  *total = sum;
  return before + upto - value;
}

// The call's CTAs add up their copies in a ticket, which says where this CTA's begin.
__device__ unsigned long long TakeTicket(unsigned long long* tickets, int copies) {
  return atomicAdd(tickets, (1ull << 32) + static_cast<unsigned>(copies));
}
__device__ int FirstCopyOf(unsigned long long ticket) {
  return static_cast<int>(ticket & 0xffffffffu);
}

// The last CTA, which finds that all others have been, hands the sum over and clears it for the
// next call.
__device__ void EndTickets(const PlaceBlocksParams& params, unsigned long long ticket, int copies,
                           unsigned long long* tickets) {
  if (ticket >> 32 != gridDim.x - 1) return;
  if (params.num_copies != nullptr) *params.num_copies = FirstCopyOf(ticket) + copies;
  *tickets = 0;
}

__device__ int EntryOf(const PlaceScratch& scratch, int count, int32_t block) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (scratch.wanted[middle] < block) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && scratch.wanted[low] == block ? low : -1;
}

__device__ void CountWarp(bool holds, int* count) {
  const unsigned votes = __ballot_sync(0xffffffffu, holds);
  if (threadIdx.x % kWarp == 0 && votes != 0) atomicAdd(count, __popc(votes));
}

// Enters the slots of blocks that have one, and returns the age of this thread's slot: -1 where it
// is none or holds a block of the choice; the greater an age, the earlier the slot becomes a
// victim.
__device__ int TakeHits(const PlaceBlocksParams& params, const PlaceSegment& segment,
                        const PlacedGroup& group, const Holding& mine, PlaceScratch& scratch) {
  const int thread = threadIdx.x;
  const int position = segment.rows.first_position;
  const int local_begin = position / kBlockTokens - segment.local + 1;
  const auto by_scores = [&](int32_t block) {
    return block >= segment.init && block < local_begin;
  };
  CountWarp(thread < group.count && by_scores(mine.block), &scratch.counts[0]);
  int entry = -1, age = -1;
  if (thread < segment.num_slots) {
    if (mine.held != kEmptySlot) entry = EntryOf(scratch, group.count, mine.held);
    // Stamps are positions up to the row's own, or -1.
    age = mine.held == kEmptySlot ? position + 2 : min(max(position - mine.stamp, 0), position + 1);
  }
  const bool moves =
      entry >= 0 && mine.cost >= 0.0f && (!segment.keys_only || mine.cost >= params.move_cost);
  if (entry >= 0) {
    scratch.entry_slots[entry] = static_cast<int16_t>(thread);
    scratch.entry_values[entry] = moves              ? EntryValues::kComing
                                  : mine.cost < 0.0f ? EntryValues::kInSlot
                                                     : EntryValues::kAtSource;
    group.slot_stamps[thread] = position;
    if (moves) group.slot_costs[thread] = kSlotHasValues;
    age = -1;
  }
  const bool counts = entry >= 0 && by_scores(mine.held);
  CountWarp(counts && mine.stamp == position - 1, &scratch.counts[1]);
  CountWarp(counts && mine.stamp != position - 1, &scratch.counts[2]);
  if (group.slot_costs != nullptr) CountWarp(moves, &scratch.counts[3]);
  return age;
}

// The `misses` oldest slots, the lower one of equals, in order: scratch.victims. `max_age` is above
// all ages.
__device__ void PickVictims(int age, int max_age, int misses, PlaceScratch& scratch) {
  // The greatest age that enough slots have reached.
  int least = 0, above = max_age;
  while (above - least > 1) {
    const int middle = least + (above - least) / 2;
    if (__syncthreads_count(age >= middle) >= misses) {
      least = middle;
    } else {
      above = middle;
    }
  }
  // All that are older go, and of those of this age as many as are left to find.
  const bool is_older = age > least, is_equal = age == least;
  int totals;
  const int before = SumBefore((is_older ? 1 : 0) + (is_equal ? 1 << 16 : 0), scratch, &totals);
  const int of_equals = misses - (totals & 0xffff);
  const int equals_before = before >> 16;
  if (is_older || (is_equal && equals_before < of_equals)) {
    const int place = (before & 0xffff) + min(equals_before, of_equals);
    scratch.victim_ages[place] = age;
    scratch.victim_slots[place] = static_cast<int16_t>(threadIdx.x);
  }
  __syncthreads();
  const int thread = threadIdx.x;
  if (thread < misses) {
    const int mine = scratch.victim_ages[thread];
    int rank = 0;
    for (int other = 0; other < misses; ++other) {
      const int theirs = scratch.victim_ages[other];
      rank += theirs > mine || (theirs == mine && other < thread) ? 1 : 0;
    }
    scratch.victims[rank] = scratch.victim_slots[thread];
  }
}

__device__ void AddCounts(const PlaceBlocksParams& params, const PlaceScratch& scratch, int misses,
                          bool keys_only) {
  if (params.placement == nullptr || threadIdx.x > 5) return;
  static_assert(sizeof(PlacementCounts) == 6 * sizeof(unsigned long long));
  const int place = threadIdx.x;
  const int count = place < 3    ? scratch.counts[place]
                    : place == 3 ? misses
                    : place == 4 ? (keys_only ? misses : 0)
                                 : scratch.counts[3];
  if (count == 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(params.placement) + threadIdx.x,
            static_cast<unsigned long long>(count));
}

// Copies of one entry's page, of which `at` is the first: in halves where there are any.
__device__ void ListCopies(const PlaceBlocksParams& params, const std::byte* from, std::byte* to,
                           bool keys, bool values, PageCopy* at) {
  if (params.half_bytes == 0) {
    *at = {from, to};
    return;
  }
  if (keys) *at++ = {from, to};
  if (values) *at = {from + params.source_half_bytes, to + params.half_bytes};
}

__device__ void PlaceInSlots(const PlaceBlocksParams& params, const PlaceSegment& segment,
                             const PlacedGroup& group, const Holding& mine, PlaceScratch& scratch,
                             unsigned long long* tickets) {
  const int thread = threadIdx.x;
  const bool is_entry = thread < group.count;
  std::byte* source = nullptr;
  if (is_entry) {
    source = group.sources[mine.block];  // of hits, too, rather than waiting for those of others
    scratch.wanted[thread] = mine.block;
    scratch.entry_slots[thread] = -1;
  }
  if (thread < segment.num_slots) scratch.slot_pages[thread] = mine.page;
  if (thread < 4) scratch.counts[thread] = 0;
  __syncthreads();
  const int age = TakeHits(params, segment, group, mine, scratch);
  __syncthreads();
  const bool keys_only = group.slot_costs != nullptr && segment.keys_only;
  const bool is_miss = is_entry && scratch.entry_slots[thread] < 0;
  EntryValues values = keys_only ? EntryValues::kAtSource : EntryValues::kComing;
  if (is_entry && !is_miss) values = scratch.entry_values[thread];
  int copies = is_miss ? 1 : 0;
  if (params.half_bytes > 0 && is_entry && values == EntryValues::kComing) ++copies;
  int totals;
  const int before = SumBefore((is_miss ? 1 : 0) + (copies << 16), scratch, &totals);
  const int misses = totals & 0xffff, all_copies = totals >> 16;
  // Asked for as early as may be, and looked at as late.
  unsigned long long ticket = 0;
  if (thread == 0) ticket = TakeTicket(tickets, all_copies);
  AddCounts(params, scratch, misses, keys_only);
  if (misses > 0) PickVictims(age, segment.rows.first_position + 3, misses, scratch);
  if (all_copies > 0) {
    if (thread == 0) scratch.first_copy = FirstCopyOf(ticket);
    __syncthreads();
  }
  if (is_entry) {
    int slot = scratch.entry_slots[thread];
    if (is_miss) {
      slot = scratch.victims[before & 0xffff];
      group.slot_blocks[slot] = mine.block;
      group.slot_stamps[slot] = segment.rows.first_position;
      if (group.slot_costs != nullptr) group.slot_costs[slot] = keys_only ? 0.0f : kSlotHasValues;
    }
    std::byte* const page = scratch.slot_pages[slot];
    if (copies > 0) {
      ListCopies(params, source, page, is_miss, values == EntryValues::kComing,
                 params.copies + scratch.first_copy + (before >> 16));
    }
    group.pages[thread] = page;
    const bool at_source = values == EntryValues::kAtSource;
    if (group.values != nullptr) {
      group.values[thread] =
          at_source ? source + params.source_half_bytes : page + params.half_bytes;
    }
    if (group.source_slots != nullptr) group.source_slots[thread] = at_source ? slot : -1;
  }
  if (thread == 0) EndTickets(params, ticket, all_copies, tickets);
}

// One CTA a segment and kv head.
__global__ void __launch_bounds__(kMaxThreads)
    PlaceBlocksKernel(PlaceBlocksParams params, unsigned long long* tickets) {
  WaitForPrevious();
  __shared__ PlaceScratch scratch;
  const int thread = threadIdx.x;
  const int s = blockIdx.x / params.num_kv_heads;
  PlaceSegment segment{};
  if (s < params.num_segments) segment = params.segments[s];
  if (segment.rows.num_rows == 0) {
    if (thread == 0) EndTickets(params, TakeTicket(tickets, 0), 0, tickets);
    return;
  }
  const PlacedGroup group = GroupOf(params, segment, blockIdx.x % params.num_kv_heads);
  const bool has_slots = group.slot_blocks != nullptr;
  Holding mine;
  if (thread < params.selection_stride) mine.block = group.blocks[thread];  // maybe behind the end
  if (has_slots && thread < segment.num_slots) {
    mine.held = group.slot_blocks[thread];
    mine.stamp = group.slot_stamps[thread];
    mine.page = group.slot_pages[thread];
    if (group.slot_costs != nullptr) mine.cost = group.slot_costs[thread];
  }
  // The CPU's CHECKs.
  if (segment.rows.num_rows > 1 || group.count > params.selection_stride) __trap();
  if (thread < group.count && (mine.block < 0 || mine.block >= segment.source_stride)) __trap();
  if (has_slots) {
    if (segment.num_slots > params.max_slots || group.count > segment.num_slots) __trap();
    if (params.copies == nullptr || params.num_copies == nullptr) __trap();
    PlaceInSlots(params, segment, group, mine, scratch, tickets);
    return;
  }
  if (thread < group.count) {
    std::byte* const page = group.sources[mine.block];
    group.pages[thread] = page;
    if (group.values != nullptr) group.values[thread] = page + params.half_bytes;
    if (group.source_slots != nullptr) group.source_slots[thread] = -1;
  }
  if (thread == 0) EndTickets(params, TakeTicket(tickets, 0), 0, tickets);
}

}  // namespace

void CudaBackend::PlaceBlocks(const PlaceBlocksParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0);
  const int most = std::max({params.max_slots, params.selection_stride, 1});
  AUGUR_CHECK(most <= kMaxThreads);
  BindThread();
  // Without segments, too, the list has a length.
  const int ctas = std::max(params.num_segments * params.num_kv_heads, 1);
  LaunchKernel(stream_, {dim3(ctas), dim3((most + kWarp - 1) / kWarp * kWarp)}, PlaceBlocksKernel,
               params, place_tickets_);
}

}  // namespace augur::kernels
