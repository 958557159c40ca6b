// LayerWorker's NOSA part: eviction biases of new tokens (kernels/ops/eviction_bias.h), and their
// rebuilding after a prefix hit on resident blocks.
#include <vector>

#include "engine/attention/layer_worker.h"
#include "engine/attention/segment_blocks.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

using kernels::kBlockTokens;
using kernels::kKeyPageBlocks;
using memory::SequenceKv;

}  // namespace

// Where the biases and means of the rows' blocks lie; `pages` as EvictionSegment has them. The
// target arrays have room: Allocate, and RestoreBiases itself, reserve it.
void LayerWorker::AddEvictionSegment(const SequenceKv& kv, int layer, const kernels::Segment& rows,
                                     const std::byte* const* pages) {
  const memory::KvPools& pools = store_->pools();
  const int end = EndBlock(rows);
  const int mean_pages = (end + kKeyPageBlocks - 1) / kKeyPageBlocks;
  eviction_segments_.push_back({.rows = rows,
                                .pages = pages,
                                .biases = bias_targets_.data() + bias_targets_.size(),
                                .mean_pages = mean_targets_.data() + mean_targets_.size(),
                                .mean_page_stride = mean_pages});
  for (int block = FirstBlock(rows) - 1; block < end; ++block) {
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      bias_targets_.push_back(block < 0 ? nullptr : kv.block_biases(pools, layer, head, block));
    }
  }
  for (int head = 0; head < options_.num_kv_heads; ++head) {
    for (int page = 0; page < mean_pages; ++page) {
      mean_targets_.push_back(kv.block_bias_means(pools, layer, head, page * kKeyPageBlocks));
    }
  }
}

void LayerWorker::RunEvictionBias(int layer) {
  const EvictionHead& head = options_.eviction.weights[layer].eviction;
  backend_->EvictionBias({.gate = head.gate.data(),
                          .weight = head.weight.data(),
                          .bias = head.bias.data(),
                          .segments = eviction_segments_.data(),
                          .num_segments = static_cast<int>(eviction_segments_.size()),
                          .num_kv_heads = options_.num_kv_heads,
                          .head_dim = options_.head_dim,
                          .dtype = options_.kv_dtype});
}

// Of the step's rows, whose pages append_segments_ still names.
void LayerWorker::AppendBiases(int layer) {
  if (!has_biases()) return;
  eviction_segments_.clear();
  bias_targets_.clear();
  mean_targets_.clear();
  for (size_t i = 0; i < segments_.size(); ++i) {
    AddEvictionSegment(*segments_[i].kv, layer, segments_[i].rows, append_segments_[i].pages);
  }
  RunEvictionBias(layer);
}

// Biases that a prefix hit on resident blocks did not bring: made again from the pages.
void LayerWorker::RestoreBiases(const StepSegment& segment) {
  SequenceKv* kv = segment.kv;
  const int first = kv->biased_blocks, end = FirstBlock(segment.rows);
  if (!has_biases() || first >= end) return;
  AUGUR_CHECK(!kv->tiered());
  const kernels::Segment rows{0, (end - first) * kBlockTokens, first * kBlockTokens};
  const size_t entries = size_t(end - first + 1) * options_.num_kv_heads;
  bias_targets_.reserve(entries);
  mean_targets_.reserve((end / kKeyPageBlocks + 1) * options_.num_kv_heads);
  for (int layer = 0; layer < options_.num_layers; ++layer) {
    std::vector<const std::byte*> pages;
    for (int block = first; block < end; ++block) {
      for (int head = 0; head < options_.num_kv_heads; ++head) {
        pages.push_back(kv->resident_page(store_->pools(), layer, head, block));
      }
    }
    eviction_segments_.clear();
    bias_targets_.clear();
    mean_targets_.clear();
    AddEvictionSegment(*kv, layer, rows, pages.data());
    RunEvictionBias(layer);
    backend_->Synchronize();
  }
  kv->biased_blocks = end;
}

}  // namespace augur::engine
