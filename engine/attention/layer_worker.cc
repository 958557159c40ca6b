#include "engine/attention/layer_worker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/attention/segment_blocks.h"
#include "kernels/check.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

using kernels::kAttentionGroupBlocks;
using kernels::kBlockTokens;
using memory::SequenceKv;
using memory::TransferKind;

int BlocksOf(int tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

memory::ForcedBlocks ForcedOf(const StepSegment& segment) {
  return {segment.attention->budget.init, segment.attention->budget.local};
}

}  // namespace

absl::StatusOr<std::unique_ptr<LayerWorker>> LayerWorker::Create(kernels::Backend* backend,
                                                                 const LayerWorkerOptions& options,
                                                                 memory::KvStore* store,
                                                                 memory::ResidencyStats* stats,
                                                                 const memory::Clock* clock) {
  std::unique_ptr<LayerWorker> worker(new LayerWorker(backend, options, store, stats, clock));
  AUGUR_RETURN_IF_ERROR(worker->Allocate());
  return worker;
}

LayerWorker::LayerWorker(kernels::Backend* backend, const LayerWorkerOptions& options,
                         memory::KvStore* store, memory::ResidencyStats* stats,
                         const memory::Clock* clock)
    : backend_(backend),
      options_(options),
      store_(store),
      stats_(stats),
      clock_(clock),
      residency_(store,
                 {.max_rows = options.max_rows,
                  .max_segments = options.max_segments,
                  .fetch_blocks = options.fetch_blocks,
                  .value_fetch = options.values.fetch},
                 stats, clock),
      stride_(std::clamp(options.max_top_k, 2, std::max(2, BlocksOf(options.max_context)))),
      tile_blocks_(options.num_kv_heads),
      grown_blocks_(options.num_kv_heads) {
  AUGUR_CHECK(options.fetch_blocks % kAttentionGroupBlocks == 0);
}

LayerWorker::~LayerWorker() {
  for (void* allocation : allocations_) backend_->Free(allocation);
}

absl::Status LayerWorker::Allocate() {
  const size_t rows = options_.max_rows;
  const size_t heads = options_.num_kv_heads;
  const size_t state_floats = kernels::AttentionStateFloats(options_.head_dim);
  bool fits = Reserve(rows * options_.num_q_heads * state_floats, &states_);
  for (std::span<float>& forecast : forecasts_) {
    fits = fits && Reserve(rows * options_.kv_width(), &forecast);
  }
  for (Selection* selection : {&selections_[0], &selections_[1], &recall_}) {
    fits = fits && Reserve(rows * heads * stride_, &selection->blocks) &&
           Reserve(rows * heads, &selection->counts) &&
           Reserve(rows * heads * stride_, &selection->pages);
    if (has_biases()) fits = fits && Reserve(rows * heads * stride_, &selection->biases);
    if (draws_values()) fits = fits && Reserve(rows * heads * stride_, &selection->values);
  }
  if (!fits) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for the attention of ", rows, " rows over ", stride_,
                     " blocks each (batched_tokens, max_top_k_blocks)"));
  }
  if (options_.infinigen.basis != nullptr) AUGUR_RETURN_IF_ERROR(CreateInfinigen());
  if (options_.values.offered()) AUGUR_RETURN_IF_ERROR(AllocateSampled());
  const size_t segments = options_.max_segments;
  const size_t touched = (rows / kBlockTokens + 3 * segments) * heads;
  const size_t context_blocks = (options_.max_context + kBlockTokens - 1) / kBlockTokens;
  append_pages_.reserve(touched);
  source_pages_.reserve(touched);
  key_targets_.reserve(segments * heads * (context_blocks / memory::kKeyFrameBlocks + 1));
  const size_t page_blocks =
      infinigen_ == nullptr ? memory::kKeyFrameBlocks : memory::kPartialFrameBlocks;
  key_pages_.reserve(3 * segments * heads * (context_blocks / page_blocks + 1));
  list_pages_.reserve(3 * segments * heads * context_blocks);
  if (has_biases()) {
    bias_targets_.reserve(touched);
    mean_targets_.reserve(key_targets_.capacity());
    mean_pages_.reserve(key_pages_.capacity());
    list_biases_.reserve(list_pages_.capacity());
    eviction_segments_.reserve(segments);
  }
  append_segments_.reserve(segments);
  compress_segments_.reserve(segments);
  select_segments_.reserve(3 * segments);
  attention_segments_.reserve(rows + 3 * segments);
  requests_.reserve(segments);
  pieces_.reserve(3 * segments);
  staging_.reserve(segments);
  return absl::OkStatus();
}

