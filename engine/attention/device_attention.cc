#include "engine/attention/device_attention.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

using kernels::Backend;
using kernels::BackendArray;
using kernels::Lane;
using kernels::Phase;

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceAttention>> DeviceAttention::Create(
    Backend* backend, const DeviceAttentionOptions& options, SequenceTables* tables,
    memory::DeviceTransfers* transfers) {
  std::unique_ptr<DeviceAttention> attention(
      new DeviceAttention(backend, options, tables, transfers));
  AUGUR_RETURN_IF_ERROR(attention->Allocate());
  return attention;
}

DeviceAttention::DeviceAttention(Backend* backend, const DeviceAttentionOptions& options,
                                 SequenceTables* tables, memory::DeviceTransfers* transfers)
    : backend_(backend),
      options_(options),
      tables_(tables),
      transfers_(transfers),
      stride_(options.max_top_k),
      copy_ctas_(options.copy_ctas),
      driven_reuse_(options.driven.reuse) {
  AUGUR_CHECK(!is_tiered() || transfers != nullptr);
}

absl::Status DeviceAttention::Allocate() {
  size_t bytes = 0;
  bool fits = true;
  const auto reserve = [&]<class T>(size_t count, BackendArray<T>* array) {
    *array = BackendArray<T>(backend_, count);
    bytes += count * sizeof(T);
    fits = fits && array->allocated();
  };
  const size_t rows = options_.max_rows, heads = options_.num_kv_heads;
  const size_t layers = options_.num_layers;
  for (BackendArray<float>& forecasts : forecasts_) {
    reserve(options_.has_forecast ? rows * options_.kv_width() : 0, &forecasts);
  }
  for (Selection& selection : selections_) {
    reserve(rows * heads * stride_, &selection.blocks);
    reserve(rows * heads, &selection.counts);
    reserve(rows * heads * stride_, &selection.pages);
    reserve(has_biases() ? rows * heads * stride_ : 0, &selection.biases);
    reserve(has_halves() ? rows * heads * stride_ : 0, &selection.values);
    reserve(has_halves() ? rows * heads * stride_ : 0, &selection.source_slots);
    reserve(has_value_sums() ? rows * heads * stride_ : 0, &selection.sums);
    const size_t copies = is_tiered() ? options_.max_segments * heads * stride_ : 0;
    reserve(has_halves() ? 2 * copies : copies, &selection.copies);
    reserve(1, &selection.num_copies);
  }
  const size_t list = is_tiered() ? heads * tables_->options().max_blocks : 0;
  reserve(list, &history_copies_);
  for (BackendArray<kernels::PageCopy>& copies : spill_copies_) reserve(list, &copies);
  const size_t ends = is_tiered() ? heads * end_stride() : 0;
  reserve(has_halves() ? 2 * ends : ends, &end_copies_);
  reserve(ends, &end_pages_);
  reserve(1, &num_end_copies_);
  reserve(layers, &placement_);
  reserve(2 * layers, &stamps_);
  reserve(1, &granted_);
  for (BackendArray<int32_t>& entry_rows : entry_rows_) {
    reserve(has_halves() ? rows * heads * stride_ : 0, &entry_rows);
  }
  reserve(draws_values() ? 1 : 0, &sampled_totals_);
  reserve(options_.driven.by_law ? layers * stacks_layer() : 0, &stacks_);
  const bool infinigen = has_infinigen();
  reserve(infinigen ? layers * basis_layer() : 0, &basis_);
  const int runs = kernels::SumRuns(options_.max_rows, options_.max_segments);
  reserve(infinigen ? size_t(runs) * options_.kv_width() : 0, &sum_runs_);
  for (int parity = 0; parity < 2; ++parity) {
    reserve(infinigen ? rows * options_.q_width() : 0, &queries_[parity]);
    reserve(infinigen ? rows * vector_width() : 0, &vectors_[parity]);
  }
  if (!fits) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for what tokens choose: ", bytes,
                                                     " bytes (batched_tokens ", rows,
                                                     ", max_top_k_blocks ", stride_, ")"));
  }
  const std::vector<kernels::PlacementCounts> none(layers);
  backend_->Copy(placement_.data(), none.data(), layers * sizeof(none[0]));
  const std::vector<int64_t> never(2 * layers);
  backend_->Copy(stamps_.data(), never.data(), never.size() * sizeof(never[0]));
  backend_->Copy(granted_.data(), &options_.copy_ctas, sizeof(int32_t));
  const int32_t no_copies = 0;
  for (Selection& selection : selections_) {
    backend_->Copy(selection.num_copies.data(), &no_copies, sizeof(no_copies));
  }
  const SampledTotals no_values;
  if (draws_values()) backend_->Copy(sampled_totals_.data(), &no_values, sizeof(no_values));
  const std::vector<int32_t> anew(stacks_.size());
  if (!anew.empty()) backend_->Copy(stacks_.data(), anew.data(), anew.size() * sizeof(int32_t));
  if (has_infinigen()) UploadBasis();
  backend_->Synchronize();
  return absl::OkStatus();
}

