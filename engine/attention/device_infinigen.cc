// DeviceAttention's InfiniGen part: which rows and lists the ops of infinigen.h work on.
#include <algorithm>

#include "engine/attention/device_attention.h"
#include "engine/attention/segment_blocks.h"
#include "kernels/check.h"

namespace augur::engine {

using kernels::Backend;
using kernels::Segment;

void DeviceAttention::UploadBasis() {
  const size_t layer_bytes = basis_layer() * sizeof(float);
  for (int layer = 0; layer < options_.num_layers; ++layer) {
    const std::vector<float>& basis = options_.infinigen_basis->layers[layer];
    AUGUR_CHECK(basis.size() * sizeof(float) == layer_bytes);
    backend_->Copy(basis_.data() + layer * basis_layer(), basis.data(), layer_bytes);
  }
}

// Those that lack partial keys before the piece: a whole prompt behind its last chunk, a resumed
// sequence.
kernels::ProjectSegment DeviceAttention::ProjectOf(const AttentionPiece& piece) {
  const Segment rows = WithMissing(piece, piece.segment->kv->partial_tokens);
  return {.rows = rows,
          .pages = tables_->lists(piece.table) + FirstBlock(rows),
          .block_stride = 1,
          .head_stride = tables_->options().max_blocks,
          .targets = tables_->partial_lists(piece.table),
          .target_stride = tables_->max_partial_pages(),
          .channels = tables_->channels(piece.table)};
}

kernels::QuerySegment DeviceAttention::QueryOf(const AttentionPiece& piece) {
  return {.rows = piece.rows,
          .channels = tables_->channels(piece.table),
          .first_angle = options_.rope.first[piece.segment->rope_variant]};
}

// Of prompt rows that have not been summed before; behind the prompt's last one its channels are
// chosen, and all of its partial keys made.
void DeviceAttention::AddSums(const AttentionPiece& prompt) {
  const StepSegment& segment = *prompt.segment;
  const int begin = prompt.rows.first_position, end = begin + prompt.rows.num_rows;
  const int summed = segment.kv->summed_tokens;
  AUGUR_CHECK(end <= segment.prompt_tokens);
  AUGUR_CHECK(begin <= summed || begin > segment.rows.first_position);
  const int first = std::max(begin, summed);
  if (first < end) {
    lists_.sums.push_back({.rows = {prompt.rows.first_row + first - begin, end - first, first},
                           .sums = tables_->channel_sums(prompt.table)});
  }
  if (end < segment.prompt_tokens) return;
  if (summed < segment.prompt_tokens) {
    lists_.channels.push_back(
        {.sums = tables_->channel_sums(prompt.table), .channels = tables_->channels(prompt.table)});
  }
  lists_.project.push_back(ProjectOf(prompt));
}

// Layer 0 is no one's next layer: it has neither sums nor partial keys.
void DeviceAttention::TrackInfinigen(Backend* backend, const Group& group, int layer,
                                     int64_t offset, const float* qkv) {
  if (!has_infinigen() || layer == 0) return;
  const float* const basis = basis_.data() + layer * basis_layer();
  if (group.sums.count > 0) {
    backend->SumChannels({.q = qkv,
                          .basis = basis,
                          .segments = arrays_.sums + group.sums.first,
                          .num_segments = group.sums.count,
                          .rows = rows_,
                          .q_stride = options_.row_stride,
                          .num_kv_heads = options_.num_kv_heads,
                          .heads_per_group = options_.num_q_heads / options_.num_kv_heads,
                          .head_dim = options_.head_dim,
                          .sums_offset = layer * tables_->sums_layer(),
                          .runs = sum_runs_.data()});
  }
  if (group.channels.count > 0) {
    backend->ChooseChannels({.segments = arrays_.channels + group.channels.first,
                             .num_segments = group.channels.count,
                             .num_kv_heads = options_.num_kv_heads,
                             .head_dim = options_.head_dim,
                             .num_channels = options_.num_channels(),
                             .sums_offset = layer * tables_->sums_layer(),
                             .channels_offset = layer * tables_->channels_layer()});
  }
  if (group.project.count == 0) return;
  backend->ProjectKeys({.basis = basis,
                        .segments = arrays_.project + group.project.first,
                        .num_segments = group.project.count,
                        .num_kv_heads = options_.num_kv_heads,
                        .head_dim = options_.head_dim,
                        .num_channels = options_.num_channels(),
                        .dtype = options_.kv_dtype,
                        .pages_offset = offset,
                        .targets_offset = layer * tables_->partial_layer(),
                        .channels_offset = layer * tables_->channels_layer(),
                        .fp8 = tables_->pools().fp8_pages()});
}

// The queries of `layer` that the layer before makes of its own input, of all generated rows.
void DeviceAttention::Approximate(Backend* backend, int layer, const void* input) {
  if (!Approximates() || layer == options_.num_layers) return;
  const LinearWeights& qkv = options_.query_weights[layer].qkv;
  backend->Linear({.x = input,
                   .weight = qkv.weight.get(),
                   .bias = qkv.bias_data(),
                   .y = queries_[layer % 2].data(),
                   .rows = generated_rows_,
                   .x_stride = options_.hidden_size,
                   .y_stride = options_.q_width(),
                   .columns = options_.q_width(),
                   .phase = kernels::Phase::kDecode,
                   .x_dtype = options_.out_dtype});
}

// By partial keys; in layer 0, whose queries nothing has approximated, by the row's own.
void DeviceAttention::SelectInfinigen(Backend* backend, const Group& group, int layer,
                                      const float* qkv) {
  if (layer == 0) {
    return Select(backend, arrays_.select_first + group.select_first.first,
                  group.select_first.count, kDecodeRows, layer, ScoresOfQuery(qkv, layer));
  }
  const Range range = group.select[kInfinigenRule][kDecodeRows];
  if (range.count == 0) return;
  float* const vectors = vectors_[layer % 2].data();
  backend->ProjectQueries({.q = queries_[layer % 2].data(),
                           .basis = basis_.data() + layer * basis_layer(),
                           .segments = arrays_.queries + group.queries.first,
                           .out = vectors,
                           .num_segments = group.queries.count,
                           .q_stride = options_.q_width(),
                           .num_kv_heads = options_.num_kv_heads,
                           .heads_per_group = options_.num_q_heads / options_.num_kv_heads,
                           .head_dim = options_.head_dim,
                           .num_channels = options_.num_channels(),
                           .cos = options_.rope.cos,
                           .sin = options_.rope.sin,
                           .channels_offset = layer * tables_->channels_layer()});
  Select(backend, arrays_.select[kInfinigenRule] + range.first, range.count, kDecodeRows, layer,
         {.q = vectors,
          .q_stride = vector_width(),
          .heads_per_group = 1,
          .key_dim = options_.num_channels(),
          .keys_per_block = kernels::kBlockTokens,
          .keys_per_page = memory::kPartialFrameBlocks * kernels::kBlockTokens,
          .rule = kernels::ScoreRule::kProduct,
          .key_pages_offset = layer * tables_->partial_layer()});
}

}  // namespace augur::engine
