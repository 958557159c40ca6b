// DeviceAttention's NOSA part: eviction biases (kernels/ops/eviction_bias.h) of new tokens, and of
// those that a prefix hit or a resumed sequence brought without; and the biases of chosen blocks.
#include "engine/attention/device_attention.h"
#include "engine/attention/segment_blocks.h"
#include "kernels/check.h"

namespace augur::engine {

using kernels::Backend;

// Of all of a sequence's blocks, at layer 0.
const float* const* DeviceAttention::BiasesOf(int table) const {
  return reinterpret_cast<const float* const*>(tables_->lists(table) + tables_->biases_offset());
}

kernels::EvictionSegment DeviceAttention::EvictionOf(const AttentionPiece& piece) {
  const kernels::Segment rows = WithMissing(piece, tables_->biased_tokens(piece.segment->kv->id));
  const int first = FirstBlock(rows);
  return {
      .rows = rows,
      .pages = tables_->lists(piece.table) + first,
      .biases =
          reinterpret_cast<float* const*>(tables_->lists(piece.table) + tables_->biases_offset()) +
          first - 1,
      .block_stride = 1,
      .head_stride = tables_->options().max_blocks,
      .mean_pages =
          selects() ? reinterpret_cast<float* const*>(tables_->mean_lists(piece.table)) : nullptr,
      .mean_page_stride = tables_->max_key_pages()};
}

void DeviceAttention::AppendBiases(Backend* backend, const Group& group, int layer,
                                   int64_t offset) {
  if (group.evict.count == 0) return;
  const EvictionHead& head = options_.eviction_weights[layer].eviction;
  backend->EvictionBias({.gate = head.gate.data(),
                         .weight = head.weight.data(),
                         .bias = head.bias.data(),
                         .segments = arrays_.evict + group.evict.first,
                         .num_segments = group.evict.count,
                         .num_kv_heads = options_.num_kv_heads,
                         .head_dim = options_.head_dim,
                         .dtype = options_.kv_dtype,
                         .pages_offset = offset,
                         .biases_offset = layer * tables_->lists_layer(),
                         .means_offset = layer * tables_->keys_layer()});
}

// A chosen block's biases lie where they always do, as a resident page does.
void DeviceAttention::PlaceBiases(Backend* backend, Time time, Range range, int layer) {
  FindSources(backend, time, range, layer,
              layer * tables_->lists_layer() + tables_->biases_offset(),
              SelectionOf(layer).biases.data());
}

}  // namespace augur::engine