void DeviceAttention::RunAhead(Backend* backend, int layer) {
  const int next = layer + 1;
  const bool chooses = ChoosesAhead(next);
  Backend* const select = backend->OnLane(Lane::kSelect);
  Backend* const fetch = backend->OnLane(Lane::kFetch);
  // Before main waits for this layer's copies, which the next layer's choice need not do.
  if (chooses) select->Follow(backend);
  if (ChoosesAhead(layer)) {
    if (calls_.tiered) backend->Stamp({.at_ns = stamps_.data() + 2 * layer});
    if (!calls_.tiered || Lacks(OrderingEdge::kCopyBeforeRead)) {
      backend->Follow(select);
    } else {
      backend->Follow(fetch);
    }
    if (Lacks(OrderingEdge::kListBeforeCopy)) backend->Follow(select);
  }
  if (!chooses) return;
  // Of the layer before, whose lists the next one takes over.
  if (ReadsSlots(layer - 1)) CountReads(select, layer - 1);
  SelectForetold(select, main_, next, nullptr);
  Delay(select, OrderingEdge::kListBeforeCopy);
  Place(select, kAhead, main_.place[kAhead], next, next * tables_->lists_layer());
  if (!calls_.tiered) return;
  fetch->Follow(Lacks(OrderingEdge::kListBeforeCopy) ? backend : select);
  FetchPlaced(fetch, next);
}

void DeviceAttention::Delay(Backend* backend, OrderingEdge edge) {
  if (DelayOf(edge) == 0) return;
  constexpr int kAnyBytes = 16;  // no page is copied
  backend->CopyPages({.page_bytes = kAnyBytes, .quota = 1, .delay_ns = DelayOf(edge)});
}

// Of rows that choose in their layer: main waits for the copies.
void DeviceAttention::FetchNow(Backend* backend, int layer) {
  if (!calls_.tiered || layer == 0) return;
  Backend* const fetch = backend->OnLane(Lane::kFetch);
  backend->Stamp({.at_ns = stamps_.data() + 2 * layer});
  fetch->Follow(backend);
  FetchPlaced(fetch, layer);
  backend->Follow(fetch);
}

void DeviceAttention::FetchPlaced(Backend* fetch, int layer) {
  Selection& selection = SelectionOf(layer);
  fetch->CopyPages(
      {.pages = selection.copies.data(),
       .num_pages = selection.num_copies.data(),
       .page_bytes = fetched_bytes(),
       .quota = copy_ctas_,
       .granted = granted_.data(),
       .delay_ns = DelayOf(OrderingEdge::kCopyBeforeRead) + DelayOf(OrderingEdge::kTwoLists),
       .fp8 = tables_->pools().fp8_pages()});
  fetch->Stamp({.at_ns = stamps_.data() + 2 * layer + 1});
}

