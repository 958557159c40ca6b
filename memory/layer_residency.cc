#include "memory/layer_residency.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"
#include "kernels/kv_page.h"

namespace augur::memory {
namespace {

constexpr int kBlockTokens = kernels::kBlockTokens;
constexpr int32_t kDistanceSample = 16;  // tokens between measurements of the stack distance

// Blocks that a step's prefill chunks write, at most: whole blocks of its rows, and one begun by
// each sequence.
int StagedPlaces(const ResidencyLimits& limits) {
  return limits.max_rows / kBlockTokens + limits.max_segments;
}

}  // namespace

int StagingPages(const KvLayout& layout, const ResidencyLimits& limits) {
  return (2 * StagedPlaces(limits) + limits.fetch_blocks) * layout.num_kv_heads;
}

LayerResidency::LayerResidency(KvStore* store, const ResidencyLimits& limits, ResidencyStats* stats,
                               const Clock* clock)
    : store_(store),
      pools_(store->pools()),
      limits_(limits),
      stats_(stats),
      clock_(clock),
      staged_places_(StagedPlaces(limits)),
      requests_{std::vector<LayerTickets>(pools_.layout.num_layers),
                std::vector<LayerTickets>(pools_.layout.num_layers)} {
  if (pools_.num_host_blocks == 0) return;
  AUGUR_CHECK(pools_.num_staging_pages >= StagingPages(pools_.layout, limits));
  const size_t entries = size_t(pools_.layout.num_kv_heads) * limits.fetch_blocks;
  fetch_held_.assign(entries, kNoBlock);
  fetch_stamps_.assign(entries, -1);
}

std::byte* LayerResidency::StagedPage(int layer, int place, int kv_head) const {
  AUGUR_CHECK(place >= 0 && place < staged_places_);
  return pools_.staging_page((layer % 2 * staged_places_ + place) * pools_.layout.num_kv_heads +
                             kv_head);
}

std::byte* LayerResidency::FetchPage(int kv_head, int slot) const {
  return pools_.staging_page(2 * staged_places_ * pools_.layout.num_kv_heads +
                             kv_head * limits_.fetch_blocks + slot);
}

SlotGroup LayerResidency::FetchGroup(int kv_head) {
  const size_t begin = size_t(kv_head) * limits_.fetch_blocks;
  return {std::span(fetch_held_).subspan(begin, limits_.fetch_blocks),
          std::span(fetch_stamps_).subspan(begin, limits_.fetch_blocks)};
}

void LayerResidency::PrepareTail(SequenceKv* kv, int position, const ForcedBlocks& forced) {
  if (!kv->tiered()) return;
  if (!kv->value_moves.empty()) {
    WaitTimed(kv->value_moves, 1, WaitCause::kPrefetchLate);
    kv->value_moves.clear();
  }
  const int block = position / kBlockTokens;
  const int local_begin = block - std::max(forced.local, 1) + 1;
  for (int layer = 1; layer < pools_.layout.num_layers; ++layer) {
    for (int head = 0; head < pools_.layout.num_kv_heads; ++head) {
      const SlotGroup group = kv->group(pools_.layout, layer, head);
      if (FindSlot(group, block) >= 0) continue;
      AUGUR_CHECK(position % kBlockTokens == 0);
      int slot = PlanTailSlot(group, kv->landed_blocks[layer], forced.init, local_begin);
      while (slot < 0) {
        WaitForWrite(kv, layer);
        slot = PlanTailSlot(group, kv->landed_blocks[layer], forced.init, local_begin);
      }
      group.blocks[slot] = block;
      group.stamps[slot] = position;
      kv->slot_has_values[kv->slot_index(pools_.layout, layer, head, slot)] = 1;
    }
  }
}

void LayerResidency::WaitForWrite(SequenceKv* kv, int layer) {
  AUGUR_CHECK(!kv->writes.empty());
  const Ticket ticket = kv->writes.front().ticket;
  WaitTimed({&ticket, 1}, layer, WaitCause::kFetch);
  store_->PollWrites(kv);
}

void LayerResidency::PlanOrWait(SequenceKv* kv, int layer, const SlotGroup& group,
                                std::span<const int32_t> wanted) {
  PlanSlots(group, wanted, kv->landed_blocks[layer], &plan_);
  while (plan_.must_wait) {
    WaitForWrite(kv, layer);
    PlanSlots(group, wanted, kv->landed_blocks[layer], &plan_);
  }
}

void LayerResidency::CountChoice(const BlockRequest& row, int layer, const SlotGroup& group,
                                 std::span<const int32_t> wanted) {
  ResidencyStats::Layer& counts = stats_->layers[layer];
  const int local_begin = row.position / kBlockTokens - row.forced.local + 1;
  uint64_t chosen = 0, reused = 0;
  for (size_t entry = 0; entry < wanted.size(); ++entry) {
    const int32_t block = wanted[entry];
    if (block < row.forced.init || block >= local_begin) continue;
    ++chosen;
    const int slot = FindSlot(group, block);
    if (slot < 0) continue;
    const int32_t stamp = group.stamps[slot];
    const bool last = stamp == row.position - 1;
    reused += last ? 1 : 0;
    (last ? stats_->resident_last : stats_->resident_spare) += 1;
    if (row.position % kDistanceSample == 0) {
      const auto newer = std::count_if(group.stamps.begin(), group.stamps.end(),
                                       [stamp](int32_t other) { return other > stamp; });
      stats_->stack_distance.Observe(static_cast<double>(newer + 1));
    }
  }
  counts.chosen_blocks += chosen;
  counts.reused_blocks += reused;
}

// A block into the slot that the plan gives it: keys alone where its values are sampled.
void LayerResidency::CopyBlock(const BlockRequest& row, int layer, int kv_head,
                               const SlotFetch& fetch, std::vector<PageCopy>* copies) {
  SequenceKv* kv = row.kv;
  // A chunk leaves blocks behind that no slot holds and whose write is under way.
  while (fetch.block >= kv->landed_blocks[layer]) WaitForWrite(kv, layer);
  const bool whole = row.values == nullptr || limits_.value_fetch == ValueFetch::kWhole;
  const size_t bytes =
      whole ? pools_.layout.host_page_bytes() : pools_.layout.half_host_page_bytes();
  copies->push_back({pools_.host_page(kv->host_blocks[fetch.block], layer, kv_head),
                     kv->slot_page(pools_, layer, kv_head, fetch.slot), bytes, pools_.fp8});
  const size_t index = kv->slot_index(pools_.layout, layer, kv_head, fetch.slot);
  kv->slot_has_values[index] = whole ? 1 : 0;
  kv->slot_costs[index] = 0.0f;
  (whole ? stats_->page_bytes : stats_->key_bytes) += bytes;
}

const std::byte* LayerResidency::ValuesOf(SequenceKv* kv, int layer, int kv_head, int slot,
                                          int block) {
  const bool here = kv->slot_has_values[kv->slot_index(pools_.layout, layer, kv_head, slot)] != 0;
  if (here) return kv->slot_page(pools_, layer, kv_head, slot) + pools_.layout.half_page_bytes();
  return pools_.host_page(kv->host_blocks[block], layer, kv_head) +
         pools_.layout.half_host_page_bytes();
}

void LayerResidency::NoteValueRows(SequenceKv* kv, int layer, const int32_t* blocks,
                                   const int32_t* counts, const int32_t* entry_rows, int stride) {
  const size_t row_bytes = pools_.layout.host_row_bytes();
  const size_t half = pools_.layout.half_host_page_bytes();
  copies_.clear();
  for (int head = 0; head < pools_.layout.num_kv_heads; ++head) {
    const SlotGroup group = kv->group(pools_.layout, layer, head);
    for (int entry = 0; entry < counts[head]; ++entry) {
      const size_t at = size_t(head) * stride + entry;
      if (entry_rows[at] == 0) continue;
      const int block = blocks == nullptr ? entry : blocks[at];
      const int slot = FindSlot(group, block);
      const size_t index = slot < 0 ? 0 : kv->slot_index(pools_.layout, layer, head, slot);
      if (slot >= 0 && kv->slot_has_values[index] != 0) continue;
      const size_t bytes = entry_rows[at] * row_bytes;
      stats_->host_rows += entry_rows[at];
      stats_->row_bytes += bytes;
      if (slot < 0 || limits_.value_fetch != ValueFetch::kAuto) continue;
      kv->slot_costs[index] += static_cast<float>(LinkNs(static_cast<double>(bytes)));
      if (kv->slot_costs[index] < static_cast<float>(LinkNs(static_cast<double>(half)))) continue;
      copies_.push_back({pools_.host_page(kv->host_blocks[block], layer, head) + half,
                         kv->slot_page(pools_, layer, head, slot) + pools_.layout.half_page_bytes(),
                         half, pools_.fp8});
      kv->slot_has_values[index] = 1;
    }
  }
  stats_->value_bytes += copies_.size() * half;
  store_->Submit(TransferKind::kPrefetch, copies_, &kv->value_moves);
}

void LayerResidency::Request(int layer, TransferKind kind, std::span<const BlockRequest> rows) {
  LayerTickets& request = requests_[static_cast<size_t>(kind)].at(layer);
  AUGUR_CHECK(layer >= 1 && request.tickets.empty());
  request.copies.clear();
  for (const BlockRequest& row : rows) {
    SequenceKv* kv = row.kv;
    for (int head = 0; head < pools_.layout.num_kv_heads; ++head) {
      SlotGroup group = kv->group(pools_.layout, layer, head);
      const size_t list = size_t(head) * row.stride;
      const std::span<const int32_t> wanted(row.blocks + list, row.counts[head]);
      CountChoice(row, layer, group, wanted);
      PlanOrWait(kv, layer, group, wanted);
      for (const SlotFetch& fetch : plan_.fetches) {
        CopyBlock(row, layer, head, fetch, &request.copies);
      }
      ApplySlotPlan(plan_, wanted, row.position, &group);
      for (size_t entry = 0; entry < wanted.size(); ++entry) {
        const int slot = plan_.entry_slots[entry];
        row.pages[list + entry] = kv->slot_page(pools_, layer, head, slot);
        if (row.values != nullptr) {
          row.values[list + entry] = ValuesOf(kv, layer, head, slot, wanted[entry]);
        } else {
          // Nobody reads all values after having sampled some.
          AUGUR_CHECK(kv->slot_has_values[kv->slot_index(pools_.layout, layer, head, slot)] != 0);
        }
      }
    }
  }
  stats_->layers[layer].fetched_blocks += request.copies.size();
  store_->Submit(kind, request.copies, &request.tickets);
}

void LayerResidency::WaitTimed(std::span<const Ticket> tickets, int layer, WaitCause cause) {
  const int64_t start_ns = clock_->NowNs();
  for (const Ticket ticket : tickets) store_->transfers()->Wait(ticket);
  const int64_t waited_ns = clock_->NowNs() - start_ns;
  stats_->layers[layer].wait_ns += waited_ns;
  stats_->wait_seconds[static_cast<size_t>(cause)].Observe(static_cast<double>(waited_ns) /
                                                           kNsPerSecond);
}

void LayerResidency::WaitForLayer(int layer) {
  WaitForRequest(layer, TransferKind::kPrefetch);
  WaitForRequest(layer, TransferKind::kFetch);
}

void LayerResidency::WaitForRequest(int layer, TransferKind kind) {
  LayerTickets& request = requests_[static_cast<size_t>(kind)][layer];
  if (request.tickets.empty()) return;
  const bool landed =
      std::all_of(request.tickets.begin(), request.tickets.end(),
                  [this](Ticket ticket) { return store_->transfers()->Done(ticket); });
  WaitCause cause = WaitCause::kFetch;
  if (kind == TransferKind::kFetch) {
    stats_->prefetch_miss += request.copies.size();
  } else {
    (landed ? stats_->prefetch_hit : stats_->prefetch_late) += request.copies.size();
    cause = layer == 1 ? WaitCause::kFirstLayer : WaitCause::kPrefetchLate;
  }
  WaitTimed(request.tickets, layer, cause);
  request.tickets.clear();
  VerifyPages(request.copies);
}

// Whoever would attend to a page that differs would answer garbage.
void LayerResidency::VerifyPages(std::span<const PageCopy> copies) {
  for (const PageCopy& copy : copies) {
    const bool whole = copy.bytes == pools_.layout.host_page_bytes();
    if (!store_->CheckPage(copy.from, whole ? copy.to : copy.from)) continue;
    if (!whole) store_->CheckHalf(copy.from, copy.to);
    stats_->checked_pages += 1;
  }
}

std::byte* LayerResidency::AppendPage(SequenceKv* kv, int layer, int kv_head, int block,
                                      int chunk_place) {
  if (!kv->tiered() || layer == 0) return kv->resident_page(pools_, layer, kv_head, block);
  if (chunk_place >= 0) return StagedPage(layer, chunk_place, kv_head);
  const int slot = FindSlot(kv->group(pools_.layout, layer, kv_head), block);
  AUGUR_CHECK(slot >= 0);
  return kv->slot_page(pools_, layer, kv_head, slot);
}

// A slot whose copy is under way will hold its block, but does not yet.
bool LayerResidency::IsArriving(const std::byte* page, int layer) const {
  for (const std::vector<LayerTickets>& requests : requests_) {
    if (requests[layer].tickets.empty()) continue;
    for (const PageCopy& copy : requests[layer].copies) {
      if (copy.to == page) return true;
    }
  }
  return false;
}

const std::byte* LayerResidency::ReadablePage(SequenceKv* kv, int layer, int kv_head, int block) {
  if (!kv->tiered() || layer == 0) return kv->resident_page(pools_, layer, kv_head, block);
  const int slot = FindSlot(kv->group(pools_.layout, layer, kv_head), block);
  if (slot >= 0) {
    std::byte* page = kv->slot_page(pools_, layer, kv_head, slot);
    if (!IsArriving(page, layer)) return page;
  }
  while (block >= kv->landed_blocks[layer]) WaitForWrite(kv, layer);
  return pools_.host_page(kv->host_blocks[block], layer, kv_head);
}

void LayerResidency::BeginLayer(int layer, int places) {
  AUGUR_CHECK(places <= staged_places_);
  std::vector<Ticket>& writes = staged_writes_[layer % 2];
  if (places == 0 || writes.empty()) return;
  WaitTimed(writes, layer, WaitCause::kFetch);
  writes.clear();
}

void LayerResidency::BeginChunk(SequenceKv* kv, int layer, int first_block, int end_block,
                                int first_place) {
  AUGUR_CHECK(kv->tiered() && layer >= 1 && first_block <= end_block);
  chunk_ = kv;
  chunk_layer_ = layer;
  chunk_first_ = first_block;
  chunk_end_ = end_block;
  chunk_place_ = first_place;
  std::fill(fetch_held_.begin(), fetch_held_.end(), kNoBlock);
  std::fill(fetch_stamps_.begin(), fetch_stamps_.end(), -1);
  tile_ = 0;
  tile_keys_only_ = false;
}

int LayerResidency::CountMissing(int kv_head, std::span<const int32_t> blocks) const {
  const SlotGroup group = chunk_->group(pools_.layout, chunk_layer_, kv_head);
  return static_cast<int>(std::count_if(blocks.begin(), blocks.end(), [&](int32_t block) {
    return block < chunk_first_ && FindSlot(group, block) < 0;
  }));
}

void LayerResidency::FetchTile(std::span<const std::vector<int32_t>> blocks, bool keys_only) {
  AUGUR_CHECK(tile_ == 0 || keys_only == tile_keys_only_);
  const size_t bytes =
      keys_only ? pools_.layout.half_host_page_bytes() : pools_.layout.host_page_bytes();
  tile_keys_only_ = keys_only;
  copies_.clear();
  ++tile_;
  for (int head = 0; head < pools_.layout.num_kv_heads; ++head) {
    const SlotGroup slots = chunk_->group(pools_.layout, chunk_layer_, head);
    tile_wanted_.clear();
    for (const int32_t block : blocks[head]) {
      AUGUR_CHECK(block < chunk_end_);
      if (block < chunk_first_ && FindSlot(slots, block) < 0) tile_wanted_.push_back(block);
    }
    SlotGroup group = FetchGroup(head);
    PlanSlots(group, tile_wanted_, chunk_first_, &plan_);
    AUGUR_CHECK(!plan_.must_wait);
    for (const SlotFetch& fetch : plan_.fetches) {
      ReadablePage(chunk_, chunk_layer_, head, fetch.block);  // its write has landed
      copies_.push_back({pools_.host_page(chunk_->host_blocks[fetch.block], chunk_layer_, head),
                         FetchPage(head, fetch.slot), bytes, pools_.fp8});
    }
    ApplySlotPlan(plan_, tile_wanted_, tile_, &group);
  }
  if (copies_.empty()) return;
  if (chunk_end_ == chunk_first_) {  // a single row's stream
    (keys_only ? stats_->key_bytes : stats_->page_bytes) += copies_.size() * bytes;
  }
  stats_->layers[chunk_layer_].fetched_blocks += copies_.size();
  std::vector<Ticket> tickets;
  store_->Submit(TransferKind::kFetch, copies_, &tickets);
  WaitTimed(tickets, chunk_layer_, WaitCause::kFetch);
  VerifyPages(copies_);
}

const std::byte* LayerResidency::TilePage(int kv_head, int32_t block) {
  if (block >= chunk_first_) {
    return StagedPage(chunk_layer_, chunk_place_ + block - chunk_first_, kv_head);
  }
  const int slot = FindSlot(chunk_->group(pools_.layout, chunk_layer_, kv_head), block);
  if (slot >= 0) return chunk_->slot_page(pools_, chunk_layer_, kv_head, slot);
  const int fetched = FindSlot(FetchGroup(kv_head), block);
  AUGUR_CHECK(fetched >= 0);
  return FetchPage(kv_head, fetched);
}

const std::byte* LayerResidency::TileValues(int kv_head, int32_t block) {
  const size_t half = pools_.layout.half_page_bytes();
  if (block >= chunk_first_ && block < chunk_end_) return TilePage(kv_head, block) + half;
  const int slot = FindSlot(chunk_->group(pools_.layout, chunk_layer_, kv_head), block);
  if (slot >= 0) return ValuesOf(chunk_, chunk_layer_, kv_head, slot, block);
  while (block >= chunk_->landed_blocks[chunk_layer_]) WaitForWrite(chunk_, chunk_layer_);
  return pools_.host_page(chunk_->host_blocks[block], chunk_layer_, kv_head) +
         pools_.layout.half_host_page_bytes();
}

void LayerResidency::EndChunk(std::span<const std::vector<int32_t>> working_set,
                              int last_position) {
  for (int head = 0; head < pools_.layout.num_kv_heads; ++head) {
    const std::vector<int32_t>& wanted = working_set[head];
    SlotGroup group = chunk_->group(pools_.layout, chunk_layer_, head);
    PlanOrWait(chunk_, chunk_layer_, group, wanted);
    for (const SlotFetch& fetch : plan_.fetches) {
      std::memcpy(chunk_->slot_page(pools_, chunk_layer_, head, fetch.slot),
                  TilePage(head, fetch.block), pools_.layout.page_bytes);
      chunk_->slot_has_values[chunk_->slot_index(pools_.layout, chunk_layer_, head, fetch.slot)] =
          fetch.block >= chunk_first_ || !tile_keys_only_ ? 1 : 0;
    }
    ApplySlotPlan(plan_, wanted, last_position, &group);
  }
  chunk_ = nullptr;
}

void LayerResidency::QueueWrites(SequenceKv* kv, int layer, int end_block, int first_block_in_chunk,
                                 int first_place) {
  if (!kv->writes_behind() || end_block <= kv->submitted_blocks[layer]) return;
  queued_writes_.push_back({kv, end_block, write_copies_.size()});
  store_->AppendWrites(
      *kv, layer, kv->submitted_blocks[layer], end_block,
      [&](int head, int block) -> const std::byte* {
        const bool staged = first_place >= 0 && block >= first_block_in_chunk;
        return AppendPage(kv, layer, head, block,
                          staged ? first_place + block - first_block_in_chunk : -1);
      },
      &write_copies_);
  staged_queued_ |= first_place >= 0;
}

void LayerResidency::SubmitWrites(int layer) {
  std::vector<Ticket> tickets;
  for (size_t i = 0; i < queued_writes_.size(); ++i) {
    const QueuedWrite& write = queued_writes_[i];
    const size_t end =
        i + 1 < queued_writes_.size() ? queued_writes_[i + 1].first_copy : write_copies_.size();
    // Tickets of its own: when the sequence is released they are cancelled.
    tickets.clear();
    store_->Submit(TransferKind::kSpill,
                   std::span(write_copies_).subspan(write.first_copy, end - write.first_copy),
                   &tickets);
    store_->NoteWrite(write.kv, tickets, layer, write.end_block);
    if (!staged_queued_) continue;
    std::vector<Ticket>& staged = staged_writes_[layer % 2];
    staged.insert(staged.end(), tickets.begin(), tickets.end());
  }
  write_copies_.clear();
  queued_writes_.clear();
  staged_queued_ = false;
}

}  // namespace augur::memory
