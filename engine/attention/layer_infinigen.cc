// LayerWorker's InfiniGen part: which rows and pages engine/attention/infinigen.h works on.
#include <algorithm>

#include "engine/attention/layer_worker.h"
#include "engine/attention/segment_blocks.h"
#include "kernels/check.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

using kernels::kBlockTokens;
using memory::SequenceKv;

int EndRow(const kernels::Segment& rows) { return rows.first_row + rows.num_rows; }

}  // namespace

absl::Status LayerWorker::CreateInfinigen() {
  InfinigenOptions options = options_.infinigen;
  options.num_q_heads = options_.num_q_heads;
  options.num_kv_heads = options_.num_kv_heads;
  options.head_dim = options_.head_dim;
  options.kv_dtype = options_.kv_dtype;
  options.max_rows = options_.max_rows;
  options.rope = options_.rope;
  AUGUR_ASSIGN_OR_RETURN(infinigen_, Infinigen::Create(backend_, options));
  channel_segments_.reserve(options_.max_segments);
  query_segments_.reserve(3 * options_.max_segments);
  // When a prompt ends all of its blocks are read at once.
  const size_t blocks = (options_.max_context + kBlockTokens - 1) / kBlockTokens;
  source_pages_.reserve(blocks * options_.num_kv_heads);
  key_targets_.reserve((blocks / memory::kPartialFrameBlocks + 1) * options_.num_kv_heads);
  return absl::OkStatus();
}

// Sums of prompt rows and, once the prompt is complete, partial keys of this layer: all at first,
// then the step's.
void LayerWorker::TrackInfinigen(int layer, const float* qkv) {
  if (infinigen_ == nullptr || layer == 0) return;
  channel_segments_.clear();
  for (const StepSegment& segment : segments_) {
    SequenceKv* kv = segment.kv;
    if (!kv->demand.partial_keys) continue;
    const int begin = segment.rows.first_position;
    AUGUR_CHECK(begin <= kv->summed_tokens || kv->summed_tokens == segment.prompt_tokens);
    const int first = std::max(begin, kv->summed_tokens);
    const int end = std::min(begin + segment.rows.num_rows, segment.prompt_tokens);
    if (first >= end) continue;
    channel_segments_.push_back(
        {.rows = {segment.rows.first_row + first - begin, end - first, first},
         .sums = kv->sums_of(store_->pools().layout, layer)});
  }
  infinigen_->SumChannels(layer, qkv, options_.row_stride(), channel_segments_);
  backend_->Synchronize();
  for (size_t i = 0; i < segments_.size(); ++i) {
    const StepSegment& segment = segments_[i];
    SequenceKv* kv = segment.kv;
    const int end = segment.rows.first_position + segment.rows.num_rows;
    if (!kv->demand.partial_keys || end < segment.prompt_tokens) continue;
    if (kv->summed_tokens < segment.prompt_tokens) {
      infinigen_->ChooseLayerChannels(store_->pools().layout, layer, kv);
    }
    AppendPartialKeys(kv, layer, {0, end - kv->partial_tokens, kv->partial_tokens}, &staging_[i]);
  }
}

// Partial keys of tokens whose keys lie in pages: from `staging`'s first block on where the step
// appends, before that, or without it, where complete blocks and tails lie between steps.
void LayerWorker::AppendPartialKeys(SequenceKv* kv, int layer, const kernels::Segment& tokens,
                                    const Staging* staging) {
  source_pages_.clear();
  key_targets_.clear();
  for (int block = FirstBlock(tokens); block < EndBlock(tokens); ++block) {
    const int place = staging == nullptr ? -1 : staging->place_of(block);
    for (int head = 0; head < options_.num_kv_heads; ++head) {
      source_pages_.push_back(place >= 0 ? residency_.AppendPage(kv, layer, head, block, place)
                                         : residency_.ReadablePage(kv, layer, head, block));
    }
  }
  for (int head = 0; head < options_.num_kv_heads; ++head) {
    for (const int32_t frame : kv->partial_frames) {
      key_targets_.push_back(store_->pools().device_page(frame, layer, head));
    }
  }
  const kernels::ProjectSegment segment{
      .rows = tokens,
      .pages = source_pages_.data(),
      .targets = key_targets_.data(),
      .target_stride = static_cast<int>(kv->partial_frames.size()),
      .channels = kv->channels_of(store_->pools().layout, layer)};
  infinigen_->AppendKeys(layer, {&segment, 1}, store_->pools().fp8_pages());
  backend_->Synchronize();
}

// Partial keys have no copy on the host: a sequence that was saved has its pages and its channels.
void LayerWorker::RestorePartialKeys(const StepSegment& segment) {
  SequenceKv* kv = segment.kv;
  const int end = segment.rows.first_position;
  if (!kv->demand.partial_keys || kv->partial_tokens >= end) return;
  AUGUR_CHECK(infinigen_ != nullptr);
  if (kv->summed_tokens < segment.prompt_tokens) return;  // none were made yet
  for (int layer = 1; layer < options_.num_layers; ++layer) {
    AppendPartialKeys(kv, layer, {0, end - kv->partial_tokens, kv->partial_tokens}, nullptr);
  }
  kv->partial_tokens = end;
}

void LayerWorker::EndInfinigen(const StepSegment& segment) {
  SequenceKv* kv = segment.kv;
  if (!kv->demand.partial_keys) return;
  const int end = segment.rows.first_position + segment.rows.num_rows;
  kv->summed_tokens = std::max(kv->summed_tokens, std::min(end, segment.prompt_tokens));
  if (end >= segment.prompt_tokens) kv->partial_tokens = std::max(kv->partial_tokens, end);
}

// The next layer's queries of all rows that will choose by them. Neighbours share a product, so
// that the weights pass by once.
void LayerWorker::ApproximateNext(int layer, const float* input) {
  const int next = layer + 1;
  if (infinigen_ == nullptr || next == options_.num_layers) return;
  for (size_t i = 0; i < pieces_.size();) {
    if (pieces_[i].policy != AttentionPolicy::kInfinigen) {
      ++i;
      continue;
    }
    const int first_row = pieces_[i].rows.first_row;
    int end_row = EndRow(pieces_[i].rows);
    for (++i; i < pieces_.size() && pieces_[i].policy == AttentionPolicy::kInfinigen &&
              pieces_[i].rows.first_row == end_row;
         ++i) {
      end_row = EndRow(pieces_[i].rows);
    }
    AUGUR_CHECK(input != nullptr);
    infinigen_->Approximate(next, input, first_row, end_row);
  }
}

}  // namespace augur::engine