void DeviceAttention::BeginStep(Backend* backend) {
  if (calls_.tiered) backend->Stamp({.at_ns = stamps_.data()});
  const int tails = calls_.tiered ? static_cast<int>(lists_.tails.size()) : num_staged_tails_;
  if (tails > 0) {
    backend->OpenTails({.segments = arrays_.tails + (lists_.tails.size() - tails),
                        .num_segments = tails,
                        .num_layers = options_.num_layers,
                        .num_kv_heads = options_.num_kv_heads});
  }
  if (staged_.empty() || options_.num_layers == 1) return;
  StartHistory(0, 1);
}

void DeviceAttention::EndStep(Backend* backend) {
  // A recorded step has its lanes back in the end.
  if (Lacks(OrderingEdge::kCopyBeforeRead) && calls_.tiered && ChoosesAhead(1)) {
    backend->Follow(backend->OnLane(Lane::kFetch));
  }
  if (calls_.tiered) backend->Stamp({.at_ns = stamps_.data() + 1});
}

bool DeviceAttention::ChoosesAhead(int layer) const {
  return options_.prefetch && !in_time_ && calls_.foretells() && layer > 0 &&
         layer < options_.num_layers;
}

void DeviceAttention::RunLayer(Backend* backend, int layer, float* qkv, void* attended,
                               const void* input) {
  Approximate(backend, layer + 1, input);
  RunMain(backend, layer, qkv, attended);
  for (size_t group = 0; group < staged_.size(); ++group) RunStaged(group, layer, qkv, attended);
}

void DeviceAttention::AppendLayer(Backend* backend, int layer, float* qkv) {
  AUGUR_CHECK(staged_.empty());
  Append(backend, main_, layer, layer * tables_->lists_layer(), qkv);
}

void DeviceAttention::RunMain(Backend* backend, int layer, float* qkv, void* attended) {
  if (main_.append.count == 0) return;
  const int64_t offset = layer * tables_->lists_layer();
  Append(backend, main_, layer, offset, qkv);
  if (calls_.foretells()) RunAhead(backend, layer);
  if (calls_.sparse) {
    SelectSparse(backend, main_, kDecodeRows, layer, qkv);
    Place(backend, kInTime, main_.place[kInTime], layer, offset);
    FetchNow(backend, layer);
  }
  if (calls_.foretells() && !ChoosesAhead(layer)) {
    SelectForetold(backend, main_, layer, qkv);
    Place(backend, kAhead, main_.place[kAhead], layer, offset);
    FetchNow(backend, layer);
  }
  SelectPrompts(backend, main_, layer, qkv);
  Attend(backend, main_, layer, offset, qkv, attended);
}

void DeviceAttention::SelectPrompts(Backend* backend, const Group& group, int layer,
                                    const float* qkv) {
  SelectSparse(backend, group, kPromptRows, layer, qkv);
  SelectForecast(backend, group, kPromptRows, layer, qkv);
}

void DeviceAttention::SelectForetold(Backend* backend, const Group& group, int layer,
                                     const float* qkv) {
  SelectForecast(backend, group, kDecodeRows, layer, qkv);
  SelectInfinigen(backend, group, layer, qkv);
}

void DeviceAttention::RunStaged(size_t index, int layer, float* qkv, void* attended) {
  const Group& group = staged_[index];
  int64_t offset = 0;
  if (layer > 0) {
    backend_->Follow(backend_->OnLane(Lane::kFetch));  // its history
    offset = tables_->staging_offset(group.table, static_cast<int>(stage_ % 2));
    ++stage_;
    const bool last = index + 1 == staged_.size();
    if (!last || layer + 1 < options_.num_layers) {
      StartHistory(last ? 0 : index + 1, last ? layer + 1 : layer);
    }
  }
  Append(backend_, group, layer, offset, qkv);
  SelectPrompts(backend_, group, layer, qkv);
  SelectSparse(backend_, group, kDecodeRows, layer, qkv);
  SelectForetold(backend_, group, layer, qkv);
  for (const Time time : {kInTime, kAhead}) {
    // Resident or staged, the row reads its blocks where the lists lead.
    PlaceInPlace(time, group.place[time], layer, offset);
  }
  Delay(backend_, OrderingEdge::kReadBeforeHistory);
  Attend(backend_, group, layer, offset, qkv, attended);
  if (layer == 0) return;
  if (group.returns_tail) return ReturnTail(index, layer);
  MoveIntoSlots(group, layer, offset);
  SpillStaged(index, layer);
}

