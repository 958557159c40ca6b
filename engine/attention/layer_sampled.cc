// LayerWorker's sampled part: rows of generated tokens that read some of their values
// (kernels/ops/sampled_attention.h), the sums of values that are their control variate, and queries
// that are sampled instead.
//
// A single row of a step goes into one call with the others. Rows that are computed again in a
// chunk, after a preemption, go one by one: each starts from the state that the one before left,
// and sees the sum of its own block as it was then.
#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "engine/attention/layer_worker.h"
#include "engine/attention/segment_blocks.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

using kernels::kBlockTokens;
using memory::SequenceKv;

int BlocksOf(int tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace

absl::Status LayerWorker::AllocateSampled() {
  const size_t heads = options_.num_kv_heads, segments = options_.max_segments;
  const size_t context_blocks = BlocksOf(options_.max_context);
  const size_t scores = context_blocks * kBlockTokens * options_.num_q_heads;
  const bool streams = store_->pools().num_host_blocks > 0 && draws_values();
  if (!Reserve(heads * options_.head_dim, &own_sums_) ||
      (streams && !Reserve(scores, &stream_scores_))) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for the scores of sampled attention over ", options_.max_context, " tokens"));
  }
  // Lists never move while a call reads them.
  const size_t entries = segments * heads * context_blocks;
  sampled_keys_.reserve(entries);
  sampled_values_.reserve(entries);
  sampled_sums_.reserve(entries);
  entry_rows_.reserve(entries);
  whole_counts_.reserve(segments * heads);
  sampled_segments_.reserve(segments);
  sampled_counts_.reserve(segments);
  sampled_pieces_.reserve(segments);
  sum_targets_.reserve((options_.max_rows / kBlockTokens + 3 * segments) * heads);
  if (has_biases()) list_biases_.reserve(3 * entries);
  return absl::OkStatus();
}

void LayerWorker::AppendValueSums(int layer) {
  if (!has_value_sums()) return;
  sum_targets_.clear();
  sum_targets_.reserve(append_pages_.size());
  std::vector<kernels::SumValuesSegment> sums;
  for (size_t i = 0; i < segments_.size(); ++i) {
    const StepSegment& segment = segments_[i];
    sums.push_back({.rows = segment.rows,
                    .pages = append_segments_[i].pages,
                    .sums = sum_targets_.data() + sum_targets_.size()});
    for (int block = FirstBlock(segment.rows); block < EndBlock(segment.rows); ++block) {
      for (int head = 0; head < options_.num_kv_heads; ++head) {
        sum_targets_.push_back(segment.kv->block_value_sum(store_->pools(), layer, head, block));
      }
    }
  }
  backend_->SumValues({.segments = sums.data(),
                       .num_segments = static_cast<int>(sums.size()),
                       .num_kv_heads = options_.num_kv_heads,
                       .head_dim = options_.head_dim,
                       .dtype = options_.kv_dtype});
}

// Sums that a prefix hit on resident blocks did not bring: made again from the pages.
void LayerWorker::RestoreValueSums(const StepSegment& segment) {
  SequenceKv* kv = segment.kv;
  const int first = kv->summed_blocks, end = FirstBlock(segment.rows);
  if (!has_value_sums() || first >= end) return;
  AUGUR_CHECK(!kv->tiered());
  for (int layer = 0; layer < options_.num_layers; ++layer) {
    std::vector<const std::byte*> pages;
    std::vector<float*> targets;
    for (int block = first; block < end; ++block) {
      for (int head = 0; head < options_.num_kv_heads; ++head) {
        pages.push_back(kv->resident_page(store_->pools(), layer, head, block));
        targets.push_back(kv->block_value_sum(store_->pools(), layer, head, block));
      }
    }
    const kernels::SumValuesSegment sums{
        .rows = {0, (end - first) * kBlockTokens, first * kBlockTokens},
        .pages = pages.data(),
        .sums = targets.data()};
    backend_->SumValues({.segments = &sums,
                         .num_segments = 1,
                         .num_kv_heads = options_.num_kv_heads,
                         .head_dim = options_.head_dim,
                         .dtype = options_.kv_dtype});
    backend_->Synchronize();
  }
  kv->summed_blocks = end;
}

int LayerWorker::SamplesOf(const Piece& piece, int layer) const {
  const int wished = piece.segment->attention->values.samples;
  return wished > 0 ? wished : options_.values.samples[layer];
}