void LayerWorker::BeginStep(std::span<const StepSegment> segments, int rows) {
  AUGUR_CHECK(static_cast<int>(segments.size()) <= options_.max_segments);
  segments_ = segments;
  rows_ = rows;
  ++step_;
  pieces_.clear();
  staging_.clear();
  staged_places_ = 0;
  for (const StepSegment& segment : segments) {
    const bool tiered = segment.kv->tiered();
    const bool chunk = tiered && segment.rows.num_rows > 1;
    Staging staging;
    if (chunk) {
      AUGUR_CHECK(segment.rows.first_position % kBlockTokens == 0);
      staging = {staged_places_, FirstBlock(segment.rows), EndBlock(segment.rows)};
      staged_places_ += staging.end_block - staging.first_block;
    }
    staging_.push_back(staging);
    RestoreKeys(segment);
    RestoreBiases(segment);
    RestorePartialKeys(segment);
    RestoreValueSums(segment);
    if (tiered && !chunk) {
      const memory::ForcedBlocks forced =
          segment.attention->selects() ? ForcedOf(segment) : memory::ForcedBlocks{};
      residency_.PrepareTail(segment.kv, segment.rows.first_position, forced);
    }
    const int end = segment.rows.first_position + segment.rows.num_rows;
    for (int position = segment.rows.first_position; position < end;) {
      int next =
          std::min(end, NextPolicyChange(*segment.attention, position, segment.prompt_tokens));
      // Generated tokens sample, also where they are computed again in a chunk.
      const bool sampled = segment.attention->values.sampled && position >= segment.prompt_tokens;
      AUGUR_CHECK(!sampled || options_.values.offered());
      if (segment.attention->values.sampled && !sampled) {
        next = std::min(next, segment.prompt_tokens);
      }
      const int row = segment.rows.first_row + position - segment.rows.first_position;
      pieces_.push_back({.segment = &segment,
                         .rows = {row, next - position, position},
                         .policy = PolicyAt(*segment.attention, position, segment.prompt_tokens),
                         .tiered = tiered,
                         .chunk = chunk,
                         .sampled = sampled});
      position = next;
    }
  }
}

// Compressed keys that a prefix hit on resident blocks did not bring: made again from the pages.
void LayerWorker::RestoreKeys(const StepSegment& segment) {
  SequenceKv* kv = segment.kv;
  const int first = kv->keyed_blocks, end = FirstBlock(segment.rows);
  if (!kv->demand.selects || first >= end) return;
  AUGUR_CHECK(!kv->tiered());
  for (int layer = 0; layer < options_.num_layers; ++layer) {
    std::vector<const std::byte*> sources;
    for (int block = first - 1; block < end; ++block) {
      for (int head = 0; head < options_.num_kv_heads; ++head) {
        sources.push_back(block < 0 ? nullptr
                                    : kv->resident_page(store_->pools(), layer, head, block));
      }
    }
    key_targets_.clear();
    AddKeyTargets(*kv, layer);
    const kernels::CompressSegment restored{
        .rows = {0, (end - first) * kBlockTokens, first * kBlockTokens},
        .pages = sources.data(),
        .key_pages = key_targets_.data(),
        .key_page_stride = static_cast<int>(kv->key_frames.size())};
    backend_->CompressKeys({.segments = &restored,
                            .num_segments = 1,
                            .num_kv_heads = options_.num_kv_heads,
                            .head_dim = options_.head_dim,
                            .dtype = options_.kv_dtype});
    backend_->Synchronize();
  }
  kv->keyed_blocks = end;
}

// The sequence's pages of compressed keys: [kv heads][key frames].
void LayerWorker::AddKeyTargets(const SequenceKv& kv, int layer) {
  for (int head = 0; head < options_.num_kv_heads; ++head) {
    for (const int32_t frame : kv.key_frames) {
      key_targets_.push_back(store_->pools().device_page(frame, layer, head));
    }
  }
}

