#include "memory/kv_store.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "kernels/check.h"
#include "kernels/kv_page.h"

namespace augur::memory {
namespace {

constexpr int kBlockTokens = kernels::kBlockTokens;
// Copies in one ticket: small against the transfer queue (65,536), so that a long list need not
// wait for an empty one.
constexpr size_t kTicketCopies = 8192;

// Tables of the frame manager: blocks that the prefix cache may share, and frames that are the
// sequence's own (slots, layer 0, compressed keys, partial keys, biases).
SequenceId SharedTable(SequenceId id) { return 2 * id; }
SequenceId PrivateTable(SequenceId id) { return 2 * id + 1; }

// Room for a hash of every host page, up to 32 MiB of them.
size_t HashedPages(const KvPools& pools) {
  const size_t pages = size_t(pools.num_host_blocks) * pools.layout.num_groups();
  return std::clamp<size_t>(pages, 1, size_t{1} << 20);
}

int BlocksOf(int tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace

KvStore::KvStore(const KvPools& pools, TransferEngine* transfers, int page_check)
    : pools_(pools),
      transfers_(transfers),
      device_(pools.num_frames),
      page_check_({.one_in = static_cast<uint32_t>(page_check),
                   .capacity = page_check == 0 ? 1 : HashedPages(pools)}) {
  if (pools.num_host_blocks == 0) return;
  AUGUR_CHECK(transfers != nullptr);
  host_.emplace(pools.num_host_blocks);
}

int KvStore::CountCached(Residency residency, std::span<const BlockKey> keys) const {
  if (residency == Residency::kDevice) return device_.CountCached(keys);
  return host_ ? host_->CountCached(keys) : 0;
}

KvCost KvStore::CostOf(const KvAdmission& admission) const {
  const bool tiered = admission.demand.residency == Residency::kTiered;
  const KvFootprint footprint = FootprintOf(pools_.layout, admission.demand,
                                            tiered ? admission.most_blocks : admission.blocks);
  if (tiered) {
    return {.frames = footprint.frames(),
            .host_blocks = host_->CostOf(admission.keys, admission.hits, footprint.host_blocks)};
  }
  return {.frames = footprint.side_frames() +
                    device_.CostOf(admission.keys, admission.hits, footprint.block_frames),
          .host_blocks = 0};
}

bool KvStore::Open(const KvAdmission& admission) {
  AUGUR_CHECK(!open_.contains(admission.id) && !saved_.contains(admission.id));
  const KvCost cost = CostOf(admission);
  if (cost.frames > available_frames() || cost.host_blocks > available_host_blocks()) return false;
  auto kv = std::make_unique<SequenceKv>();
  kv->id = admission.id;
  kv->demand = admission.demand;
  if (kv->demand.partial_keys) {
    const KvLayout& layout = pools_.layout;
    AUGUR_CHECK(layout.num_channels() > 0 && admission.hits == 0);
    kv->channel_sums.assign(size_t(layout.num_groups()) * layout.head_dim, 0.0f);
    kv->channels.assign(size_t(layout.num_groups()) * layout.num_channels(), 0);
  }
  const SequenceId id = admission.id;
  if (kv->tiered()) {
    AUGUR_CHECK(OpenHost(admission, kv.get()));
    AUGUR_CHECK(
        TakeFrames(FootprintOf(pools_.layout, kv->demand, admission.most_blocks), kv.get()));
    kv->warm_up = {.blocks = admission.hits, .end = admission.hits};
    kv->keyed_blocks = admission.hits;
    kv->biased_blocks = admission.hits;
    kv->summed_blocks = admission.hits;
  } else {
    AUGUR_CHECK(device_.Open(SharedTable(id), admission.keys, admission.hits, admission.blocks));
    AUGUR_CHECK(device_.Open(PrivateTable(id), {}, 0, 0));
    // Held already, so that Extend asks for what is missing alone.
    const std::span<const BlockId> table = device_.table(SharedTable(id));
    kv->frames_epoch = ++last_epoch_;
    kv->frames.assign(table.begin(), table.end());
    open_.emplace(id, std::move(kv));
    AUGUR_CHECK(Extend(id, admission.blocks));
    return true;
  }
  open_.emplace(id, std::move(kv));
  return true;
}

bool KvStore::OpenHost(const KvAdmission& admission, SequenceKv* kv) {
  if (!host_->Open(kv->id, admission.keys, admission.hits, admission.most_blocks)) return false;
  const std::span<const BlockId> table = host_->table(kv->id);
  kv->host_blocks.assign(table.begin(), table.end());
  kv->submitted_blocks.assign(pools_.layout.num_layers, admission.hits);
  kv->landed_blocks.assign(pools_.layout.num_layers, admission.hits);
  return true;
}

// All frames of a tiered sequence.
bool KvStore::TakeFrames(const KvFootprint& footprint, SequenceKv* kv) {
  if (!device_.Open(PrivateTable(kv->id), {}, 0, footprint.frames())) return false;
  const std::span<const BlockId> table = device_.table(PrivateTable(kv->id));
  const int in_place = footprint.slot_frames + footprint.layer0_frames;
  kv->frames.assign(table.begin(), table.begin() + in_place);
  kv->frames_epoch = ++last_epoch_;
  const int end_keys = in_place + footprint.key_frames;
  kv->key_frames.assign(table.begin() + in_place, table.begin() + end_keys);
  const int end_partial = end_keys + footprint.partial_frames;
  kv->partial_frames.assign(table.begin() + end_keys, table.begin() + end_partial);
  const int end_bias = end_partial + footprint.bias_frames;
  kv->bias_frames.assign(table.begin() + end_partial, table.begin() + end_bias);
  kv->sum_frames.assign(table.begin() + end_bias, table.end());
  kv->num_slots = footprint.slot_frames;
  const size_t entries = size_t(pools_.layout.num_groups()) * kv->num_slots;
  kv->slot_blocks.assign(entries, kNoBlock);
  kv->slot_stamps.assign(entries, -1);
  kv->slot_has_values.assign(entries, 1);
  kv->slot_costs.assign(entries, 0.0f);
  return true;
}

int KvStore::MissingFrames(SequenceId id, int blocks) const {
  const SequenceKv& kv = *open_.at(id);
  if (kv.tiered()) return 0;
  const int held = static_cast<int>(kv.frames.size());
  const KvFootprint footprint = FootprintOf(pools_.layout, kv.demand, std::max(blocks, held));
  return footprint.frames() - held - static_cast<int>(kv.num_side_frames());
}

bool KvStore::Extend(SequenceId id, int blocks) {
  SequenceKv& kv = *open_.at(id);
  if (kv.tiered()) {
    AUGUR_CHECK(blocks <= static_cast<int>(kv.host_blocks.size()));
    return true;
  }
  if (MissingFrames(id, blocks) > device_.available()) return false;
  AUGUR_CHECK(device_.Extend(SharedTable(id), blocks));
  const std::span<const BlockId> table = device_.table(SharedTable(id));
  kv.frames.assign(table.begin(), table.end());
  const int num_blocks = static_cast<int>(table.size());
  const KvFootprint footprint = FootprintOf(pools_.layout, kv.demand, num_blocks);
  AUGUR_CHECK(device_.Extend(PrivateTable(id), footprint.side_frames()));
  // The table grows at its end, so the kinds lie mixed in it, in the order of their coming.
  const std::span<const BlockId> own = device_.table(PrivateTable(id));
  size_t next = kv.num_side_frames();
  const auto fill = [&](std::vector<int32_t>& frames, int wanted) {
    while (static_cast<int>(frames.size()) < wanted) frames.push_back(own[next++]);
  };
  fill(kv.key_frames, footprint.key_frames);
  fill(kv.partial_frames, footprint.partial_frames);
  fill(kv.bias_frames, footprint.bias_frames);
  fill(kv.sum_frames, footprint.sum_frames);
  AUGUR_CHECK(next == own.size());
  return true;
}

int KvStore::ReclaimableFrames(SequenceId id) const {
  const SequenceKv& kv = *open_.at(id);
  const int own = static_cast<int>(device_.table(PrivateTable(id)).size());
  return kv.tiered() ? own : own + device_.CountUnshared(SharedTable(id));
}

void KvStore::AppendBiasCopies(const SequenceKv& kv, int layer, int kv_head, int block,
                               bool to_host, std::vector<PageCopy>* copies) const {
  std::byte* host = pools_.host_bias(kv.host_blocks[block], layer, kv_head);
  const auto add = [&](float* device, size_t count) {
    std::byte* bytes = reinterpret_cast<std::byte*>(device);
    copies->push_back({to_host ? bytes : host, to_host ? host : bytes, count * sizeof(float)});
    host += count * sizeof(float);
  };
  add(kv.block_biases(pools_, layer, kv_head, block), kBiasTokens);
  add(kv.block_bias_means(pools_, layer, kv_head, block), kBiasWindows);
}

void KvStore::AppendAlwaysResident(const SequenceKv& kv, int block,
                                   std::vector<PageCopy>* copies) const {
  const KvLayout& layout = pools_.layout;
  const int source = kv.host_blocks[block];
  for (int head = 0; head < layout.num_kv_heads; ++head) {
    copies->push_back({pools_.host_page(source, 0, head), kv.resident_page(pools_, 0, head, block),
                       layout.host_page_bytes(), pools_.fp8});
    for (int layer = 0; layout.has_biases() && layer < layout.num_layers; ++layer) {
      AppendBiasCopies(kv, layer, head, block, /*to_host=*/false, copies);
    }
    for (int layer = 0; layout.has_value_sums() && layer < layout.num_layers; ++layer) {
      copies->push_back(
          {pools_.host_sum(source, layer, head),
           reinterpret_cast<std::byte*>(kv.block_value_sum(pools_, layer, head, block)),
           layout.sum_bytes});
    }
    if (!kv.demand.selects) continue;
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      copies->push_back({pools_.host_key(source, layer, head),
                         kv.block_keys(pools_, layer, head, block), layout.key_bytes});
    }
  }
}

// What was in the slots comes back to them. Empty ones, of a sequence that has had none, get what
// its next token takes whatever the scores say: the first block, then the last ones.
void KvStore::FillSlots(SequenceKv* kv, int blocks) const {
  const KvLayout& layout = pools_.layout;
  for (int layer = 1; layer < layout.num_layers; ++layer) {
    for (int head = 0; head < layout.num_kv_heads; ++head) {
      SlotGroup group = kv->group(layout, layer, head);
      for (int slot = 0; slot < kv->num_slots; ++slot) {
        const int block = slot == 0 ? 0 : blocks - slot;
        const bool fits = block >= 0 && block < blocks;
        if (group.blocks[slot] != kNoBlock || !fits || FindSlot(group, block) >= 0) continue;
        group.blocks[slot] = block;
        kv->slot_has_values[kv->slot_index(layout, layer, head, slot)] = 1;
      }
    }
  }
}

void KvStore::AppendSlots(SequenceKv* kv, int group, std::vector<PageCopy>* copies) const {
  const KvLayout& layout = pools_.layout;
  const int layer = 1 + group / layout.num_kv_heads, head = group % layout.num_kv_heads;
  const SlotGroup slots = kv->group(layout, layer, head);
  for (int slot = 0; slot < kv->num_slots; ++slot) {
    if (slots.blocks[slot] == kNoBlock) continue;
    const bool whole = kv->slot_has_values[kv->slot_index(layout, layer, head, slot)] != 0;
    copies->push_back({pools_.host_page(kv->host_blocks[slots.blocks[slot]], layer, head),
                       kv->slot_page(pools_, layer, head, slot),
                       whole ? layout.host_page_bytes() : layout.half_host_page_bytes(),
                       pools_.fp8});
  }
}

// Beside what a step hands over for itself; with nothing queued, any list.
bool KvStore::HasRoomFor(size_t num_copies) {
  while (!in_flight_.empty() && transfers_->Done(in_flight_.front())) in_flight_.pop_front();
  return transfers_->CanSubmit(num_copies + kTicketCopies) ||
         (in_flight_.empty() && transfers_->CanSubmit(num_copies));
}

int64_t KvStore::WarmUp(SequenceId id, int64_t most_bytes) {
  SequenceKv& kv = *open_.at(id);
  WarmUpProgress& warm_up = kv.warm_up;
  int64_t bytes = 0;
  warm_copies_.clear();
  while (warm_up.lacks() && bytes < most_bytes) {
    piece_copies_.clear();
    if (warm_up.next < warm_up.blocks) {
      AppendAlwaysResident(kv, warm_up.next, &piece_copies_);
    } else {
      AppendSlots(&kv, warm_up.next - warm_up.blocks, &piece_copies_);
    }
    const size_t copies = warm_copies_.size() + piece_copies_.size();
    const bool first = warm_copies_.empty();
    if ((!first && copies > kTicketCopies) || !HasRoomFor(copies)) break;
    warm_copies_.insert(warm_copies_.end(), piece_copies_.begin(), piece_copies_.end());
    for (const PageCopy& copy : piece_copies_) bytes += static_cast<int64_t>(copy.bytes);
    ++warm_up.next;
  }
  CheckSources(warm_copies_);
  Submit(TransferKind::kRestore, warm_copies_, &kv.restores);
  warm_up.bytes_on_their_way += bytes;
  return bytes;
}

void KvStore::FinishWarmUp(SequenceId id) {
  while (!Ready(id)) {
    if (WarmUp(id, std::numeric_limits<int64_t>::max()) == 0) transfers_->Wait(OldestPending());
  }
}

bool KvStore::CheckPage(const std::byte* host_page, const std::byte* page) {
  const size_t bytes = pools_.layout.host_page_bytes();
  const size_t index = (host_page - pools_.host) / bytes;
  if (!page_check_.Holds(index)) return false;
  const auto form = page == host_page ? std::span(page, bytes) : HostForm(page, bytes);
  const PageCheck::Result result = page_check_.Verify(index, form);
  AUGUR_CHECK(result != PageCheck::Result::kDiffers);
  return result == PageCheck::Result::kEqual;
}

void KvStore::CheckHalf(const std::byte* host_page, const std::byte* half) {
  const size_t bytes = pools_.layout.half_host_page_bytes();
  AUGUR_CHECK(std::memcmp(host_page, HostForm(half, bytes).data(), bytes) == 0);
}

// Packing is exact for what has been rounded, and repeats itself for what has not.
std::span<const std::byte> KvStore::HostForm(const std::byte* page, size_t host_bytes) {
  if (pools_.fp8 == nullptr) return {page, host_bytes};
  packed_.resize(pools_.layout.host_page_bytes());
  const size_t half = pools_.layout.half_host_page_bytes();
  for (size_t at = 0; at < host_bytes; at += half, page += pools_.layout.half_page_bytes()) {
    kernels::PackHalfPage(pools_.fp8->dtype, pools_.fp8->head_dim, page, packed_.data() + at);
  }
  return {packed_.data(), host_bytes};
}

void KvStore::RecordSpill(size_t host_page, const std::byte* page) {
  if (!page_check_.Draws(host_page)) return;
  page_check_.Keep(host_page, HostForm(page, pools_.layout.host_page_bytes()));
}

// What comes back outside a step is checked where it lies.
void KvStore::CheckSources(std::span<const PageCopy> copies) {
  for (const PageCopy& copy : copies) {
    if (copy.bytes == pools_.layout.host_page_bytes()) CheckPage(copy.from, copy.from);
  }
}

void KvStore::Submit(TransferKind kind, std::span<const PageCopy> all,
                     std::vector<Ticket>* tickets) {
  for (size_t first = 0; first < all.size(); first += kTicketCopies) {
    const auto part = all.subspan(first, std::min(kTicketCopies, all.size() - first));
    while (!in_flight_.empty() && transfers_->Done(in_flight_.front())) in_flight_.pop_front();
    while (!transfers_->CanSubmit(part.size())) {
      AUGUR_CHECK(!in_flight_.empty());
      transfers_->Wait(in_flight_.front());
      in_flight_.pop_front();
    }
    const Ticket ticket = transfers_->Submit(kind, part);
    AUGUR_CHECK(ticket != kNoTicket);
    in_flight_.push_back(ticket);
    tickets->push_back(ticket);
  }
}

void KvStore::NoteWrite(SequenceKv* kv, std::span<const Ticket> tickets, int layer, int end_block) {
  AUGUR_CHECK(end_block > kv->submitted_blocks[layer]);
  for (size_t i = 0; i < tickets.size(); ++i) {
    // Blocks count as written when the last of their tickets is done.
    const int end = i + 1 == tickets.size() ? end_block : kv->submitted_blocks[layer];
    kv->writes.push_back({tickets[i], layer, end});
  }
  kv->submitted_blocks[layer] = end_block;
}

void KvStore::PollWrites(SequenceKv* kv) {
  size_t done = 0;
  while (done < kv->writes.size() && transfers_->Done(kv->writes[done].ticket)) {
    const PendingWrite& write = kv->writes[done++];
    int& landed = kv->landed_blocks[write.layer];
    landed = std::max(landed, write.end_block);
  }
  kv->writes.erase(kv->writes.begin(), kv->writes.begin() + done);
}

bool KvStore::Quiet(SequenceKv* kv) {
  PollWrites(kv);
  std::erase_if(kv->restores, [this](Ticket ticket) { return transfers_->Done(ticket); });
  std::erase_if(kv->value_moves, [this](Ticket ticket) { return transfers_->Done(ticket); });
  return kv->writes.empty() && kv->restores.empty() && kv->value_moves.empty();
}

bool KvStore::Ready(SequenceId id) {
  SequenceKv& kv = *open_.at(id);
  std::erase_if(kv.restores, [this](Ticket ticket) { return transfers_->Done(ticket); });
  if (kv.restores.empty()) kv.warm_up.bytes_on_their_way = 0;
  return kv.restores.empty() && !kv.warm_up.lacks();
}

bool KvStore::Publish(SequenceId id, int block, const BlockKey& key) {
  const SequenceKv& kv = *open_.at(id);
  if (!kv.tiered()) {
    device_.Publish(SharedTable(id), block, key);
    return true;
  }
  if (block >= kv.landed_everywhere()) return false;
  host_->Publish(id, block, key);
  return true;
}

void KvStore::Withdraw(SequenceId id, int blocks) {
  const bool tiered = open_.at(id)->tiered();
  for (int block = 0; block < blocks; ++block) {
    if (tiered) {
      host_->Withdraw(id, block);
    } else {
      device_.Withdraw(SharedTable(id), block);
    }
  }
}

void KvStore::PublishLate(SequenceKv* kv) {
  const int landed = kv->landed_everywhere();
  for (size_t i = 0; i < kv->late_keys.size(); ++i) {
    const int block = kv->late_first + static_cast<int>(i);
    if (block >= landed) return;
    host_->Publish(kv->id, block, kv->late_keys[i]);
  }
}

void KvStore::Release(SequenceId id, int late_first, std::span<const BlockKey> late_keys) {
  if (auto saved = saved_.find(id); saved != saved_.end()) {
    host_->Release(id);
    computed_tokens_.erase(id);
    saved_.erase(saved);
    return;
  }
  auto node = open_.extract(id);
  SequenceKv& kv = *node.mapped();
  for (const Ticket ticket : kv.restores) transfers_->Cancel(ticket);
  for (const Ticket ticket : kv.value_moves) transfers_->Cancel(ticket);
  if (late_keys.empty()) {
    for (const PendingWrite& write : kv.writes) transfers_->Cancel(write.ticket);
  }
  kv.late_first = late_first;
  kv.late_keys.assign(late_keys.begin(), late_keys.end());
  closing_.insert(std::move(node));
  Poll();
}

void KvStore::Poll() {
  for (auto& [id, kv] : open_) {
    if (!kv->writes.empty()) PollWrites(kv.get());
  }
  for (auto closing = closing_.begin(); closing != closing_.end();) {
    const auto [id, kv] = std::pair(closing->first, closing->second.get());
    if (!Quiet(kv)) {
      ++closing;
      continue;
    }
    PublishLate(kv);
    device_.Release(PrivateTable(id));
    if (!kv->tiered()) device_.Release(SharedTable(id));
    if (kv->writes_behind()) host_->Release(id);
    closing = closing_.erase(closing);
  }
}

bool KvStore::BeginMirror(SequenceId id, int most_blocks) {
  SequenceKv& kv = *open_.at(id);
  AUGUR_CHECK(!kv.tiered() && !kv.writes_behind());
  if (!host_ || host_->available() < most_blocks) return false;
  return OpenHost({.id = id,
                   .demand = kv.demand,
                   .keys = {},
                   .hits = 0,
                   .blocks = most_blocks,
                   .most_blocks = most_blocks},
                  &kv);
}

void KvStore::Save(SequenceId id, int num_tokens) {
  auto node = open_.extract(id);
  SequenceKv& kv = *node.mapped();
  AUGUR_CHECK(kv.writes_behind());
  const int blocks = BlocksOf(num_tokens);
  // One that has not come back yet has everything in its host blocks, its tail included, which must
  // not be written from its slot.
  const bool untouched = kv.warm_up.lacks() || !kv.restores.empty();
  kv.warm_up = {};
  for (const Ticket ticket : kv.restores) transfers_->Wait(ticket);
  kv.restores.clear();
  for (const Ticket ticket : kv.value_moves) transfers_->Wait(ticket);
  kv.value_moves.clear();
  for (int layer = 0; layer < pools_.layout.num_layers && !untouched; ++layer) {
    // The tail, and what a mirror has not written yet.
    const int first = kv.submitted_blocks[layer];
    if (first >= blocks) continue;
    std::vector<PageCopy> copies;
    AppendWrites(
        kv, layer, first, blocks,
        [&](int head, int block) -> const std::byte* {
          if (!kv.tiered() || layer == 0) {
            return kv.resident_page(pools_, layer, head, block);
          }
          const int slot = FindSlot(kv.group(pools_.layout, layer, head), block);
          AUGUR_CHECK(slot >= 0);
          return kv.slot_page(pools_, layer, head, slot);
        },
        &copies);
    std::vector<Ticket> tickets;
    Submit(TransferKind::kSpill, copies, &tickets);
    NoteWrite(&kv, tickets, layer, blocks);
  }
  while (!kv.writes.empty()) {
    transfers_->Wait(kv.writes.front().ticket);
    PollWrites(&kv);
  }
  // The tail will be written again when it is full.
  const int full = num_tokens / kBlockTokens;
  for (int& submitted : kv.submitted_blocks) submitted = std::min(submitted, full);
  for (int& landed : kv.landed_blocks) landed = std::min(landed, full);
  device_.Release(PrivateTable(id));
  if (!kv.tiered()) device_.Release(SharedTable(id));
  kv.frames.clear();
  kv.key_frames.clear();
  kv.partial_frames.clear();
  kv.bias_frames.clear();
  kv.sum_frames.clear();
  kv.partial_tokens = 0;
  kv.demand.residency = Residency::kTiered;
  computed_tokens_[id] = num_tokens;
  saved_.insert(std::move(node));
}

KvCost KvStore::ResumeCost(SequenceId id, int num_slots) const {
  const SequenceKv& kv = *saved_.at(id);
  KvDemand demand = kv.demand;
  demand.num_slots = num_slots;
  const int blocks = static_cast<int>(kv.host_blocks.size());
  return {.frames = FootprintOf(pools_.layout, demand, blocks).frames(), .host_blocks = 0};
}

bool KvStore::Resume(SequenceId id, int num_slots) {
  if (ResumeCost(id, num_slots).frames > available_frames()) return false;
  auto node = saved_.extract(id);
  SequenceKv& kv = *node.mapped();
  kv.demand.num_slots = num_slots;
  const std::vector<int32_t> held = std::move(kv.slot_blocks);
  const std::vector<int32_t> stamps = std::move(kv.slot_stamps);
  const std::vector<uint8_t> has_values = std::move(kv.slot_has_values);
  const std::vector<float> costs = std::move(kv.slot_costs);
  const int blocks = BlocksOf(computed_tokens_.at(id));
  const int most_blocks = static_cast<int>(kv.host_blocks.size());
  AUGUR_CHECK(TakeFrames(FootprintOf(pools_.layout, kv.demand, most_blocks), &kv));
  if (held.size() == kv.slot_blocks.size()) {
    kv.slot_blocks = held;
    kv.slot_stamps = stamps;
    kv.slot_has_values = has_values;
    kv.slot_costs = costs;
  }
  FillSlots(&kv, blocks);
  const int groups = (pools_.layout.num_layers - 1) * pools_.layout.num_kv_heads;
  kv.warm_up = {.blocks = blocks, .end = blocks + groups};
  kv.keyed_blocks = computed_tokens_.at(id) / kBlockTokens;
  kv.biased_blocks = kv.keyed_blocks;
  kv.summed_blocks = kv.keyed_blocks;
  computed_tokens_.erase(id);
  open_.insert(std::move(node));
  return true;
}

Ticket KvStore::OldestPending() const {
  Ticket oldest = kNoTicket;
  const auto take = [&oldest](Ticket ticket) {
    if (oldest == kNoTicket || ticket < oldest) oldest = ticket;
  };
  for (const auto& [id, kv] : open_) {
    for (const Ticket ticket : kv->restores) take(ticket);
    if (kv->warm_up.lacks() && !in_flight_.empty()) take(in_flight_.front());
  }
  for (const auto& [id, kv] : closing_) {
    for (const Ticket ticket : kv->restores) take(ticket);
    for (const Ticket ticket : kv->value_moves) take(ticket);
    for (const PendingWrite& write : kv->writes) take(write.ticket);
  }
  return oldest;
}

void KvStore::WaitForClosing() {
  for (Poll(); !closing_.empty(); Poll()) {
    const SequenceKv& kv = *closing_.begin()->second;
    transfers_->Wait(!kv.restores.empty()      ? kv.restores.front()
                     : !kv.value_moves.empty() ? kv.value_moves.front()
                                               : kv.writes.front().ticket);
  }
}

void KvStore::ClearCache() {
  device_.ClearCache();
  if (host_) host_->ClearCache();
}

void KvStore::CheckSequence(const SequenceKv& kv) const {
  const bool tiered = kv.tiered();
  const int blocks = static_cast<int>(tiered ? kv.host_blocks.size() : kv.frames.size());
  const KvFootprint footprint = FootprintOf(pools_.layout, kv.demand, blocks);
  AUGUR_CHECK(static_cast<int>(kv.frames.size() + kv.num_side_frames()) == footprint.frames());
  AUGUR_CHECK(static_cast<int>(kv.partial_frames.size()) == footprint.partial_frames);
  AUGUR_CHECK(static_cast<int>(kv.bias_frames.size()) == footprint.bias_frames);
  AUGUR_CHECK(static_cast<int>(kv.sum_frames.size()) == footprint.sum_frames);
  AUGUR_CHECK(kv.num_slots == footprint.slot_frames);
  if (!kv.writes_behind()) return;
  for (size_t layer = 0; layer < kv.landed_blocks.size(); ++layer) {
    AUGUR_CHECK(kv.landed_blocks[layer] <= kv.submitted_blocks[layer]);
    AUGUR_CHECK(kv.submitted_blocks[layer] <= static_cast<int>(kv.host_blocks.size()));
  }
  // No block in two slots of a group.
  for (size_t first = 0; tiered && first < kv.slot_blocks.size(); first += kv.num_slots) {
    std::vector<int32_t> held(kv.slot_blocks.begin() + first,
                              kv.slot_blocks.begin() + first + kv.num_slots);
    std::erase(held, kNoBlock);
    std::sort(held.begin(), held.end());
    AUGUR_CHECK(std::adjacent_find(held.begin(), held.end()) == held.end());
  }
}

void KvStore::CheckInvariants() const {
  device_.CheckInvariants();
  if (host_) host_->CheckInvariants();
  int device_tables = 0;
  int host_tables = static_cast<int>(saved_.size());
  for (const Sequences* sequences : {&open_, &closing_}) {
    for (const auto& [id, kv] : *sequences) {
      CheckSequence(*kv);
      device_tables += kv->tiered() ? 1 : 2;
      host_tables += kv->writes_behind() ? 1 : 0;
    }
  }
  for (const auto& [id, kv] : saved_) {
    AUGUR_CHECK(kv->frames.empty() && kv->num_side_frames() == 0 && kv->writes.empty());
  }
  AUGUR_CHECK(device_.num_tables() == device_tables);
  if (host_) AUGUR_CHECK(host_->num_tables() == host_tables);
}

}  // namespace augur::memory