void LayerWorker::SampleQueries(int layer, float* qkv) {
  if (!options_.values.offered() || !options_.values.samples_queries()) return;
  sampled_queries_.clear();
  for (const Piece& piece : pieces_) {
    if (!piece.sampled) continue;
    for (int i = 0; i < piece.rows.num_rows; ++i) {
      sampled_queries_.push_back({.row = piece.rows.first_row + i,
                                  .position = piece.rows.first_position + i,
                                  .samples = SamplesOf(piece, layer),
                                  .seed = piece.segment->sampling.seed,
                                  .choice_index = piece.segment->sampling.choice_index});
    }
  }
  if (sampled_queries_.empty()) return;
  std::vector<int64_t> features(sampled_queries_.size());
  backend_->SampleQueries(
      {.q = qkv,
       .out = qkv,
       .segments = sampled_queries_.data(),
       .features = features.data(),
       .num_segments = static_cast<int>(sampled_queries_.size()),
       .q_stride = options_.row_stride(),
       .num_q_heads = options_.num_q_heads,
       .num_kv_heads = options_.num_kv_heads,
       .head_dim = options_.head_dim,
       .layer = layer,
       .mean_group = options_.values.estimator == ValueEstimator::kBernoulliScoresGroup});
  backend_->Synchronize();
  stats_->sampled_features += std::accumulate(features.begin(), features.end(), int64_t{0});
}

void LayerWorker::ClearSampled() {
  sampled_keys_.clear();
  sampled_values_.clear();
  sampled_sums_.clear();
  entry_rows_.clear();
  whole_counts_.clear();
  sampled_segments_.clear();
  sampled_pieces_.clear();
  list_biases_.clear();
}

kernels::SampledSegment* LayerWorker::NewSampledRow(const Piece& piece, int row, int layer) {
  SequenceKv* kv = piece.segment->kv;
  const int heads = options_.num_kv_heads;
  const size_t state = size_t(heads) * kernels::ValueStateFloats(options_.num_q_heads / heads);
  if (kv->value_state.empty()) kv->value_state.assign(state * options_.num_layers, 0.0f);
  sampled_pieces_.push_back(&piece);
  sampled_segments_.push_back({.row = row,
                               .position = PositionOf(piece, row),
                               .state = kv->value_state.data() + state * layer,
                               .samples = SamplesOf(piece, layer),
                               .seed = piece.segment->sampling.seed,
                               .choice_index = piece.segment->sampling.choice_index});
  return &sampled_segments_.back();
}

// All blocks up to the row's own, which lie in frames.
void LayerWorker::AddSampledDense(const Piece& piece, int row, int layer) {
  kernels::SampledSegment* segment = NewSampledRow(piece, row, layer);
  const int blocks = PositionOf(piece, row) / kBlockTokens + 1;
  const size_t half = store_->pools().layout.half_page_bytes();
  segment->keys = sampled_keys_.data() + sampled_keys_.size();
  segment->values = sampled_values_.data() + sampled_values_.size();
  segment->counts = whole_counts_.data() + whole_counts_.size();
  segment->list_stride = blocks;
  segment->biases = AddBiasList(*piece.segment->kv, layer, 0, blocks);
  for (int head = 0; head < options_.num_kv_heads; ++head) {
    whole_counts_.push_back(blocks);
    for (int block = 0; block < blocks; ++block) {
      const std::byte* page = piece.segment->kv->resident_page(store_->pools(), layer, head, block);
      sampled_keys_.push_back(page);
      sampled_values_.push_back(page + half);
    }
  }
  AddSampledSums(piece, row, layer, segment);
}

// The chosen blocks, whose pages and values are filled in.
void LayerWorker::AddSampledSelection(const Piece& piece, int row, int layer) {
  Selection& selection = selections_[layer % 2];
  kernels::SampledSegment* segment = NewSampledRow(piece, row, layer);
  const size_t at = list_at(row, 0);
  segment->keys = selection.pages.data() + at;
  segment->values = selection.values.data() + at;
  segment->blocks = selection.blocks.data() + at;
  segment->counts = selection.counts.data() + size_t(row) * options_.num_kv_heads;
  segment->list_stride = stride_;
  for (int head = 0; has_biases() && head < options_.num_kv_heads; ++head) {
    for (int entry = 0; entry < segment->counts[head]; ++entry) {
      const size_t place = list_at(row, head) + entry;
      selection.biases[place] =
          piece.segment->kv->block_biases(store_->pools(), layer, head, selection.blocks[place]);
    }
    segment->biases = selection.biases.data() + at;
  }
  AddSampledSums(piece, row, layer, segment);
}