void LayerWorker::RunLayer(int layer, float* qkv, float* attended, const float* input) {
  residency_.BeginLayer(layer, layer == 0 ? 0 : staged_places_);
  AppendAndCompress(layer, qkv);
  AppendBiases(layer);
  AppendValueSums(layer);
  if (observer_ != nullptr) {
    backend_->Synchronize();
    observer_->Observe(layer, rows_, qkv, options_.row_stride(), input);
  }
  TrackInfinigen(layer, qkv);
  ApproximateNext(layer, input);
  SelectAhead(layer);
  SelectNow(layer, qkv);
  if (observer_ != nullptr) Reroute(layer);
  residency_.WaitForLayer(layer);
  MeasureRecall(layer, qkv);
  if (observer_ != nullptr) ShowChoices(layer);
  SampleQueries(layer, qkv);
  Attend(layer, qkv, attended);
  WriteBehind(layer);
}

void LayerWorker::EndStep() {
  for (const StepSegment& segment : segments_) {
    EndInfinigen(segment);
    segment.kv->biased_blocks = std::max(segment.kv->biased_blocks, CompleteBlocks(segment.rows));
    segment.kv->summed_blocks = std::max(segment.kv->summed_blocks, CompleteBlocks(segment.rows));
    if (!segment.kv->demand.selects) continue;
    segment.kv->keyed_blocks = std::max(segment.kv->keyed_blocks, CompleteBlocks(segment.rows));
  }
}

void LayerWorker::AppendAndCompress(int layer, float* qkv) {
  append_pages_.clear();
  append_segments_.clear();
  for (size_t i = 0; i < segments_.size(); ++i) {
    const StepSegment& segment = segments_[i];
    const Staging& staging = staging_[i];
    append_segments_.push_back({.rows = segment.rows,
                                .pages = append_pages_.data() + append_pages_.size(),
                                .first_angle = options_.rope.first[segment.rope_variant]});
    for (int block = FirstBlock(segment.rows); block < EndBlock(segment.rows); ++block) {
      const int place = staging.place_of(block);
      for (int head = 0; head < options_.num_kv_heads; ++head) {
        append_pages_.push_back(residency_.AppendPage(segment.kv, layer, head, block, place));
      }
    }
  }
  int forecast_heads = 0;
  if (options_.has_forecast && layer + 1 < options_.num_layers) {
    forecast_heads = (layer == 0 ? 2 : 1) * options_.num_kv_heads;
  }
  const bool normed = !options_.head_norms.empty();
  backend_->RopeAppend({.qkv = qkv,
                        .segments = append_segments_.data(),
                        .num_segments = static_cast<int>(append_segments_.size()),
                        .rows = rows_,
                        .row_stride = options_.row_stride(),
                        .num_q_heads = options_.num_q_heads,
                        .num_kv_heads = options_.num_kv_heads,
                        .num_forecast_heads = forecast_heads,
                        .head_dim = options_.head_dim,
                        .dtype = options_.kv_dtype,
                        .cos = options_.rope.cos,
                        .sin = options_.rope.sin,
                        // Of the next layer, whose qkv will overwrite this one's.
                        .forecasts = forecast_heads > 0 ? forecasts_[layer % 2].data() : nullptr,
                        .num_forecasts = forecast_heads > 0 ? options_.num_kv_heads : 0,
                        .q_norm = normed ? options_.head_norms[layer].q_norm.data() : nullptr,
                        .k_norm = normed ? options_.head_norms[layer].k_norm.data() : nullptr,
                        .norm_epsilon = options_.head_norm_epsilon,
                        .fp8_rows = store_->pools().layout.fp8_of.has_value()});
  Compress(layer);
}

