#include "engine/model/sequence_tables.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "memory/base/status_macros.h"
#include "memory/kv_layout.h"

namespace augur::engine {
namespace {

using kernels::BackendArray;
using kernels::MappedBlock;

// List entries that one upload carries: a new sequence of 256 Ki tokens, or any decode step.
constexpr int kMappedAtOnce = 4096;

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceTables>> SequenceTables::Create(
    kernels::Backend* backend, const memory::KvPools& pools, const SequenceTablesOptions& options) {
  std::unique_ptr<SequenceTables> tables(new SequenceTables(backend, pools, options));
  AUGUR_RETURN_IF_ERROR(tables->Allocate());
  if (options.max_slots > 0) tables->ListStaging();
  return tables;
}

SequenceTables::SequenceTables(kernels::Backend* backend, const memory::KvPools& pools,
                               const SequenceTablesOptions& options)
    : backend_(backend),
      pools_(pools),
      options_(options),
      max_key_pages_(options.selects ? (options.max_blocks + memory::kKeyFrameBlocks - 1) /
                                           memory::kKeyFrameBlocks
                                     : 0),
      max_partial_pages_(options.partial_keys
                             ? (options.max_blocks + memory::kPartialFrameBlocks - 1) /
                                   memory::kPartialFrameBlocks
                             : 0),
      tables_(options.num_tables) {
  table_of_.reserve(options.num_tables);
}

SequenceTables::~SequenceTables() {
  backend_->Synchronize();
  if (host_mapped_ != nullptr) backend_->Free(host_mapped_);
  if (host_slots_ != nullptr) backend_->Free(host_slots_);
}

absl::Status SequenceTables::Allocate() {
  const size_t tables = options_.num_tables;
  const size_t layers = pools_.layout.num_layers;
  size_t bytes = 0;
  bool fits = true;
  const auto reserve = [&]<class T>(size_t count, BackendArray<T>* array) {
    *array = BackendArray<T>(backend_, count);
    bytes += count * sizeof(T);
    fits = fits && array->allocated();
  };
  // The staging area's two lists stand behind the last sequence's, lists of biases and of sums
  // behind those.
  const bool biases = pools_.layout.has_biases();
  reserve(sums_offset() + (pools_.layout.has_value_sums() ? tables * lists_row() : 0), &lists_);
  reserve(biases ? tables * layers * keys_layer() : 0, &mean_lists_);
  reserve(tables * layers * keys_layer(), &key_lists_);
  reserve(tables * layers * partial_layer(), &partial_lists_);
  reserve(options_.partial_keys ? tables * layers * sums_layer() : 0, &channel_sums_);
  reserve(options_.partial_keys ? tables * layers * channels_layer() : 0, &channels_);
  reserve(tables * slots_row(), &slot_pages_);
  reserve(tables * slots_row(), &slot_blocks_);
  reserve(tables * slots_row(), &slot_stamps_);
  reserve(options_.keys_alone ? tables * slots_row() : 0, &slot_costs_);
  reserve(2 * tables * layers * state_layer(), &value_states_);
  reserve(kMappedAtOnce, &device_mapped_);
  host_mapped_ =
      static_cast<MappedBlock*>(backend_->AllocateHost(kMappedAtOnce * sizeof(MappedBlock)));
  host_slots_ = static_cast<int32_t*>(backend_->AllocateHost(3 * slots_row() * sizeof(int32_t)));
  if (fits && host_mapped_ != nullptr && host_slots_ != nullptr) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for the sequences' tables: ", bytes, " bytes on the device (batch ",
                   options_.num_tables, ", context ", options_.max_blocks, " blocks, ",
                   options_.max_slots, " slots)"));
}

void SequenceTables::ListStaging() {
  const int heads = pools_.layout.num_kv_heads;
  AUGUR_CHECK(pools_.num_staging_pages >= 2 * lists_layer());
  std::vector<std::byte*> pages;
  for (int page = 0; page < 2 * heads * options_.max_blocks; ++page) {
    pages.push_back(pools_.staging_page(page));
  }
  backend_->Copy(lists(options_.num_tables), pages.data(), pages.size() * sizeof(pages[0]));
  backend_->Synchronize();
}

