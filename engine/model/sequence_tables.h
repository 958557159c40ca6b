// What the device knows of each running sequence, in one row of several tables: where its blocks
// lie, its slots and what they hold, its compressed keys. Ops find all of it there; the host fills
// in what has changed since it last looked, and never reads it but to take a sequence away.
//
//   lists        [tables + 1][layers][kv heads][max_blocks]: where a block lies for good. Resident:
//                its page. Tiered: layer 0 its page, other layers its host page once it has been
//                written, and while it is open or not yet written the slot that it grows in
//                (kernels/ops/open_tails.h). The last row belongs to nobody: its first two layers
//                list the staging area's two halves, block b at place b.
//   slot_pages, slot_blocks, slot_stamps   [tables][layers][kv heads][max_slots]
//   slot_costs   likewise, where slots may hold keys alone (kernels/ops/place_blocks.h)
//   key_lists    [tables][layers][kv heads][max_key_pages]: pages of compressed keys
//   lists        a second time, biases_offset() entries behind, where the model has eviction
//                biases: those of each block; and sums_offset() behind, where sampled attention
//                reads sums of values: each block's
//   mean_lists   as key_lists: pages of window means of the biases
//   partial_lists   likewise [max_partial_pages]: pages of InfiniGen's partial keys
//   channel_sums, channels   [tables][layers][kv heads][head_dim], [head_dim / 4]: its state, which
//                SequenceKv holds while the sequence has no row here
//   value_states [tables][2][layers][kv heads][...]: what kShared keeps from token to token
//                (kernels/ops/sampled_attention.h), twice: that of an even position, and of an odd
//                one. A token reads what the one before it left, so running it again, where it had
//                been run ahead in vain, reads the same. SequenceKv's while there is no row
//
// Thread: the engine's. Ownership: the tables; backend and pools outlive it. Failure: Create names
// bytes and knobs. There are at least as many rows as sequences that run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/backend_array.h"
#include "memory/kv_pools.h"
#include "memory/sequence_kv.h"

namespace augur::engine {

struct SequenceTablesOptions {
  int num_tables = 0;
  int max_blocks = 0;  // of a sequence
  int max_slots = 0;   // of a group; 0: nothing is tiered
  bool selects = false;
  bool partial_keys = false;  // some sequence has partial keys
  bool keys_alone = false;    // slots may hold keys alone
  int value_state = 0;        // floats that sampled attention keeps for each layer and kv head
};

class SequenceTables {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceTables>> Create(
      kernels::Backend* backend, const memory::KvPools& pools,
      const SequenceTablesOptions& options);
  ~SequenceTables();
  SequenceTables(const SequenceTables&) = delete;
  SequenceTables& operator=(const SequenceTables&) = delete;

  // The row of the sequence, with everything in it that a step on blocks [0, blocks) reads, once
  // Upload has been called. Of a tiered sequence blocks below `on_host` are in the host pool or
  // will be before they are read there.
  int Prepare(const memory::SequenceKv& kv, int blocks, int on_host);
  // Of a sequence that has been prepared.
  int TableOf(memory::SequenceId id) const { return table_of_.at(id); }
  // Of such a one: its blocks that the lists look for in the host pool; 0 before.
  int OnHost(memory::SequenceId id) const {
    const auto found = table_of_.find(id);
    return found == table_of_.end() ? 0 : tables_[found->second].on_host;
  }
  // Of a sequence's tokens those whose eviction biases are on the device: nobody but the device
  // keeps them, so each sequence that is new to its row lacks all.
  int biased_tokens(memory::SequenceId id) const { return tables_[TableOf(id)].biased_tokens; }
  void NoteBiased(memory::SequenceId id, int tokens) {
    int& biased = tables_[TableOf(id)].biased_tokens;
    biased = std::max(biased, tokens);
  }
  // Of such a one that keeps value states: that of `position` is its newest.
  void NoteValueState(memory::SequenceId id, int position) {
    tables_[TableOf(id)].state_position = position;
  }
  // Sends what Prepare has found missing, in order with ops.
  void Upload();
  // The sequence is about to leave the device, or has ended. `keep`: what its slots hold is written
  // back to *kv; waits for the device.
  void Remove(memory::SequenceKv* kv, bool keep);

  const memory::KvPools& pools() const { return pools_; }
  const SequenceTablesOptions& options() const { return options_; }
  int max_key_pages() const { return max_key_pages_; }