void LayerWorker::Compress(int layer) {
  source_pages_.clear();
  key_targets_.clear();
  compress_segments_.clear();
  for (size_t i = 0; i < segments_.size(); ++i) {
    const StepSegment& segment = segments_[i];
    SequenceKv* kv = segment.kv;
    if (!kv->demand.selects) continue;
    const int first = FirstBlock(segment.rows), end = EndBlock(segment.rows);
    compress_segments_.push_back({.rows = segment.rows,
                                  .pages = source_pages_.data() + source_pages_.size(),
                                  .key_pages = key_targets_.data() + key_targets_.size(),
                                  .key_page_stride = static_cast<int>(kv->key_frames.size())});
    AddKeyTargets(*kv, layer);
    // The window across the first block's beginning ends at its 16th token.
    const int offset = segment.rows.first_position % kBlockTokens;
    const bool reads_previous = first > 0 && offset < kernels::kWindowStride &&
                                offset + segment.rows.num_rows >= kernels::kWindowStride;
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      source_pages_.push_back(reads_previous ? residency_.ReadablePage(kv, layer, head, first - 1)
                                             : nullptr);
    }
    const Staging& staging = staging_[i];
    for (int block = first; block < end; ++block) {
      const int place = staging.place_of(block);
      for (int head = 0; head < options_.num_kv_heads; ++head) {
        source_pages_.push_back(residency_.AppendPage(kv, layer, head, block, place));
      }
    }
  }
  if (compress_segments_.empty()) return;
  backend_->CompressKeys({.segments = compress_segments_.data(),
                          .num_segments = static_cast<int>(compress_segments_.size()),
                          .num_kv_heads = options_.num_kv_heads,
                          .head_dim = options_.head_dim,
                          .dtype = options_.kv_dtype,
                          .fp8 = store_->pools().fp8_pages()});
}

bool LayerWorker::ChoosesAhead(const Piece& piece, int layer) const {
  const bool foretold =
      piece.policy == AttentionPolicy::kForecast || piece.policy == AttentionPolicy::kInfinigen;
  return foretold && piece.in_slots() && layer > 0;
}

bool LayerWorker::ChoosesNow(const Piece& piece, int layer) const {
  return piece.selects() && !ChoosesAhead(piece, layer);
}

template <class Wanted>
void LayerWorker::GatherSelection(int layer, const Wanted& wanted, bool partial) {
  const int page_blocks = partial ? memory::kPartialFrameBlocks : memory::kKeyFrameBlocks;
  key_pages_.clear();
  mean_pages_.clear();
  select_segments_.clear();
  for (const Piece& piece : pieces_) {
    if (!wanted(piece)) continue;
    const SequenceKv& kv = *piece.segment->kv;
    const std::vector<int32_t>& frames = partial ? kv.partial_frames : kv.key_frames;
    const int pages = (EndBlock(piece.rows) + page_blocks - 1) / page_blocks;
    const kernels::SelectionBudget budget = BudgetOf(piece);
    kernels::SelectSegment segment{.rows = piece.rows,
                                   .budget = budget,
                                   .key_pages = key_pages_.data() + key_pages_.size(),
                                   .key_page_stride = pages};
    if (has_biases()) {
      AUGUR_CHECK(!partial);
      segment.eviction_pages = mean_pages_.data() + mean_pages_.size();
      segment.query_top_k =
          std::clamp(options_.eviction.query_top_k, budget.init + budget.local, budget.top_k);
    }
    select_segments_.push_back(segment);
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      for (int page = 0; page < pages; ++page) {
        key_pages_.push_back(store_->pools().device_page(frames[page], layer, head));
        if (!has_biases()) continue;
        mean_pages_.push_back(
            kv.block_bias_means(store_->pools(), layer, head, page * page_blocks));
      }
    }
  }
}

// The rest of the parameters is the same for all.
void LayerWorker::RunSelection(kernels::SelectBlocksParams params, Selection* selection) {
  params.segments = select_segments_.data();
  params.num_segments = static_cast<int>(select_segments_.size());
  params.num_kv_heads = options_.num_kv_heads;
  params.dtype = options_.kv_dtype;
  params.blocks = selection->blocks.data();
  params.counts = selection->counts.data();
  params.selection_stride = stride_;
  backend_->SelectBlocks(params);
  backend_->Synchronize();
}