// The history of the next stage goes to the half of the staging area that the stage before this
// one has worked in: behind its attention, and behind its writes to the host.
void DeviceAttention::StartHistory(size_t index, int layer) {
  const Group& group = staged_[index];
  Backend* const fetch = backend_->OnLane(Lane::kFetch);
  // The writes have followed the attention: without its own edge it would have theirs.
  const bool behind_reads = !Lacks(OrderingEdge::kReadBeforeHistory);
  if (behind_reads) fetch->Follow(backend_);
  if (behind_reads && !Lacks(OrderingEdge::kSpillBeforeHistory)) {
    fetch->Follow(backend_->OnLane(Lane::kSpill));
  }
  if (group.history_blocks == 0) return;
  const int64_t half = stage_ % 2;
  fetch->ListPageCopies({.segments = arrays_.histories + index,
                         .num_segments = 1,
                         .num_kv_heads = options_.num_kv_heads,
                         .max_blocks = group.history_blocks,
                         .copies = history_copies_.data(),
                         .from_offset = layer * tables_->lists_layer(),
                         .to_offset = half * tables_->lists_layer()});
  fetch->CopyPages({.pages = history_copies_.data(),
                    .known_pages = group.history_blocks * options_.num_kv_heads,
                    .page_bytes = static_cast<int>(tables_->pools().layout.page_bytes),
                    .quota = std::min(copy_ctas_, kHistoryCtas),
                    .fp8 = tables_->pools().fp8_pages()});
}

void DeviceAttention::MoveIntoSlots(const Group& group, int layer, int64_t offset) {
  if (group.end.count == 0) return;
  Selection& selection = SelectionOf(layer);
  const size_t list = size_t(group.end_list) * options_.num_kv_heads;
  const bool listed = group.end_list >= 0;
  const kernels::PlaceBlocksParams params{
      .segments = arrays_.ends + group.end.first,
      .num_segments = 1,
      .num_kv_heads = options_.num_kv_heads,
      .blocks = listed ? arrays_.end_blocks + list * end_stride() : selection.blocks.data(),
      .counts = listed ? arrays_.end_counts + list : selection.counts.data(),
      .pages = listed ? end_pages_.data() : selection.pages.data(),
      .selection_stride = listed ? end_stride() : stride_,
      .max_slots = tables_->options().max_slots,
      .copies = end_copies_.data(),
      .num_copies = num_end_copies_.data(),
      .sources_offset = offset,
      .slots_offset = layer * tables_->slots_layer()};
  backend_->PlaceBlocks(WithValues(params, /*from_host=*/false, nullptr));
  backend_->CopyPages({.pages = end_copies_.data(),
                       .num_pages = num_end_copies_.data(),
                       .page_bytes = fetched_bytes(),
                       .quota = kSlotCopyCtas});
}

// Lists copies of blocks that the group has begun or gone on with, from the staging area to where
// the lists lead; which of the lists of copies.
int DeviceAttention::ListStaged(size_t index, int layer, int num_blocks) {
  const int half = static_cast<int>((stage_ - 1) % 2);
  backend_->ListPageCopies({.segments = arrays_.spills + index,
                            .num_segments = 1,
                            .num_kv_heads = options_.num_kv_heads,
                            .max_blocks = num_blocks,
                            .copies = spill_copies_[half].data(),
                            .from_offset = half * tables_->lists_layer(),
                            .to_offset = layer * tables_->lists_layer()});
  return half;
}