// Where the values of the row's own block lie, as SumValues reads them.
const std::byte* LayerWorker::OwnPage(const Piece& piece, int layer, int kv_head, int block) {
  const Staging& staging = staging_[piece.segment - segments_.data()];
  return residency_.AppendPage(piece.segment->kv, layer, kv_head, block,
                               layer == 0 ? -1 : staging.place_of(block));
}

// Sums of values of each entry, and room for what is read of it.
void LayerWorker::AddSampledSums(const Piece& piece, int row, int layer,
                                 kernels::SampledSegment* segment) {
  const int heads = options_.num_kv_heads, stride = segment->list_stride;
  segment->entry_rows = entry_rows_.data() + entry_rows_.size();
  entry_rows_.resize(entry_rows_.size() + size_t(heads) * stride);
  if (!has_value_sums() || options_.values.estimator != ValueEstimator::kShared) return;
  segment->value_sums = sampled_sums_.data() + sampled_sums_.size();
  const int own = segment->position / kBlockTokens;
  const bool in_chunk = piece.segment->rows.num_rows > 1;
  for (int head = 0; head < heads; ++head) {
    for (int entry = 0; entry < stride; ++entry) {
      const size_t place = size_t(head) * stride + entry;
      const bool listed = entry < segment->counts[head];
      const int block = segment->blocks == nullptr ? entry : segment->blocks[place];
      const float* sum = nullptr;
      if (listed) sum = piece.segment->kv->block_value_sum(store_->pools(), layer, head, block);
      if (listed && block == own && in_chunk) sum = own_sums_.data() + head * options_.head_dim;
      sampled_sums_.push_back(sum);
    }
  }
  if (!in_chunk) return;
  std::vector<const std::byte*> pages;
  std::vector<float*> targets;
  for (int head = 0; head < heads; ++head) {
    pages.push_back(OwnPage(piece, layer, head, own));
    targets.push_back(own_sums_.data() + head * options_.head_dim);
  }
  const int first = own * kBlockTokens;
  const kernels::SumValuesSegment sums{.rows = {row, segment->position - first + 1, first},
                                       .pages = pages.data(),
                                       .sums = targets.data()};
  backend_->SumValues({.segments = &sums,
                       .num_segments = 1,
                       .num_kv_heads = heads,
                       .head_dim = options_.head_dim,
                       .dtype = options_.kv_dtype});
  backend_->Synchronize();
}

kernels::SampledAttentionParams LayerWorker::SampledParams(int layer, const float* qkv,
                                                           float* attended) const {
  return {.q = qkv,
          .out = attended,
          .segments = sampled_segments_.data(),
          .num_segments = static_cast<int>(sampled_segments_.size()),
          .rows = rows_,
          .q_stride = options_.row_stride(),
          .num_q_heads = options_.num_q_heads,
          .num_kv_heads = options_.num_kv_heads,
          .head_dim = options_.head_dim,
          .dtype = options_.kv_dtype,
          .scale = options_.attention_scale,
          .layer = layer,
          .estimator = options_.values.kernel_estimator(),
          .budget = options_.values.budget,
          .fp8 = store_->pools().fp8_pages()};
}

// The rows that were added, and what they drew.
void LayerWorker::RunSampled(int layer, const float* qkv, float* attended) {
  if (sampled_segments_.empty()) return;
  kernels::SampledAttentionParams params = SampledParams(layer, qkv, attended);
  sampled_counts_.assign(sampled_segments_.size(), {});
  params.counts = sampled_counts_.data();
  if (sampled_segments_[0].keys == nullptr) {  // a stream's
    params.scores = stream_scores_.data();
    params.scores_stride = stream_scores_.size() / options_.num_q_heads;
  }
  backend_->SampledAttention(params);
  backend_->Synchronize();
  for (size_t i = 0; i < sampled_segments_.size(); ++i) {
    const kernels::SampledCounts& counts = sampled_counts_[i];
    stats_->sampled_draws += counts.draws;
    stats_->sampled_rows += counts.rows;
    stats_->sampled_distinct_rows += counts.distinct;
    const Piece& piece = *sampled_pieces_[i];
    // What a chunk reads lies in the staging area, whole, but for a stream's.
    if (!piece.tiered || layer == 0 || (piece.chunk && piece.selects())) continue;
    const kernels::SampledSegment& segment = sampled_segments_[i];
    residency_.NoteValueRows(piece.segment->kv, layer, segment.blocks, segment.counts,
                             segment.entry_rows, segment.list_stride);
  }
}