// Chooses for `layer` the blocks of all pieces for which `wanted` holds, by compressed keys; policy
// says by what rule q scores.
template <class Wanted>
void LayerWorker::Select(int layer, const Wanted& wanted, AttentionPolicy policy, const float* q,
                         int q_stride, Selection* selection) {
  GatherSelection(layer, wanted, /*partial=*/false);
  if (select_segments_.empty()) return;
  const bool by_query = policy == AttentionPolicy::kSparse;
  RunSelection({.q = q,
                .q_stride = q_stride,
                .heads_per_group = by_query ? options_.num_q_heads / options_.num_kv_heads : 1,
                .key_dim = options_.head_dim,
                .keys_per_block = kernels::kBlockWindows,
                .rule = by_query ? kernels::ScoreRule::kSoftmaxSum : kernels::ScoreRule::kProduct,
                .scale = options_.attention_scale},
               selection);
}

// Likewise by partial keys, with the queries that the layer before approximated.
template <class Wanted>
void LayerWorker::SelectInfinigen(int layer, const Wanted& wanted, Selection* selection) {
  if (infinigen_ == nullptr) return;
  const auto chosen_so = [&](const Piece& piece) {
    return piece.policy == AttentionPolicy::kInfinigen && wanted(piece);
  };
  GatherSelection(layer, chosen_so, /*partial=*/true);
  if (select_segments_.empty()) return;
  query_segments_.clear();
  for (const Piece& piece : pieces_) {
    if (!chosen_so(piece)) continue;
    query_segments_.push_back(
        {.rows = piece.rows,
         .channels = piece.segment->kv->channels_of(store_->pools().layout, layer),
         .first_angle = options_.rope.first[piece.segment->rope_variant]});
  }
  RunSelection({.q = infinigen_->Queries(layer, query_segments_),
                .q_stride = infinigen_->vector_width(),
                .heads_per_group = 1,
                .key_dim = infinigen_->num_channels(),
                .keys_per_block = kBlockTokens,
                .keys_per_page = memory::kPartialFrameBlocks * kBlockTokens,
                .rule = kernels::ScoreRule::kProduct},
               selection);
}

void LayerWorker::SelectAhead(int layer) {
  const int next = layer + 1;
  if (next < options_.num_layers) {
    Select(
        next,
        [&](const Piece& piece) {
          return ChoosesAhead(piece, next) && piece.policy == AttentionPolicy::kForecast;
        },
        AttentionPolicy::kForecast, forecasts_[layer % 2].data(), options_.kv_width(),
        &selections_[next % 2]);
    SelectInfinigen(
        next, [&](const Piece& piece) { return ChoosesAhead(piece, next); },
        &selections_[next % 2]);
    if (options_.prefetch) Request(next, TransferKind::kPrefetch);
  }
}

void LayerWorker::SelectNow(int layer, const float* qkv) {
  Selection* selection = &selections_[layer % 2];
  Select(
      layer,
      [&](const Piece& piece) {
        // InfiniGen has no layer before layer 0 that could approximate its queries.
        const bool by_query = piece.policy == AttentionPolicy::kSparse ||
                              (layer == 0 && piece.policy == AttentionPolicy::kInfinigen);
        return ChoosesNow(piece, layer) && by_query;
      },
      AttentionPolicy::kSparse, qkv, options_.row_stride(), selection);
  // Layer 0 has heads of its own; a later one takes what the layer before foretold.
  const float* forecast = layer == 0 ? qkv + options_.q_width() + 3 * options_.kv_width()
                                     : forecasts_[(layer - 1) % 2].data();
  Select(
      layer,
      [&](const Piece& piece) {
        return ChoosesNow(piece, layer) && piece.policy == AttentionPolicy::kForecast;
      },
      AttentionPolicy::kForecast, forecast,
      layer == 0 ? options_.row_stride() : options_.kv_width(), selection);
  if (layer > 0) {
    SelectInfinigen(
        layer, [&](const Piece& piece) { return ChoosesNow(piece, layer); }, selection);
    Request(layer, TransferKind::kFetch);
  }
}