// Of a row that goes on with a block: with its k and v into the block's slot, which the lists lead
// to while it is open.
void DeviceAttention::ReturnTail(size_t index, int layer) {
  const int list = ListStaged(index, layer, 1);
  backend_->CopyPages({.pages = spill_copies_[list].data(),
                       .known_pages = options_.num_kv_heads,
                       .page_bytes = static_cast<int>(tables_->pools().layout.page_bytes),
                       .quota = kSlotCopyCtas});
}

void DeviceAttention::SpillStaged(size_t index, int layer) {
  const Group& group = staged_[index];
  if (group.num_spilled == 0) return;
  // Listed in the main order: the lane may be behind, and what it reads must then still be there.
  // The list of the stage before the last has been read, since this stage's history followed that.
  const int list = ListStaged(index, layer, group.num_spilled);
  Backend* const spill = backend_->OnLane(Lane::kSpill);
  spill->Follow(backend_);
  spill->CopyPages({.pages = spill_copies_[list].data(),
                    .known_pages = group.num_spilled * options_.num_kv_heads,
                    .page_bytes = static_cast<int>(tables_->pools().layout.page_bytes),
                    .quota = transfers_->ctas(),
                    .delay_ns = DelayOf(OrderingEdge::kSpillBeforeHistory) +
                                DelayOf(OrderingEdge::kWriteBeforeFetch),
                    .fp8 = tables_->pools().fp8_pages()});
}

void DeviceAttention::Append(Backend* backend, const Group& group, int layer, int64_t offset,
                             float* qkv) {
  const bool foretells = options_.has_forecast && layer + 1 < options_.num_layers;
  const int forecasts = foretells ? options_.num_kv_heads : 0;
  const bool normed = !options_.head_norms.empty();
  const kernels::RopeAppendParams append{
      .qkv = qkv,
      .segments = arrays_.append + group.append.first,
      .num_segments = group.append.count,
      .rows = rows_,
      .row_stride = options_.row_stride,
      .num_q_heads = options_.num_q_heads,
      .num_kv_heads = options_.num_kv_heads,
      .num_forecast_heads = layer == 0 ? 2 * forecasts : forecasts,
      .head_dim = options_.head_dim,
      .dtype = options_.kv_dtype,
      .cos = options_.rope.cos,
      .sin = options_.rope.sin,
      .pages_offset = offset,
      .forecasts = foretells ? forecasts_[layer % 2].data() : nullptr,
      .num_forecasts = forecasts,
      .q_norm = normed ? options_.head_norms[layer].q_norm.data() : nullptr,
      .k_norm = normed ? options_.head_norms[layer].k_norm.data() : nullptr,
      .norm_epsilon = options_.head_norm_epsilon,
      .fp8_rows = tables_->pools().layout.fp8_of.has_value()};
  const kernels::CompressKeysParams compress{.segments = arrays_.compress + group.compress.first,
                                             .num_segments = group.compress.count,
                                             .num_kv_heads = options_.num_kv_heads,
                                             .head_dim = options_.head_dim,
                                             .dtype = options_.kv_dtype,
                                             .pages_offset = offset,
                                             .key_pages_offset = layer * tables_->keys_layer(),
                                             .fp8 = tables_->pools().fp8_pages()};
  const bool compresses = selects() && group.compress.count > 0;
  // Decode rows have an entry of each list, in the same order, and need no key of another row of
  // the step unless they choose in time.
  const bool one_pass = compresses && &group == &main_ && !in_time_ &&
                        group.append.count == decode_rows_ && group.compress.count == decode_rows_;
  if (one_pass) {
    backend->AppendAndCompress(append, compress);
  } else {
    backend->RopeAppend(append);
  }
  if (has_biases()) AppendBiases(backend, group, layer, offset);
  SumValues(backend, arrays_.value_sums + group.value_sums.first, group.value_sums.count, layer,
            offset);
  if (!compresses) return;
  if (!one_pass) backend->CompressKeys(compress);
  TrackInfinigen(backend, group, layer, offset, qkv);
}

