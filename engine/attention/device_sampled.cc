// DeviceAttention's sampled part: rows of generated tokens that read some of their values
// (kernels/ops/sampled_attention.h), the sums of values that are their control variate, and what
// the rows that they read in host pages have cost.
//
// A step's rows go into one call. Only rows that a preemption makes again together, and that each
// start from the state that the one before left, go one by one, unrecorded, and see the sum of
// their own block as it was then.
#include <limits>

#include "engine/attention/device_attention.h"
#include "engine/attention/segment_blocks.h"
#include "kernels/check.h"

namespace augur::engine {

using kernels::Backend;

int DeviceAttention::fetched_bytes() const {
  const memory::KvLayout& layout = tables_->pools().layout;
  return static_cast<int>(has_halves() ? layout.half_page_bytes() : layout.page_bytes);
}

bool DeviceAttention::Samples(const AttentionPiece& piece) const {
  const StepSegment& segment = *piece.segment;
  if (!segment.attention->values.sampled || !draws_values()) return false;
  return piece.rows.first_position >= segment.prompt_tokens;
}

// Of all of a segment's rows at once, said by the piece that ends it; from a block's first token
// on, so that adding them again gives the same: a row may be run again.
kernels::SumValuesSegment DeviceAttention::ValueSumsOf(const AttentionPiece& piece) {
  const kernels::Segment& all = piece.segment->rows;
  kernels::Segment rows = piece.rows;
  if (all.num_rows > 1) {
    const int end = piece.rows.first_position + piece.rows.num_rows;
    if (end < all.first_position + all.num_rows) return {};
    rows = all;
  }
  const memory::SequenceKv& kv = *piece.segment->kv;
  // Tiered sequences come back with theirs.
  return SumsFrom(kv.tiered() ? FirstBlock(rows) : std::min(FirstBlock(rows), kv.summed_blocks),
                  rows.first_position + rows.num_rows, piece.table);
}

kernels::SumValuesSegment DeviceAttention::SumsFrom(int first_block, int end, int table) {
  std::byte** const lists = tables_->lists(table) + first_block;
  const int first = first_block * kernels::kBlockTokens;
  return {.rows = {.num_rows = end - first, .first_position = first},
          .pages = lists,
          .sums = reinterpret_cast<float* const*>(lists + tables_->sums_offset()),
          .block_stride = 1,
          .head_stride = tables_->options().max_blocks};
}

// What all kinds of rows have in common.
kernels::SampledSegment DeviceAttention::SampledOf(const AttentionPiece& piece) {
  const StepSegment& segment = *piece.segment;
  const int position = piece.rows.first_position;
  AUGUR_CHECK(piece.rows.num_rows == 1);
  kernels::SampledSegment sampled{.row = piece.rows.first_row,
                                  .position = position,
                                  .samples = segment.attention->values.samples,
                                  .seed = segment.sampling.seed,
                                  .choice_index = segment.sampling.choice_index};
  if (!keeps_state()) return sampled;
  sampled.state = tables_->value_state(piece.table, position + 1);  // of the token before
  sampled.next_state = tables_->value_state(piece.table, position);
  if (segment.rows.num_rows > 1) chained_values_ = true;
  return sampled;
}

// All blocks, where the lists lead: with their values.
kernels::SampledSegment DeviceAttention::SampledDenseOf(const AttentionPiece& piece) {
  kernels::SampledSegment sampled = SampledOf(piece);
  sampled.keys = tables_->lists(piece.table);
  if (has_biases()) sampled.biases = BiasesOf(piece.table);
  if (has_value_sums()) {
    sampled.value_sums =
        reinterpret_cast<const float* const*>(tables_->lists(piece.table) + tables_->sums_offset());
  }
  sampled.list_stride = tables_->options().max_blocks;
  return sampled;
}

kernels::SampledSegment DeviceAttention::SampledChosenOf(const AttentionPiece& piece, int parity,
                                                         bool in_slots) {
  Selection& selection = SelectionOf(parity);
  kernels::SampledSegment sampled = SampledOf(piece);
  const size_t at = list_at(piece.rows.first_row);
  sampled.keys = selection.pages.data() + at;
  sampled.blocks = selection.blocks.data() + at;
  sampled.counts = selection.counts.data() + size_t(piece.rows.first_row) * options_.num_kv_heads;
  if (has_biases()) {
    sampled.biases = reinterpret_cast<const float* const*>(selection.biases.data() + at);
  }
  if (has_value_sums()) {
    sampled.value_sums = reinterpret_cast<const float* const*>(selection.sums.data() + at);
  }
  sampled.list_stride = stride_;
  if (!in_slots) return sampled;
  sampled.values = selection.values.data() + at;
  sampled.entry_rows = entry_rows_[parity].data() + at;
  return sampled;
}

// Of its own block, as it is with the row.
kernels::SumValuesSegment DeviceAttention::OwnSumOf(const AttentionPiece& piece) {
  return SumsFrom(FirstBlock(piece.rows), piece.rows.first_position + 1, piece.table);
}

// In place of the padding that the row has everywhere.
void DeviceAttention::AddSampledRow(const AttentionPiece& piece) {
  if (keeps_state()) lists_.own_sums.back() = OwnSumOf(piece);
  if (piece.policy == AttentionPolicy::kDense) {
    lists_.sampled_dense.back() = SampledDenseOf(piece);
    return;
  }
  const bool in_slots = piece.segment->kv->tiered();
  for (int parity = 0; parity < 2; ++parity) {
    lists_.sampled[parity].back() = SampledChosenOf(piece, parity, in_slots);
  }
  if (!in_slots) return;
  lists_.reads.back() = {.row = piece.rows.first_row,
                         .slot_costs = tables_->slot_costs(piece.table),
                         .slot_stride = tables_->options().max_slots};
}

// What it reads lies in the staging area, whole.
void DeviceAttention::AddStagedSampledRow(const AttentionPiece& piece) {
  if (keeps_state()) lists_.own_sums.push_back(OwnSumOf(piece));
  if (piece.policy == AttentionPolicy::kDense) {
    lists_.sampled_dense.push_back(SampledDenseOf(piece));
    return;
  }
  for (int parity = 0; parity < 2; ++parity) {
    lists_.sampled[parity].push_back(SampledChosenOf(piece, parity, /*in_slots=*/false));
  }
}

void DeviceAttention::PackSampled(StepTables* tables, bool whole) {
  if (has_value_sums()) arrays_.value_sums = tables->Put(lists_.value_sums);
  if (!draws_values() || (!whole && !calls_.sampled)) return;
  if (whole || calls_.dense) arrays_.sampled_dense = tables->Put(lists_.sampled_dense);
  for (int parity = 0; parity < 2; ++parity) {
    if (whole || calls_.selects()) arrays_.sampled[parity] = tables->Put(lists_.sampled[parity]);
  }
  if (whole || calls_.tiered) arrays_.reads = tables->Put(lists_.reads);
  if (chained_values_) arrays_.own_sums = tables->Put(lists_.own_sums);
}

size_t DeviceAttention::SampledBytesOfRow() const {
  const size_t sums = has_value_sums() ? 2 * sizeof(kernels::SumValuesSegment) : 0;
  if (!draws_values()) return sums;
  return sums + 3 * sizeof(kernels::SampledSegment) + sizeof(kernels::ValueReadsSegment);
}

kernels::PlaceBlocksParams DeviceAttention::WithValues(kernels::PlaceBlocksParams params,
                                                       bool from_host, Selection* selection) const {
  if (!has_halves()) return params;
  const memory::KvLayout& layout = tables_->pools().layout;
  const size_t host_half = layout.half_host_page_bytes();
  params.half_bytes = static_cast<int>(layout.half_page_bytes());
  params.source_half_bytes = from_host ? static_cast<int>(host_half) : params.half_bytes;
  params.move_cost = options_.values.fetch == memory::ValueFetch::kAuto
                         ? static_cast<float>(memory::LinkNs(static_cast<double>(host_half)))
                         : std::numeric_limits<float>::infinity();
  if (selection == nullptr) return params;
  params.values = selection->values.data();
  params.source_slots = selection->source_slots.data();
  return params;
}

void DeviceAttention::SumValues(Backend* backend, const kernels::SumValuesSegment* segments,
                                int num_segments, int layer, int64_t offset) {
  if (!has_value_sums() || num_segments == 0) return;
  backend->SumValues({.segments = segments,
                      .num_segments = num_segments,
                      .num_kv_heads = options_.num_kv_heads,
                      .head_dim = options_.head_dim,
                      .dtype = options_.kv_dtype,
                      .pages_offset = offset,
                      .sums_offset = layer * tables_->lists_layer()});
}

// A chosen block's sum lies where it always does, as a resident page does.
void DeviceAttention::PlaceSums(Backend* backend, Time time, Range range, int layer) {
  if (!has_value_sums()) return;
  FindSources(backend, time, range, layer, layer * tables_->lists_layer() + tables_->sums_offset(),
              SelectionOf(layer).sums.data());
}

void DeviceAttention::AttendSampled(Backend* backend, const Group& group, int layer, int64_t offset,
                                    const float* qkv, void* attended) {
  if (group.sampled_dense.count == 0 && group.sampled.count == 0) return;
  const memory::KvPools& pools = tables_->pools();
  const kernels::Fp8Pages host = pools.Fp8PagesOfHost();
  const kernels::SampledAttentionParams all{.q = qkv,
                                            .out = attended,
                                            .totals = &sampled_totals_.data()->counts,
                                            .rows = rows_,
                                            .q_stride = options_.row_stride,
                                            .num_q_heads = options_.num_q_heads,
                                            .num_kv_heads = options_.num_kv_heads,
                                            .head_dim = options_.head_dim,
                                            .dtype = options_.kv_dtype,
                                            .scale = options_.attention_scale,
                                            .out_dtype = options_.out_dtype,
                                            .layer = layer,
                                            .samples = options_.values.samples[layer],
                                            .estimator = options_.values.kernel_estimator(),
                                            .budget = options_.values.budget,
                                            .host = {host.begin, host.end},
                                            .fp8 = pools.fp8_pages()};
  // first_sum: of own_sums, the range's first row.
  const auto attend = [&](const kernels::SampledSegment* segments, Range range, int first_sum,
                          kernels::SampledAttentionParams params) {
    const int at_once = chained_values_ ? 1 : range.count;
    for (int i = 0; i < range.count; i += at_once) {
      params.segments = segments + range.first + i;
      params.num_segments = at_once;
      if (chained_values_) SumValues(backend, arrays_.own_sums + first_sum + i, 1, layer, offset);
      backend->SampledAttention(params);
    }
  };
  // The main group's rows have places of their own in all lists, a staged one's follow each other.
  const bool staged = group.segment != nullptr;
  kernels::SampledAttentionParams params = all;
  params.max_entries = max_blocks_;
  params.keys_offset = offset;
  params.biases_offset = params.sums_offset = layer * tables_->lists_layer();
  params.state_offset = layer * tables_->state_layer();
  attend(arrays_.sampled_dense, group.sampled_dense, group.own_sums.first, params);
  params = all;
  params.max_entries = stride_;
  params.state_offset = layer * tables_->state_layer();
  attend(arrays_.sampled[layer % 2], group.sampled,
         group.own_sums.first + (staged ? group.sampled_dense.count : 0), params);
  if (!staged && ReadsSlots(layer) && !CountsReadsAside(layer)) CountReads(backend, layer);
}

bool DeviceAttention::ReadsSlots(int layer) const {
  return main_.sampled.count > 0 && calls_.tiered && layer > 0;
}

void DeviceAttention::CountReads(Backend* backend, int layer) {
  const Selection& selection = SelectionOf(layer);
  const double row_bytes = static_cast<double>(tables_->pools().layout.host_row_bytes());
  backend->CountValueReads({.segments = arrays_.reads,
                            .num_segments = decode_rows_,
                            .num_kv_heads = options_.num_kv_heads,
                            .entry_rows = entry_rows_[layer % 2].data(),
                            .counts = selection.counts.data(),
                            .source_slots = selection.source_slots.data(),
                            .selection_stride = stride_,
                            .row_cost = static_cast<float>(row_bytes * memory::kLinkNsPerByte),
                            .place_cost = static_cast<float>(memory::kLinkNsPerPlace),
                            .slots_offset = layer * tables_->slots_layer(),
                            .source_rows = &sampled_totals_.data()->host_rows});
}

}  // namespace augur::engine
