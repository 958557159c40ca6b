// The attending half of LayerWorker: lists of pages for every kind of row.
#include <algorithm>
#include <iterator>
#include <numeric>

#include "engine/attention/layer_worker.h"
#include "engine/attention/segment_blocks.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

using memory::SequenceKv;

}  // namespace

kernels::PagedAttentionParams LayerWorker::AttentionParams(const float* qkv,
                                                           float* attended) const {
  return {.q = qkv,
          .out = attended,
          .segments = attention_segments_.data(),
          .num_segments = static_cast<int>(attention_segments_.size()),
          .rows = rows_,
          .q_stride = options_.row_stride(),
          .num_q_heads = options_.num_q_heads,
          .num_kv_heads = options_.num_kv_heads,
          .head_dim = options_.head_dim,
          .dtype = options_.kv_dtype,
          .scale = options_.attention_scale};
}

void LayerWorker::Attend(int layer, const float* qkv, float* attended) {
  const int64_t start_ns = clock_->NowNs();
  AttendInPlace(layer, qkv, attended);
  if (draws_values()) AttendSampledInPlace(layer, qkv, attended);
  for (const Piece& piece : pieces_) {
    if (!piece.tiered || layer == 0) continue;
    if (piece.sampled && draws_values() && !piece.selects()) {
      BeginChunk(piece, layer);
      for (int i = 0; i < piece.rows.num_rows; ++i) {
        AttendSampledStream(piece, piece.rows.first_row + i, layer, qkv, attended);
      }
      if (piece.chunk) EndChunk(piece, layer);
    } else if (!piece.selects()) {
      AttendStream(piece, layer, qkv, attended);
    } else if (piece.chunk) {
      AttendChunk(piece, layer, qkv, attended);
    }
  }
  backend_->Synchronize();
  stats_->attention_ns += (clock_->NowNs() - start_ns) * options_.compute_threads;
}

// Rows whose pages all lie in frames or slots: one call for all of them.
void LayerWorker::AttendInPlace(int layer, const float* qkv, float* attended) {
  list_pages_.clear();
  list_biases_.clear();
  attention_segments_.clear();
  Selection* selection = &selections_[layer % 2];
  for (const Piece& piece : pieces_) {
    const bool resident = !piece.tiered || layer == 0;
    if (piece.sampled && draws_values()) continue;
    if (!piece.selects()) {
      if (resident) AddResidentList(piece, layer);
      continue;
    }
    if (!resident && piece.chunk) continue;
    for (int i = 0; i < piece.rows.num_rows; ++i) {
      const int row = piece.rows.first_row + i;
      for (int head = 0; resident && head < options_.num_kv_heads; ++head) {
        const size_t at = list_at(row, head);
        const int count = selection->counts[size_t(row) * options_.num_kv_heads + head];
        for (int entry = 0; entry < count; ++entry) {
          selection->pages[at + entry] = piece.segment->kv->resident_page(
              store_->pools(), layer, head, selection->blocks[at + entry]);
        }
      }
      AddSelectedRow(piece, row, layer, selection);
    }
  }
  if (!attention_segments_.empty()) backend_->PagedAttention(AttentionParams(qkv, attended));
}

void LayerWorker::AddResidentList(const Piece& piece, int layer) {
  const int blocks = EndBlock(piece.rows);
  attention_segments_.push_back({.rows = piece.rows,
                                 .pages = list_pages_.data() + list_pages_.size(),
                                 .biases = AddBiasList(*piece.segment->kv, layer, 0, blocks),
                                 .list_stride = blocks});
  for (int head = 0; head < options_.num_kv_heads; ++head) {
    for (int block = 0; block < blocks; ++block) {
      list_pages_.push_back(piece.segment->kv->resident_page(store_->pools(), layer, head, block));
    }
  }
}

void LayerWorker::AddSelectedRow(const Piece& piece, int row, int layer, Selection* selection) {
  const size_t at = list_at(row, 0);
  const int32_t* counts = selection->counts.data() + size_t(row) * options_.num_kv_heads;
  for (int head = 0; has_biases() && head < options_.num_kv_heads; ++head) {
    const size_t list = list_at(row, head);
    for (int entry = 0; entry < counts[head]; ++entry) {
      selection->biases[list + entry] = piece.segment->kv->block_biases(
          store_->pools(), layer, head, selection->blocks[list + entry]);
    }
  }
  attention_segments_.push_back(
      {.rows = {row, 1, piece.rows.first_position + row - piece.rows.first_row},
       .pages = selection->pages.data() + at,
       .blocks = selection->blocks.data() + at,
       .counts = counts,
       .biases = has_biases() ? selection->biases.data() + at : nullptr,
       .list_stride = stride_});
}

const float* const* LayerWorker::AddBiasList(const SequenceKv& kv, int layer, int first, int end) {
  if (!has_biases()) return nullptr;
  const float* const* list = list_biases_.data() + list_biases_.size();
  for (int head = 0; head < options_.num_kv_heads; ++head) {
    for (int block = first; block < end; ++block) {
      list_biases_.push_back(kv.block_biases(store_->pools(), layer, head, block));
    }
  }
  return list;
}

void LayerWorker::BeginChunk(const Piece& piece, int layer) {
  if (piece.chunk) {
    const Staging& staging = staging_[piece.segment - segments_.data()];
    residency_.BeginChunk(piece.segment->kv, layer, staging.first_block, staging.end_block,
                          staging.first_place);
  } else {
    const int end = EndBlock(piece.rows);  // its open block lies in a slot like others
    residency_.BeginChunk(piece.segment->kv, layer, end, end, 0);
  }
}