// Rows whose keys lie in frames or slots: single rows in one call, those of chunks one by one.
void LayerWorker::AttendSampledInPlace(int layer, const float* qkv, float* attended) {
  const size_t half = store_->pools().layout.half_page_bytes();
  Selection& selection = selections_[layer % 2];
  const auto add = [&](const Piece& piece, int row) {
    const bool resident = !piece.tiered || layer == 0;
    if (!piece.selects()) return AddSampledDense(piece, row, layer);
    for (int head = 0; resident && head < options_.num_kv_heads; ++head) {
      const size_t at = list_at(row, head);
      const int count = selection.counts[size_t(row) * options_.num_kv_heads + head];
      for (size_t place = at; place < at + count; ++place) {
        const std::byte* page =
            piece.segment->kv->resident_page(store_->pools(), layer, head, selection.blocks[place]);
        selection.pages[place] = page;
        selection.values[place] = page + half;
      }
    }
    AddSampledSelection(piece, row, layer);
  };
  const auto in_place = [&](const Piece& piece) {
    const bool resident = !piece.tiered || layer == 0;
    return piece.sampled && (resident || (piece.selects() && !piece.chunk));
  };
  ClearSampled();
  for (const Piece& piece : pieces_) {
    if (in_place(piece) && piece.segment->rows.num_rows == 1) add(piece, piece.rows.first_row);
  }
  RunSampled(layer, qkv, attended);
  for (const Piece& piece : pieces_) {
    if (!in_place(piece) || piece.segment->rows.num_rows == 1) continue;
    for (int i = 0; i < piece.rows.num_rows; ++i) {
      ClearSampled();
      add(piece, piece.rows.first_row + i);
      RunSampled(layer, qkv, attended);
    }
  }
}

// Keys of all blocks pass through the staging area, as many groups at a time as fit.
void LayerWorker::ScoreStream(const Piece& piece, int row, int layer, const float* qkv,
                              float* attended) {
  const int blocks = PositionOf(piece, row) / kBlockTokens + 1;
  const int window = options_.fetch_blocks;
  for (int first = 0; first < blocks; first += window) {
    const int end = std::min(blocks, first + window);
    for (std::vector<int32_t>& wanted : tile_blocks_) {
      wanted.resize(end - first);
      std::iota(wanted.begin(), wanted.end(), first);
    }
    residency_.FetchTile(tile_blocks_, /*keys_only=*/true);
    ClearSampled();
    kernels::SampledSegment* segment = NewSampledRow(piece, row, layer);
    segment->keys = sampled_keys_.data();
    segment->counts = whole_counts_.data();
    segment->list_stride = end - first;
    segment->biases = AddBiasList(*piece.segment->kv, layer, first, end);
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      whole_counts_.push_back(end - first);
      for (int block = first; block < end; ++block) {
        sampled_keys_.push_back(residency_.TilePage(head, block));
      }
    }
    kernels::SampledAttentionParams params = SampledParams(layer, qkv, attended);
    params.first_entry = first;
    params.scores = stream_scores_.data();
    params.scores_stride = stream_scores_.size() / options_.num_q_heads;
    backend_->SampledAttention(params);
    backend_->Synchronize();
  }
}

void LayerWorker::AttendSampledStream(const Piece& piece, int row, int layer, const float* qkv,
                                      float* attended) {
  ScoreStream(piece, row, layer, qkv, attended);
  ClearSampled();
  kernels::SampledSegment* segment = NewSampledRow(piece, row, layer);
  const int blocks = segment->position / kBlockTokens + 1;
  segment->values = sampled_values_.data();
  segment->counts = whole_counts_.data();
  segment->list_stride = blocks;
  for (int head = 0; head < options_.num_kv_heads; ++head) {
    whole_counts_.push_back(blocks);
    for (int block = 0; block < blocks; ++block) {
      sampled_values_.push_back(residency_.TileValues(head, block));
    }
  }
  AddSampledSums(piece, row, layer, segment);
  RunSampled(layer, qkv, attended);
}

}  // namespace augur::engine