int SequenceTables::Claim(const memory::SequenceKv& kv) {
  const auto free = std::find_if(tables_.begin(), tables_.end(),
                                 [](const Table& table) { return table.epoch == 0; });
  AUGUR_CHECK(free != tables_.end());
  const int index = static_cast<int>(free - tables_.begin());
  table_of_[kv.id] = index;
  return index;
}

int SequenceTables::Prepare(const memory::SequenceKv& kv, int blocks, int on_host) {
  const auto found = table_of_.find(kv.id);
  const int index = found != table_of_.end() ? found->second : Claim(kv);
  Table& table = tables_[index];
  if (table.epoch != kv.frames_epoch) {
    table = {.sequence = kv.id, .epoch = kv.frames_epoch};
    if (kv.tiered()) UploadSlots(kv, index);
    if (kv.demand.partial_keys) UploadChannels(kv, index);
    if (options_.value_state > 0) UploadValueState(kv, index);
  }
  for (; table.blocks < blocks; ++table.blocks) {
    if (kv.tiered()) {
      ListLayer0(kv, index, table.blocks);
    } else {
      missing_.resident.push_back(
          {.table = index, .block = table.blocks, .frame = kv.frames.at(table.blocks)});
    }
  }
  for (; kv.tiered() && table.on_host < on_host; ++table.on_host) {
    missing_.host.push_back(
        {.table = index, .block = table.on_host, .frame = kv.host_blocks.at(table.on_host)});
  }
  const int key_pages = std::min(static_cast<int>(kv.key_frames.size()), max_key_pages_);
  for (; table.key_pages < key_pages; ++table.key_pages) {
    missing_.keys.push_back(
        {.table = index, .block = table.key_pages, .frame = kv.key_frames[table.key_pages]});
  }
  if (pools_.layout.has_biases()) ListBiases(kv, index, blocks);
  if (pools_.layout.has_value_sums()) ListSums(kv, index, blocks);
  const int partial_pages =
      std::min(static_cast<int>(kv.partial_frames.size()), max_partial_pages_);
  for (; table.partial_pages < partial_pages; ++table.partial_pages) {
    missing_.partial.push_back({.table = index,
                                .block = table.partial_pages,
                                .frame = kv.partial_frames[table.partial_pages]});
  }
  return index;
}

// As SequenceKv::block_biases and block_bias_means have it; means by pages of kKeyFrameBlocks.
void SequenceTables::ListBiases(const memory::SequenceKv& kv, int table, int blocks) {
  const int frame_blocks = pools_.layout.bias_frame_blocks();
  const int mean_bytes = frame_blocks * memory::kBiasTokens * static_cast<int>(sizeof(float));
  for (int& block = tables_[table].bias_blocks; block < blocks; ++block) {
    MappedBlock mapped{
        .table = table, .block = block, .frame = kv.bias_frames.at(block / frame_blocks)};
    const int place = block % frame_blocks;
    mapped.byte_shift = place * memory::kBiasTokens * static_cast<int>(sizeof(float));
    missing_.biases.push_back(mapped);
    if (block % memory::kKeyFrameBlocks != 0 || max_key_pages_ == 0) continue;
    mapped.block = block / memory::kKeyFrameBlocks;
    mapped.byte_shift = mean_bytes + place * memory::kBiasWindows * static_cast<int>(sizeof(float));
    missing_.means.push_back(mapped);
  }
}

// As SequenceKv::block_value_sum has them.
void SequenceTables::ListSums(const memory::SequenceKv& kv, int table, int blocks) {
  const int frame_blocks = pools_.layout.sum_frame_blocks();
  for (int& block = tables_[table].summed_blocks; block < blocks; ++block) {
    missing_.sums.push_back(
        {.table = table,
         .block = block,
         .frame = kv.sum_frames.at(block / frame_blocks),
         .byte_shift = block % frame_blocks * static_cast<int32_t>(pools_.layout.sum_bytes)});
  }
}