kernels::SelectBlocksParams DeviceAttention::ScoresOfQuery(const float* qkv, int layer) const {
  return {.q = qkv,
          .q_stride = options_.row_stride,
          .heads_per_group = options_.num_q_heads / options_.num_kv_heads,
          .key_dim = options_.head_dim,
          .keys_per_block = kernels::kBlockWindows,
          .rule = kernels::ScoreRule::kSoftmaxSum,
          .scale = options_.attention_scale,
          .key_pages_offset = layer * tables_->keys_layer()};
}

void DeviceAttention::SelectSparse(Backend* backend, const Group& group, PhaseIndex phase,
                                   int layer, const float* qkv) {
  const Range range = group.select[kSparseRule][phase];
  Select(backend, arrays_.select[kSparseRule] + range.first, range.count, phase, layer,
         ScoresOfQuery(qkv, layer));
}

void DeviceAttention::SelectForecast(Backend* backend, const Group& group, PhaseIndex phase,
                                     int layer, const float* qkv) {
  // Layer 0 has heads of its own; a later one takes what the layer before foretold.
  const bool own = layer == 0;
  const float* q =
      own ? qkv + options_.q_width() + 3 * options_.kv_width() : forecasts_[(layer - 1) % 2].data();
  const Range range = group.select[kForecastRule][phase];
  if (range.count == 0) return;
  Select(backend, arrays_.select[kForecastRule] + range.first, range.count, phase, layer,
         {.q = q,
          .q_stride = own ? options_.row_stride : options_.kv_width(),
          .heads_per_group = 1,
          .key_dim = options_.head_dim,
          .keys_per_block = kernels::kBlockWindows,
          .rule = kernels::ScoreRule::kProduct,
          .key_pages_offset = layer * tables_->keys_layer()});
}

void DeviceAttention::Select(Backend* backend, const kernels::SelectSegment* segments,
                             int num_segments, PhaseIndex phase, int layer,
                             kernels::SelectBlocksParams scores) {
  if (num_segments == 0) return;
  Selection& selection = SelectionOf(layer);
  scores.segments = segments;
  scores.num_segments = num_segments;
  scores.num_kv_heads = options_.num_kv_heads;
  scores.dtype = options_.kv_dtype;
  scores.blocks = selection.blocks.data();
  scores.counts = selection.counts.data();
  scores.selection_stride = stride_;
  scores.phase = phase == kDecodeRows ? Phase::kDecode : Phase::kPrefill;
  scores.rows = rows_;
  scores.max_blocks = max_blocks_;
  backend->SelectBlocks(scores);
  Drive(backend, segments, num_segments, phase, layer);
}

void DeviceAttention::Drive(Backend* backend, const kernels::SelectSegment* segments,
                            int num_segments, PhaseIndex phase, int layer) {
  if (driven_reuse_ < 0.0f) return;
  Selection& selection = SelectionOf(layer);
  const bool by_law = options_.driven.by_law && phase == kDecodeRows;
  backend->DriveChoice({.segments = segments,
                        .num_segments = num_segments,
                        .max_rows = phase == kDecodeRows ? 1 : rows_,
                        .num_kv_heads = options_.num_kv_heads,
                        .blocks = selection.blocks.data(),
                        .counts = selection.counts.data(),
                        .selection_stride = stride_,
                        .layer = layer,
                        .reuse = driven_reuse_,
                        .stacks = by_law ? stacks_.data() + layer * stacks_layer() : nullptr,
                        .stack_stride = stack_stride(),
                        .law = options_.driven.law});
}

