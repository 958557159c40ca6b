#include "engine/model/spill_queue.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace augur::engine {
absl::StatusOr<std::unique_ptr<SpillQueue>> SpillQueue::Create(kernels::Backend* backend,
                                                               SequenceTables* tables,
                                                               memory::KvStore* store,
                                                               memory::DeviceTransfers* transfers,
                                                               int max_blocks) {
  std::unique_ptr<SpillQueue> queue(new SpillQueue(backend, tables, store, transfers, max_blocks));
  if (queue->rings_ != nullptr && queue->pages_.allocated() && queue->keys_.allocated() &&
      queue->sums_.allocated()) {
    return queue;
  }
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for lists of written blocks: ",
                   2 * queue->pages_.size() * sizeof(kernels::PageCopy), " bytes"));
}

SpillQueue::SpillQueue(kernels::Backend* backend, SequenceTables* tables, memory::KvStore* store,
                       memory::DeviceTransfers* transfers, int max_blocks)
    : backend_(backend),
      lane_(backend->OnLane(kernels::Lane::kSpill)),
      tables_(tables),
      store_(store),
      transfers_(transfers),
      max_blocks_(max_blocks),
      rings_(static_cast<kernels::SpilledBlock*>(
          backend->AllocateHost(size_t(kRing) * max_blocks * sizeof(kernels::SpilledBlock)))),
      pages_(backend, size_t(kRing) * list_room()),
      keys_(backend, size_t(kRing) * list_room()),
      sums_(backend, tables->pools().layout.has_value_sums() ? size_t(kRing) * list_room() : 0) {}

SpillQueue::~SpillQueue() {
  lane_->Synchronize();
  if (rings_ != nullptr) backend_->Free(rings_);
}

void SpillQueue::Add(memory::SequenceKv* kv, int table, int end_block, bool staged) {
  if (!kv->writes_behind()) return;
  const int first = kv->submitted_blocks[0];
  AUGUR_CHECK(!kv->tiered() || end_block - first <= max_blocks_ - num_blocks_);
  // A staged chunk's pages have been sent already, so all of it goes; others may be cut.
  const int end = staged ? end_block : std::min(end_block, first + max_blocks_ - num_blocks_);
  if (end <= first) return;
  AUGUR_CHECK(num_blocks_ + end - first <= max_blocks_);
  for (int block = first; block < end; ++block) {
    blocks_[staged][kv->demand.selects].push_back(
        {.table = table, .block = block, .host_block = kv->host_blocks[block]});
  }
  num_blocks_ += end - first;
  writes_.push_back({kv, end});
}

void SpillQueue::Flush() {
  if (writes_.empty()) return;
  next_ = (next_ + 1) % kRing;
  transfers_->Wait(tickets_[next_]);  // lists of the same place may still be being read
  int first = 0;
  for (const bool staged : {false, true}) {
    for (const bool has_keys : {false, true}) {
      std::vector<kernels::SpilledBlock>& blocks = blocks_[staged][has_keys];
      if (blocks.empty()) continue;
      Copy(blocks, first, staged, has_keys);
      first += static_cast<int>(blocks.size());
      blocks.clear();
    }
  }
  const memory::KvLayout& layout = tables_->pools().layout;
  tickets_[next_] =
      transfers_->Issue(memory::TransferKind::kSpill, num_blocks_ * layout.num_groups(),
                        num_blocks_ * layout.host_block_bytes());
  for (const Write& write : writes_) {
    for (int layer = 0; layer < layout.num_layers; ++layer) {
      store_->NoteWrite(write.kv, {&tickets_[next_], 1}, layer, write.end_block);
    }
  }
  writes_.clear();
  num_blocks_ = 0;
}

// Listed in the main order, before a table's row may go to another sequence; copied on the lane,
// which may be behind.
void SpillQueue::Copy(const std::vector<kernels::SpilledBlock>& blocks, int first, bool staged,
                      bool has_keys) {
  const memory::KvPools& pools = tables_->pools();
  const memory::KvLayout& layout = pools.layout;
  const int count = static_cast<int>(blocks.size());
  kernels::SpilledBlock* const spilled = rings_ + size_t(next_) * max_blocks_ + first;
  std::copy(blocks.begin(), blocks.end(), spilled);
  const size_t list = next_ * list_room() + size_t(first) * layout.num_groups();
  const auto copy = [&](kernels::PageCopy* copies, int layers, size_t bytes,
                        const kernels::Fp8Pages& fp8) {
    lane_->Follow(backend_);
    lane_->CopyPages({.pages = copies,
                      .known_pages = count * layers * layout.num_kv_heads,
                      .page_bytes = static_cast<int>(bytes),
                      .quota = transfers_->ctas(),
                      .fp8 = fp8});
  };
  kernels::ListSpillsParams params{.blocks = spilled,
                                   .num_blocks = count,
                                   .num_layers = layout.num_layers,
                                   .end_layer = staged ? 1 : layout.num_layers,
                                   .num_kv_heads = layout.num_kv_heads,
                                   .lists = tables_->lists(0),
                                   .max_blocks = tables_->options().max_blocks,
                                   .host = pools.host,
                                   .page_bytes = layout.host_page_bytes(),
                                   .pages = pages_.data() + list};
  backend_->ListSpills(params);
  copy(params.pages, params.end_layer, layout.page_bytes, pools.fp8_pages());
  params.end_layer = layout.num_layers;
  if (layout.has_value_sums()) {
    kernels::ListSpillsParams sums = params;
    sums.lists = tables_->lists(0) + tables_->sums_offset();
    sums.host = pools.host_sums;
    sums.page_bytes = layout.sum_bytes;
    sums.pages = sums_.data() + list;
    backend_->ListSpills(sums);
    copy(sums.pages, layout.num_layers, layout.sum_bytes, {});
  }
  if (!has_keys) return;
  params.pages = nullptr;
  params.key_lists = tables_->key_lists(0);
  params.max_key_pages = tables_->max_key_pages();
  params.host_keys = pools.host_keys;
  params.key_bytes = layout.key_bytes;
  params.keys = keys_.data() + list;
  backend_->ListSpills(params);
  copy(params.keys, layout.num_layers, layout.key_bytes, {});
}

}  // namespace augur::engine
