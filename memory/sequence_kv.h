// Where one sequence's KV is: the tables behind its frames, slots and host blocks.
//
// Thread: the engine's. Ownership: KvStore owns it and alone changes frames and host blocks;
// LayerResidency changes slots and writes while a step runs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/check.h"
#include "memory/block_key.h"
#include "memory/kv_layout.h"
#include "memory/kv_manager.h"
#include "memory/kv_pools.h"
#include "memory/slot_group.h"
#include "memory/transfer_engine.h"

namespace augur::memory {

// Blocks of one layer on their way to the host pool.
struct PendingWrite {
  Ticket ticket = kNoTicket;
  int layer = 0;
  int end_block = 0;  // all blocks of the layer below it are written once the ticket is done
};

// What a cold sequence (resumed, or a prefix hit) must have on the device before it takes a row, in
// pieces, in the order in which they are handed to the link.
struct WarmUpProgress {
  int blocks = 0;                  // piece i below: what is always there of block i
  int end = 0;                     // piece blocks + i: slots of the i-th group above layer 0
  int next = 0;                    // pieces below have been handed over
  int64_t bytes_on_their_way = 0;  // of SequenceKv::restores

  bool lacks() const { return next < end; }
};

struct SequenceKv {
  SequenceId id = 0;
  KvDemand demand;
  int num_slots = 0;                // demand.num_slots, or the blocks of a shorter sequence
  std::vector<int32_t> frames;      // kDevice: of each block. kTiered: slot frames, then layer 0
  uint64_t frames_epoch = 0;        // another one whenever frames changed other than at their end
  std::vector<int32_t> key_frames;  // of each 32 blocks' compressed keys
  std::vector<int32_t> partial_frames;  // of each 8 blocks' partial keys
  std::vector<int32_t> bias_frames;     // of each bias_frame_blocks() blocks' eviction biases
  std::vector<int32_t> sum_frames;      // of each sum_frame_blocks() blocks' sums of values
  std::vector<int32_t> host_blocks;     // of each block; empty: nothing goes to the host
  std::vector<int32_t> slot_blocks;     // [layers][kv heads][num_slots]
  std::vector<int32_t> slot_stamps;     // likewise
  // Likewise. A slot holds K alone or K and V; rows of values of a K-only slot are read from its
  // host page, and what they have cost since (nanoseconds on the link) is added up here.
  std::vector<uint8_t> slot_has_values;
  std::vector<float> slot_costs;
  int keyed_blocks = 0;   // blocks whose compressed keys are on the device
  int biased_blocks = 0;  // blocks whose eviction biases are
  int summed_blocks = 0;  // blocks whose sums of values are

  // InfiniGen's state, where the demand has partial_keys; kept while the sequence is saved.
  std::vector<float> channel_sums;  // [layers][kv heads][head_dim]: of the prompt's first tokens
  std::vector<int32_t> channels;    // [layers][kv heads][head_dim / 4], ascending
  int summed_tokens = 0;   // of the prompt, that channel_sums have; all: channels are chosen
  int partial_tokens = 0;  // whose partial keys are on the device

  // What sampled attention remembers from token to token, [layers][kv heads][...] as its op says;
  // empty before the first sampled token. Kept while the sequence is saved.
  std::vector<float> value_state;

  // The host side. Blocks below submitted_blocks[layer] have been handed to the transfer engine,
  // those below landed_blocks[layer] are in the host pool, both in order of blocks.
  std::vector<int> submitted_blocks;  // [layers]
  std::vector<int> landed_blocks;     // [layers]
  std::vector<PendingWrite> writes;   // oldest first
  WarmUpProgress warm_up;
  std::vector<Ticket> restores;     // layer 0, compressed keys and slots on their way back
  std::vector<Ticket> value_moves;  // V halves of K-only slots on their way
  std::vector<BlockKey> late_keys;  // closing: prompt blocks to publish once they have landed
  int late_first = 0;               // block of late_keys[0]

  int landed_everywhere() const {
    return landed_blocks.empty() ? 0
                                 : *std::min_element(landed_blocks.begin(), landed_blocks.end());
  }

  bool tiered() const { return demand.residency == Residency::kTiered; }
  bool writes_behind() const { return !host_blocks.empty(); }

  SlotGroup group(const KvLayout& layout, int layer, int kv_head) {
    const size_t begin = (size_t(layer) * layout.num_kv_heads + kv_head) * num_slots;
    return {std::span(slot_blocks).subspan(begin, num_slots),
            std::span(slot_stamps).subspan(begin, num_slots)};
  }

  size_t slot_index(const KvLayout& layout, int layer, int kv_head, int slot) const {
    return (size_t(layer) * layout.num_kv_heads + kv_head) * num_slots + slot;
  }

  // Page that holds `block` for good: every block under kDevice, layer 0 under kTiered.
  std::byte* resident_page(const KvPools& pools, int layer, int kv_head, int block) const {
    if (!tiered()) return pools.device_page(frames[block], layer, kv_head);
    AUGUR_CHECK(layer == 0);
    if (block < num_slots) return pools.device_page(frames[block], 0, kv_head);
    const int extra = block - num_slots;
    const int layers = pools.layout.num_layers;
    return pools.device_page(frames[num_slots + extra / layers], extra % layers, kv_head);
  }
  std::byte* slot_page(const KvPools& pools, int layer, int kv_head, int slot) const {
    return pools.device_page(frames[slot], layer, kv_head);
  }
  std::byte* block_keys(const KvPools& pools, int layer, int kv_head, int block) const {
    return pools.device_page(key_frames[block / kKeyFrameBlocks], layer, kv_head) +
           block % kKeyFrameBlocks * pools.layout.key_bytes;
  }
  // Eviction biases of the block's tokens, and the means of the windows that end in it.
  float* block_biases(const KvPools& pools, int layer, int kv_head, int block) const {
    return bias_page(pools, layer, kv_head, block) +
           size_t(block % pools.layout.bias_frame_blocks()) * kBiasTokens;
  }
  float* block_bias_means(const KvPools& pools, int layer, int kv_head, int block) const {
    const size_t blocks = pools.layout.bias_frame_blocks();
    return bias_page(pools, layer, kv_head, block) + blocks * kBiasTokens +
           block % blocks * kBiasWindows;
  }
  float* block_value_sum(const KvPools& pools, int layer, int kv_head, int block) const {
    const int blocks = pools.layout.sum_frame_blocks();
    std::byte* page = pools.device_page(sum_frames[block / blocks], layer, kv_head);
    return reinterpret_cast<float*>(page + block % blocks * pools.layout.sum_bytes);
  }
  // A layer's part of the InfiniGen state: [kv heads][...].
  float* sums_of(const KvLayout& layout, int layer) {
    return channel_sums.data() + size_t(layer) * layout.num_kv_heads * layout.head_dim;
  }
  int32_t* channels_of(const KvLayout& layout, int layer) {
    return channels.data() + size_t(layer) * layout.num_kv_heads * layout.num_channels();
  }

  // Frames that hold something beside pages, all kinds.
  size_t num_side_frames() const {
    return key_frames.size() + partial_frames.size() + bias_frames.size() + sum_frames.size();
  }

 private:
  float* bias_page(const KvPools& pools, int layer, int kv_head, int block) const {
    const int frame = bias_frames[block / pools.layout.bias_frame_blocks()];
    return reinterpret_cast<float*>(pools.device_page(frame, layer, kv_head));
  }
};

}  // namespace augur::memory