// As SequenceKv::resident_page has it.
void SequenceTables::ListLayer0(const memory::SequenceKv& kv, int table, int block) {
  MappedBlock mapped{.table = table, .block = block};
  if (block < kv.num_slots) {
    mapped.frame = kv.frames[block];
  } else {
    const int extra = block - kv.num_slots;
    mapped.frame = kv.frames.at(kv.num_slots + extra / pools_.layout.num_layers);
    mapped.layer_shift = extra % pools_.layout.num_layers;
  }
  missing_.first.push_back(mapped);
}

void SequenceTables::UploadSlots(const memory::SequenceKv& kv, int table) {
  AUGUR_CHECK(kv.num_slots <= options_.max_slots);
  for (int slot = 0; slot < kv.num_slots; ++slot) {
    missing_.slots.push_back({.table = table, .block = slot, .frame = kv.frames[slot]});
  }
  backend_->Wait(slots_mark_);  // host_slots_ may still be being read
  int32_t* const blocks = host_slots_;
  int32_t* const stamps = host_slots_ + slots_row();
  float* const costs = reinterpret_cast<float*>(host_slots_ + 2 * slots_row());
  std::fill_n(blocks, slots_row(), memory::kNoBlock);
  std::fill_n(stamps, slots_row(), -1);
  std::fill_n(costs, slots_row(), kernels::kSlotHasValues);
  for (int group = 0; group < pools_.layout.num_groups(); ++group) {
    const size_t from = size_t(group) * kv.num_slots, to = size_t(group) * options_.max_slots;
    std::copy_n(kv.slot_blocks.data() + from, kv.num_slots, blocks + to);
    std::copy_n(kv.slot_stamps.data() + from, kv.num_slots, stamps + to);
    for (int slot = 0; slot < kv.num_slots; ++slot) {
      if (kv.slot_has_values[from + slot] == 0) costs[to + slot] = kv.slot_costs[from + slot];
    }
  }
  backend_->Copy(slot_blocks(table), blocks, slots_row() * sizeof(int32_t));
  backend_->Copy(slot_stamps(table), stamps, slots_row() * sizeof(int32_t));
  if (options_.keys_alone) {
    backend_->Copy(slot_costs(table), costs, slots_row() * sizeof(float));
  }
  slots_mark_ = backend_->Mark();
}

// A sequence that begins, or comes back: behind the ops of the row's last one.
void SequenceTables::UploadChannels(const memory::SequenceKv& kv, int table) {
  AUGUR_CHECK(options_.partial_keys);
  backend_->Copy(channel_sums(table), kv.channel_sums.data(),
                 kv.channel_sums.size() * sizeof(float));
  backend_->Copy(channels(table), kv.channels.data(), kv.channels.size() * sizeof(int32_t));
  backend_->Synchronize();  // *kv may not stay as it is
}

void SequenceTables::UploadValueState(const memory::SequenceKv& kv, int table) {
  const size_t floats = state_layer() * pools_.layout.num_layers;
  AUGUR_CHECK(kv.value_state.empty() || kv.value_state.size() == floats);
  const std::vector<float> none(kv.value_state.empty() ? floats : 0);
  const std::vector<float>& state = kv.value_state.empty() ? none : kv.value_state;
  for (const int position : {0, 1}) {
    backend_->Copy(value_state(table, position), state.data(), floats * sizeof(float));
  }
  backend_->Synchronize();  // `none` does not stay, nor may *kv
}

void SequenceTables::DownloadValueState(int table, memory::SequenceKv* kv) {
  const int position = tables_[table].state_position;
  if (position < 0) return;  // no token has sampled since the sequence came
  kv->value_state.resize(state_layer() * pools_.layout.num_layers);
  backend_->Copy(kv->value_state.data(), value_state(table, position),
                 kv->value_state.size() * sizeof(float));
  backend_->Synchronize();
}