// Asks for the blocks of slot rows: kPrefetch of those that chose ahead, kFetch of the others;
// without prefetch all are fetched when their layer needs them.
void LayerWorker::Request(int layer, TransferKind kind) {
  const bool wants_ahead = kind == TransferKind::kPrefetch;
  requests_.clear();
  Selection& selection = selections_[layer % 2];
  for (const Piece& piece : pieces_) {
    if (!piece.in_slots() || !piece.selects()) continue;
    if ((options_.prefetch && ChoosesAhead(piece, layer)) != wants_ahead) continue;
    const size_t at = list_at(piece.rows.first_row, 0);
    requests_.push_back(
        {.kv = piece.segment->kv,
         .position = piece.rows.first_position,
         .forced = ForcedOf(*piece.segment),
         .blocks = selection.blocks.data() + at,
         .counts = selection.counts.data() + size_t(piece.rows.first_row) * options_.num_kv_heads,
         .pages = selection.pages.data() + at,
         .values = piece.sampled && draws_values() ? selection.values.data() + at : nullptr,
         .stride = stride_});
  }
  if (!requests_.empty()) residency_.Request(layer, kind, requests_);
}

// How many of the blocks that the layer's own query would choose the Forecast chose too. With
// eviction biases both lists are those of both stages.
void LayerWorker::MeasureRecall(int layer, const float* qkv) {
  if (options_.recall_every == 0 || step_ % options_.recall_every != 0 || layer == 0) return;
  const auto measured = [&](const Piece& piece) {
    return piece.policy == AttentionPolicy::kForecast && piece.rows.num_rows == 1;
  };
  Select(layer, measured, AttentionPolicy::kSparse, qkv, options_.row_stride(), &recall_);
  uint64_t found = 0, wanted = 0;
  for (const Piece& piece : pieces_) {
    if (!measured(piece)) continue;
    const kernels::SelectionBudget& budget = piece.segment->attention->budget;
    const int local_begin = FirstBlock(piece.rows) - budget.local + 1;
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      const std::span<const int32_t> ahead = chosen(layer, piece.rows.first_row, head);
      const size_t at = list_at(piece.rows.first_row, head);
      const int count = recall_.counts[size_t(piece.rows.first_row) * options_.num_kv_heads + head];
      for (int entry = 0; entry < count; ++entry) {
        const int32_t block = recall_.blocks[at + entry];
        if (block < budget.init || block >= local_begin) continue;
        ++wanted;
        found += std::binary_search(ahead.begin(), ahead.end(), block) ? 1 : 0;
      }
    }
  }
  stats_->layers[layer].recall_found += found;
  stats_->layers[layer].recall_wanted += wanted;
}

void LayerWorker::Reroute(int layer) {
  Selection& selection = selections_[layer % 2];
  for (const Piece& piece : pieces_) {
    for (int i = 0; piece.selects() && !piece.tiered && i < piece.rows.num_rows; ++i) {
      const int row = piece.rows.first_row + i;
      for (int head = 0; head < options_.num_kv_heads; ++head) {
        const std::span<const int32_t> blocks = observer_->Route(layer, row, head);
        if (blocks.empty()) continue;
        AUGUR_CHECK(static_cast<int>(blocks.size()) <= stride_);
        std::copy(blocks.begin(), blocks.end(), selection.blocks.begin() + list_at(row, head));
        selection.counts[size_t(row) * options_.num_kv_heads + head] =
            static_cast<int32_t>(blocks.size());
      }
    }
  }
}

void LayerWorker::ShowChoices(int layer) {
  for (const Piece& piece : pieces_) {
    for (int i = 0; piece.selects() && i < piece.rows.num_rows; ++i) {
      const int row = piece.rows.first_row + i;
      for (int head = 0; head < options_.num_kv_heads; ++head) {
        observer_->ObserveChoice(layer, row, head, chosen(layer, row, head));
      }
    }
  }
}

std::span<const int32_t> LayerWorker::chosen(int layer, int row, int kv_head) const {
  const Selection& selection = selections_[layer % 2];
  for (const Piece& piece : pieces_) {
    if (row < piece.rows.first_row || row >= piece.rows.first_row + piece.rows.num_rows) continue;
    if (!piece.selects()) return {};
  }
  return std::span<const int32_t>(selection.blocks)
      .subspan(list_at(row, kv_head),
               selection.counts[size_t(row) * options_.num_kv_heads + kv_head]);
}

}  // namespace augur::engine