// All blocks of the sequence pass through the staging area, as many groups at a time as fit.
void LayerWorker::AttendStream(const Piece& piece, int layer, const float* qkv, float* attended) {
  BeginChunk(piece, layer);
  const int blocks = EndBlock(piece.rows);
  const int window = options_.fetch_blocks;
  for (int first = 0; first < blocks; first += window) {
    const int end = std::min(blocks, first + window);
    for (std::vector<int32_t>& wanted : tile_blocks_) {
      wanted.resize(end - first);
      std::iota(wanted.begin(), wanted.end(), first);
    }
    residency_.FetchTile(tile_blocks_);
    list_pages_.clear();
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      for (int block = first; block < end; ++block) {
        list_pages_.push_back(residency_.TilePage(head, block));
      }
    }
    list_biases_.clear();
    attention_segments_.assign(1, {.rows = piece.rows,
                                   .pages = list_pages_.data(),
                                   .biases = AddBiasList(*piece.segment->kv, layer, first, end),
                                   .list_stride = end - first});
    kernels::PagedAttentionParams params = AttentionParams(qkv, attended);
    params.first_entry = first;
    params.end_entry = first + window;
    params.states = states_.data();
    backend_->PagedAttention(params);
    backend_->Synchronize();
  }
  if (piece.chunk) EndChunk(piece, layer);
}

// As many rows at a time as have their blocks fit into the staging area together.
void LayerWorker::AttendChunk(const Piece& piece, int layer, const float* qkv, float* attended) {
  BeginChunk(piece, layer);
  const Selection& selection = selections_[layer % 2];
  const int end_row = piece.rows.first_row + piece.rows.num_rows;
  for (int first = piece.rows.first_row; first < end_row;) {
    for (std::vector<int32_t>& wanted : tile_blocks_) wanted.clear();
    int row = first;
    for (; row < end_row; ++row) {
      bool fits = true;
      for (int head = 0; head < options_.num_kv_heads && fits; ++head) {
        const int32_t* list = selection.blocks.data() + list_at(row, head);
        const int count = selection.counts[size_t(row) * options_.num_kv_heads + head];
        grown_blocks_[head].clear();
        std::set_union(tile_blocks_[head].begin(), tile_blocks_[head].end(), list, list + count,
                       std::back_inserter(grown_blocks_[head]));
        fits = residency_.CountMissing(head, grown_blocks_[head]) <= residency_.fetch_blocks();
      }
      if (!fits) break;
      tile_blocks_.swap(grown_blocks_);
    }
    AUGUR_CHECK(row > first);  // one row's blocks always fit
    residency_.FetchTile(tile_blocks_);
    AttendTile(piece, first, row, layer, qkv, attended);
    first = row;
  }
  EndChunk(piece, layer);
}

void LayerWorker::AttendTile(const Piece& piece, int first_row, int end_row, int layer,
                             const float* qkv, float* attended) {
  Selection* selection = &selections_[layer % 2];
  attention_segments_.clear();
  for (int row = first_row; row < end_row; ++row) {
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      const size_t at = list_at(row, head);
      const int count = selection->counts[size_t(row) * options_.num_kv_heads + head];
      for (int entry = 0; entry < count; ++entry) {
        selection->pages[at + entry] = residency_.TilePage(head, selection->blocks[at + entry]);
        if (!draws_values()) continue;
        selection->values[at + entry] = residency_.TileValues(head, selection->blocks[at + entry]);
      }
    }
    if (piece.sampled && draws_values()) {
      ClearSampled();
      AddSampledSelection(piece, row, layer);
      RunSampled(layer, qkv, attended);
      continue;
    }
    AddSelectedRow(piece, row, layer, selection);
  }
  if (attention_segments_.empty()) return;
  backend_->PagedAttention(AttentionParams(qkv, attended));
  backend_->Synchronize();
}

// What the chunk's last row read stays in the slots, so that decoding starts warm; where it does
// not fit, the chunk's last blocks, the open one among them. Pieces before the last leave the slots
// alone: what they would put there might not go again before it is written.
void LayerWorker::EndChunk(const Piece& piece, int layer) {
  const kernels::Segment& rows = piece.segment->rows;
  if (piece.rows.first_row + piece.rows.num_rows < rows.first_row + rows.num_rows) return;
  const Selection& selection = selections_[layer % 2];
  const int last_row = piece.rows.first_row + piece.rows.num_rows - 1;
  const int num_slots = piece.segment->kv->num_slots;
  const int end = EndBlock(piece.rows);
  for (int head = 0; head < options_.num_kv_heads; ++head) {
    std::vector<int32_t>& wanted = tile_blocks_[head];
    const int count = piece.selects()
                          ? selection.counts[size_t(last_row) * options_.num_kv_heads + head]
                          : num_slots + 1;
    if (count <= num_slots) {
      const int32_t* list = selection.blocks.data() + list_at(last_row, head);
      wanted.assign(list, list + count);
    } else {
      const int first = std::max(FirstBlock(piece.rows), end - num_slots);
      wanted.resize(end - first);
      std::iota(wanted.begin(), wanted.end(), first);
    }
  }
  residency_.EndChunk(tile_blocks_, piece.rows.first_position + piece.rows.num_rows - 1);
}

void LayerWorker::WriteBehind(int layer) {
  for (size_t i = 0; i < segments_.size(); ++i) {
    const StepSegment& segment = segments_[i];
    const Staging& staging = staging_[i];
    residency_.QueueWrites(segment.kv, layer, CompleteBlocks(segment.rows), staging.first_block,
                           layer == 0 ? -1 : staging.first_place);
  }
  residency_.SubmitWrites(layer);
}

}  // namespace augur::engine