void DeviceAttention::Place(Backend* backend, Time time, Range range, int layer, int64_t offset) {
  if (range.count == 0) return;
  Selection& selection = SelectionOf(layer);
  const bool tiered = calls_.tiered && layer > 0;
  const auto& segments = layer == 0 ? arrays_.place_first : arrays_.place;
  const kernels::PlaceBlocksParams params{
      .segments = segments[time] + range.first,
      .num_segments = range.count,
      .num_kv_heads = options_.num_kv_heads,
      .blocks = selection.blocks.data(),
      .counts = selection.counts.data(),
      .pages = selection.pages.data(),
      .selection_stride = stride_,
      .max_slots = tiered ? tables_->options().max_slots : 0,
      .copies = tiered ? selection.copies.data() : nullptr,
      .num_copies = tiered ? selection.num_copies.data() : nullptr,
      .placement = tiered ? placement_.data() + layer : nullptr,
      .sources_offset = offset,
      .slots_offset = layer * tables_->slots_layer()};
  backend->PlaceBlocks(WithValues(params, /*from_host=*/true, &selection));
  if (has_biases()) PlaceBiases(backend, time, range, layer);
  PlaceSums(backend, time, range, layer);
}

void DeviceAttention::FindSources(Backend* backend, Time time, Range range, int layer,
                                  int64_t offset, const std::byte** found) {
  Selection& selection = SelectionOf(layer);
  backend->PlaceBlocks({.segments = arrays_.place_first[time] + range.first,
                        .num_segments = range.count,
                        .num_kv_heads = options_.num_kv_heads,
                        .blocks = selection.blocks.data(),
                        .counts = selection.counts.data(),
                        .pages = found,
                        .selection_stride = stride_,
                        .sources_offset = offset});
}

// Of generated rows among staged ones: as in layer 0, whatever the layer.
void DeviceAttention::PlaceInPlace(Time time, Range range, int layer, int64_t offset) {
  if (range.count == 0) return;
  FindSources(backend_, time, range, layer, offset, SelectionOf(layer).pages.data());
  if (has_biases()) PlaceBiases(backend_, time, range, layer);
  PlaceSums(backend_, time, range, layer);
}

void DeviceAttention::Attend(Backend* backend, const Group& group, int layer, int64_t offset,
                             const float* qkv, void* attended) {
  const kernels::PagedAttentionParams all{.q = qkv,
                                          .out = attended,
                                          .rows = rows_,
                                          .q_stride = options_.row_stride,
                                          .num_q_heads = options_.num_q_heads,
                                          .num_kv_heads = options_.num_kv_heads,
                                          .head_dim = options_.head_dim,
                                          .dtype = options_.kv_dtype,
                                          .scale = options_.attention_scale,
                                          .out_dtype = options_.out_dtype,
                                          .has_biases = has_biases()};
  const auto attend = [&](const kernels::AttentionSegment* segments, Range range,
                          kernels::PagedAttentionParams params) {
    if (range.count == 0) return;
    params.segments = segments + range.first;
    params.num_segments = range.count;
    backend->PagedAttention(params);
  };
  const int parity = layer % 2;
  kernels::PagedAttentionParams params = all;
  params.max_entries = max_blocks_;
  params.pages_offset = offset;
  params.biases_offset = layer * tables_->lists_layer();
  attend(arrays_.dense, group.dense[kPromptRows], params);
  params.phase = Phase::kDecode;
  attend(arrays_.dense, group.dense[kDecodeRows], params);
  params = all;
  params.phase = Phase::kDecode;
  params.max_entries = stride_;
  params.has_blocks = true;
  attend(arrays_.chosen[parity], group.chosen, params);
  params = all;
  params.max_entries = max_blocks_;
  params.pages_offset = offset;
  params.biases_offset = layer * tables_->lists_layer();
  params.has_choices = true;
  attend(arrays_.choosing[parity], group.choosing, params);
  AttendSampled(backend, group, layer, offset, qkv, attended);
}

}  // namespace augur::engine