void SequenceTables::Remove(memory::SequenceKv* kv, bool keep) {
  const auto found = table_of_.find(kv->id);
  if (found == table_of_.end()) return;
  const int table = found->second;
  if (keep && tables_[table].epoch == kv->frames_epoch) {
    if (kv->demand.partial_keys) {
      backend_->Copy(kv->channel_sums.data(), channel_sums(table),
                     kv->channel_sums.size() * sizeof(float));
      backend_->Copy(kv->channels.data(), channels(table), kv->channels.size() * sizeof(int32_t));
      backend_->Synchronize();
    }
    if (options_.value_state > 0) DownloadValueState(table, kv);
    if (kv->tiered()) DownloadSlots(table, kv);
  }
  tables_[table] = {};
  table_of_.erase(found);
}

void SequenceTables::DownloadSlots(int table, memory::SequenceKv* kv) {
  backend_->Wait(slots_mark_);
  int32_t* const blocks = host_slots_;
  int32_t* const stamps = host_slots_ + slots_row();
  backend_->Copy(blocks, slot_blocks(table), slots_row() * sizeof(int32_t));
  backend_->Copy(stamps, slot_stamps(table), slots_row() * sizeof(int32_t));
  float* const costs = reinterpret_cast<float*>(host_slots_ + 2 * slots_row());
  if (options_.keys_alone) {
    backend_->Copy(costs, slot_costs(table), slots_row() * sizeof(float));
  }
  backend_->Synchronize();
  for (int group = 0; group < pools_.layout.num_groups(); ++group) {
    const size_t from = size_t(group) * options_.max_slots, to = size_t(group) * kv->num_slots;
    std::copy_n(blocks + from, kv->num_slots, kv->slot_blocks.data() + to);
    std::copy_n(stamps + from, kv->num_slots, kv->slot_stamps.data() + to);
    for (int slot = 0; options_.keys_alone && slot < kv->num_slots; ++slot) {
      const float cost = costs[from + slot];
      kv->slot_has_values[to + slot] = cost < 0.0f ? 1 : 0;
      kv->slot_costs[to + slot] = std::max(cost, 0.0f);
    }
  }
}

void SequenceTables::Upload() {
  const int layers = pools_.layout.num_layers;
  const kernels::MapPagesParams lists{.pool = pools_.device,
                                      .lists = lists_.data(),
                                      .page_bytes = pools_.layout.page_bytes,
                                      .num_layers = layers,
                                      .end_layer = layers,
                                      .num_kv_heads = pools_.layout.num_kv_heads,
                                      .max_blocks = options_.max_blocks};
  kernels::MapPagesParams params = lists;
  Map(&missing_.resident, params);
  params.end_layer = 1;
  Map(&missing_.first, params);
  params = lists;
  params.pool = pools_.host;
  params.page_bytes = pools_.layout.host_page_bytes();
  params.first_layer = 1;
  Map(&missing_.host, params);
  params = lists;
  params.lists = slot_pages_.data();
  params.max_blocks = options_.max_slots;
  Map(&missing_.slots, params);
  params = lists;
  params.lists = key_lists_.data();
  params.max_blocks = max_key_pages_;
  Map(&missing_.keys, params);
  params = lists;
  params.lists = partial_lists_.data();
  params.max_blocks = max_partial_pages_;
  Map(&missing_.partial, params);
  params = lists;
  params.lists = lists_.data() + biases_offset();
  Map(&missing_.biases, params);
  params.lists = lists_.data() + sums_offset();
  Map(&missing_.sums, params);
  params.lists = mean_lists_.data();
  params.max_blocks = max_key_pages_;
  Map(&missing_.means, params);
}

void SequenceTables::Map(std::vector<MappedBlock>* mapped, kernels::MapPagesParams params) {
  for (size_t first = 0; first < mapped->size(); first += kMappedAtOnce) {
    backend_->Wait(mapped_mark_);  // host_mapped_ may still be being read
    const size_t count = std::min<size_t>(kMappedAtOnce, mapped->size() - first);
    std::copy_n(mapped->data() + first, count, host_mapped_);
    backend_->Copy(device_mapped_.data(), host_mapped_, count * sizeof(MappedBlock));
    mapped_mark_ = backend_->Mark();
    params.mapped = device_mapped_.data();
    params.num_mapped = static_cast<int>(count);
    backend_->MapPages(params);
  }
  mapped->clear();
}

}  // namespace augur::engine