  // A row's part of each table, at layer 0; further layers lie `..._layer` entries behind.
  std::byte** lists(int table) { return lists_.data() + table * lists_row(); }
  int64_t biases_offset() const { return options_.num_tables * lists_row() + 2 * lists_layer(); }
  int64_t sums_offset() const {
    return biases_offset() + (pools_.layout.has_biases() ? options_.num_tables * lists_row() : 0);
  }
  std::byte** mean_lists(int table) {
    return mean_lists_.data() + table * keys_layer() * pools_.layout.num_layers;
  }
  int64_t lists_layer() const { return int64_t{pools_.layout.num_kv_heads} * options_.max_blocks; }
  std::byte** key_lists(int table) {
    return key_lists_.data() + table * keys_layer() * pools_.layout.num_layers;
  }
  int64_t keys_layer() const { return int64_t{pools_.layout.num_kv_heads} * max_key_pages_; }
  std::byte** slot_pages(int table) { return slot_pages_.data() + table * slots_row(); }
  int32_t* slot_blocks(int table) { return slot_blocks_.data() + table * slots_row(); }
  int32_t* slot_stamps(int table) { return slot_stamps_.data() + table * slots_row(); }
  // Null: all slots hold keys and values.
  float* slot_costs(int table) {
    return options_.keys_alone ? slot_costs_.data() + table * slots_row() : nullptr;
  }
  float* value_state(int table, int position) {
    const int64_t states = state_layer() * pools_.layout.num_layers;
    return value_states_.data() + (2 * table + position % 2) * states;
  }
  int64_t state_layer() const { return int64_t{pools_.layout.num_kv_heads} * options_.value_state; }
  int max_partial_pages() const { return max_partial_pages_; }
  std::byte** partial_lists(int table) {
    return partial_lists_.data() + table * partial_layer() * pools_.layout.num_layers;
  }
  int64_t partial_layer() const { return int64_t{pools_.layout.num_kv_heads} * max_partial_pages_; }
  float* channel_sums(int table) {
    return channel_sums_.data() + table * sums_layer() * pools_.layout.num_layers;
  }
  int64_t sums_layer() const {
    return int64_t{pools_.layout.num_kv_heads} * pools_.layout.head_dim;
  }
  int32_t* channels(int table) {
    return channels_.data() + table * channels_layer() * pools_.layout.num_layers;
  }
  int64_t channels_layer() const {
    return int64_t{pools_.layout.num_kv_heads} * pools_.layout.num_channels();
  }
  int64_t slots_layer() const { return int64_t{pools_.layout.num_kv_heads} * options_.max_slots; }
  // From a row's lists at layer 0 to the list of a half of the staging area.
  int64_t staging_offset(int table, int half) const {
    return (options_.num_tables - table) * lists_row() + half * lists_layer();
  }

 private:
  // What the lists of one kind lack.
  struct Missing {
    std::vector<kernels::MappedBlock> resident;  // lists, all layers
    std::vector<kernels::MappedBlock> first;     // lists, layer 0
    std::vector<kernels::MappedBlock> host;      // lists, layers from 1 on
    std::vector<kernels::MappedBlock> slots;
    std::vector<kernels::MappedBlock> keys;
    std::vector<kernels::MappedBlock> partial;
    std::vector<kernels::MappedBlock> biases;
    std::vector<kernels::MappedBlock> means;
    std::vector<kernels::MappedBlock> sums;
  };
  struct Table {
    memory::SequenceId sequence = 0;
    uint64_t epoch = 0;  // of the sequence's frames; 0: free
    int blocks = 0;      // listed where they are resident
    int on_host = 0;     // listed at their host pages
    int key_pages = 0;
    int partial_pages = 0;
    int bias_blocks = 0;
    int biased_tokens = 0;
    int summed_blocks = 0;    // whose sums of values are listed
    int state_position = -1;  // of the newest value state
  };

  SequenceTables(kernels::Backend* backend, const memory::KvPools& pools,
                 const SequenceTablesOptions& options);
  absl::Status Allocate();
  int Claim(const memory::SequenceKv& kv);
  void ListLayer0(const memory::SequenceKv& kv, int table, int block);
  void UploadSlots(const memory::SequenceKv& kv, int table);
  void ListBiases(const memory::SequenceKv& kv, int table, int blocks);
  void ListSums(const memory::SequenceKv& kv, int table, int blocks);
  void UploadChannels(const memory::SequenceKv& kv, int table);
  void UploadValueState(const memory::SequenceKv& kv, int table);
  void DownloadValueState(int table, memory::SequenceKv* kv);
  void DownloadSlots(int table, memory::SequenceKv* kv);
  void ListStaging();
  void Map(std::vector<kernels::MappedBlock>* mapped, kernels::MapPagesParams params);
  int64_t lists_row() const { return lists_layer() * pools_.layout.num_layers; }
  int64_t slots_row() const { return slots_layer() * pools_.layout.num_layers; }

  kernels::Backend* const backend_;
  const memory::KvPools pools_;
  const SequenceTablesOptions options_;
  const int max_key_pages_;
  const int max_partial_pages_;

  std::vector<Table> tables_;
  std::unordered_map<memory::SequenceId, int> table_of_;
  Missing missing_;

  kernels::BackendArray<std::byte*> lists_;
  kernels::BackendArray<std::byte*> key_lists_;
  kernels::BackendArray<std::byte*> mean_lists_;
  kernels::BackendArray<std::byte*> partial_lists_;
  kernels::BackendArray<float> channel_sums_;
  kernels::BackendArray<int32_t> channels_;
  kernels::BackendArray<std::byte*> slot_pages_;
  kernels::BackendArray<int32_t> slot_blocks_;
  kernels::BackendArray<int32_t> slot_stamps_;
  kernels::BackendArray<float> slot_costs_;
  kernels::BackendArray<float> value_states_;
  kernels::BackendArray<kernels::MappedBlock> device_mapped_;  // [kMappedAtOnce]
  kernels::MappedBlock* host_mapped_ = nullptr;
  uint64_t mapped_mark_ = 0;  // of the last upload from host_mapped_
  // [3][layers][kv heads][max_slots]: blocks, stamps, and costs as floats
  int32_t* host_slots_ = nullptr;
  uint64_t slots_mark_ = 0;
};

}  // namespace augur::engine
