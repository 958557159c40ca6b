// Sizes of everything that a sequence's KV takes, and the one formula that admission, the start-up
// line and `augur info --kv` use.
//
//   page    a block's K and V for one (layer, kv head)
//   frame   the unit in which the device pool is handed out: one page for each (layer, kv head),
//   laid
//           out as page index (frame * layers + layer) * kv_heads + kv_head. A frame is one of
//             resident block  the block's pages in all layers (residency `device`)
//             slot s          slot s of every (layer >= 1, kv head) group; its layer-0 pages hold
//                             layer 0 of block s
//             layer 0         layer-0 pages of num_layers more blocks
//             keys            compressed keys of 32 blocks: page_bytes = 32 * key_bytes
//             partial keys    InfiniGen's partial keys of 8 blocks: a quarter of each key's
//                             channels, page_bytes = 8 * partial_bytes; made of the keys in the
//                             pages and never copied to the host
//             biases          NOSA's eviction biases of bias_frame_blocks() blocks, float32 of
//             every
//                             token and window: [blocks][64], then [blocks / 32][128] window means,
//                             each at the place of its compressed key
//             value sums      sampled attention's control variate: float32 sums of the values of
//                             sum_frame_blocks() blocks, [blocks][head_dim]
//   host block   a block in the pinned pool: its pages, as they are or in fp8 (kernels/fp8_page.h),
//                its compressed keys and, where the family
//                has them, its biases ([64][4]), and its sum of values where those are kept
//
// Plain data and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "kernels/dtype.h"
#include "kernels/fp8_page.h"

namespace augur::memory {

enum class Residency { kDevice, kTiered };

// Eviction biases of a block and group: one a token, then one a window that ends in the block.
inline constexpr int kBiasTokens = 64;
inline constexpr int kBiasWindows = 4;
inline constexpr int kBiasFloats = kBiasTokens + kBiasWindows;

struct KvLayout {
  int num_layers = 0;
  int num_kv_heads = 0;
  size_t page_bytes = 0;  // [K 64 x head_dim][V 64 x head_dim]
  size_t key_bytes = 0;   // compressed keys of one block, layer and kv head: page_bytes / 32
  int head_dim = 0;
  size_t bias_bytes = 0;  // eviction biases of one block, layer and kv head; 0: the model has none
  size_t sum_bytes = 0;   // sum of values of one block, layer and kv head; 0: none are kept
  // Host pages are in fp8, of pages of this type: a row is rounded to that when it is appended, in
  // every sequence. Unset: host pages have the bytes of device pages.
  std::optional<kernels::DType> fp8_of = {};

  int num_groups() const { return num_layers * num_kv_heads; }
  // Partial keys of one block, layer and kv head.
  size_t partial_bytes() const { return page_bytes / 8; }
  int num_channels() const { return head_dim / 4; }  // of a partial key
  size_t frame_bytes() const { return page_bytes * num_groups(); }
  // The keys of a page, or its values.
  size_t half_page_bytes() const { return page_bytes / 2; }
  // The same of a page in the host pool: what crosses the link.
  size_t host_page_bytes() const {
    return fp8_of.has_value() ? kernels::Fp8PageBytes(head_dim) : page_bytes;
  }
  size_t half_host_page_bytes() const { return host_page_bytes() / 2; }
  size_t host_row_bytes() const { return half_host_page_bytes() / kBiasTokens; }
  size_t host_block_bytes() const {
    return (host_page_bytes() + key_bytes + bias_bytes + sum_bytes) * num_groups();
  }
  bool has_biases() const { return bias_bytes > 0; }
  bool has_value_sums() const { return sum_bytes > 0; }
  int sum_frame_blocks() const {
    return has_value_sums() ? static_cast<int>(page_bytes / sum_bytes) : 0;
  }
  // Blocks whose biases a frame holds: a multiple of 32, since a page of window means has as many.
  // 0: a page is too small, the model cannot be served in this KV dtype.
  int bias_frame_blocks() const {
    return has_biases() ? static_cast<int>(page_bytes / (32 * bias_bytes)) * 32 : 0;
  }
};

// `biases`: a model with eviction biases (family nosa); then every sequence of it has them.
// `value_sums`: a deployment whose sampled attention reads them; likewise.
KvLayout MakeKvLayout(int num_layers, int num_kv_heads, int head_dim, size_t element_bytes,
                      bool biases = false, bool value_sums = false);

inline constexpr int kKeyFrameBlocks = 32;
inline constexpr int kPartialFrameBlocks = 8;

// What a sequence is promised when it is admitted.
struct KvDemand {
  Residency residency = Residency::kDevice;
  bool selects = false;       // some policy of its reads compressed keys
  int num_slots = 0;          // of each (layer, kv head) group, when tiered
  bool partial_keys = false;  // InfiniGen scores partial keys
};

struct KvFootprint {
  int block_frames = 0;    // resident blocks
  int slot_frames = 0;     // slots and spare slots
  int layer0_frames = 0;   // layer 0 beyond what the slot frames hold
  int key_frames = 0;      // compressed keys
  int partial_frames = 0;  // partial keys
  int bias_frames = 0;     // eviction biases
  int sum_frames = 0;      // sums of values
  int host_blocks = 0;

  // Those that hold something beside pages.
  int side_frames() const { return key_frames + partial_frames + bias_frames + sum_frames; }
  int frames() const { return block_frames + slot_frames + layer0_frames + side_frames(); }
  bool operator==(const KvFootprint&) const = default;
};

// Device frames and host blocks of a sequence of `blocks` blocks. Under kTiered the device part is
// taken for its whole life at admission, under kDevice it grows with the sequence.
KvFootprint FootprintOf(const KvLayout& layout, const KvDemand& demand, int blocks);

// The formula with its numbers, for people: "tiered, 128 blocks: 25 slots + 18 layer 0 + ...".
std::string DescribeFootprint(const KvLayout& layout, const KvDemand& demand, int blocks);

}  // namespace augur::memory
