// How blocks are chosen: the forced ones first, then of the candidates between them all whose score
// is above the lowest that still fits, and of those equal to it the lower blocks. The bits of
// scores are made in isa/select_body.h; all here is comparing.
#include "kernels/ops/select_blocks.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <numeric>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"

namespace augur::kernels {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// A block that the query chose, above every bias.
constexpr float kForced = std::numeric_limits<float>::infinity();
// Scores of an item's query rows stay in half of a 2 MiB second-level cache (README.md).
constexpr size_t kSelectScoreFloats = size_t{1} << 18;
constexpr int kKeyPageWindows = kKeyPageBlocks * kBlockWindows;

int BlocksOf(const SelectSegment& segment, int token) {
  return (segment.rows.first_position + token) / kBlockTokens + 1;
}

// Candidates are blocks [init, EndCandidate): neither the first nor the last ones.
int EndCandidate(const SelectSegment& segment, int token) {
  return BlocksOf(segment, token) - segment.budget.local;
}

// Floats of scores for one token: all of its heads, whole tiles of 64 places.
size_t ScoreFloats(const SelectBlocksParams& params, const SelectSegment& segment, int token) {
  const size_t places = size_t(BlocksOf(segment, token)) * params.keys_per_block;
  return (places + 63) / 64 * 64 * params.heads_per_group;
}

void CheckParams(const SelectBlocksParams& params) {
  AUGUR_CHECK(params.num_kv_heads > 0 && params.heads_per_group > 0 &&
              params.heads_per_group <= kSelectMaxRows);
  AUGUR_CHECK(params.rule != ScoreRule::kProduct || params.heads_per_group == 1);
  AUGUR_CHECK(params.key_dim > 0 && params.key_dim % 2 == 0 && params.key_dim <= kMaxHeadDim);
  AUGUR_CHECK(params.q_stride >= params.num_kv_heads * params.heads_per_group * params.key_dim);
  AUGUR_CHECK(params.keys_per_block == kBlockWindows || params.keys_per_block == kBlockTokens);
  AUGUR_CHECK(params.keys_per_page > 0 && params.keys_per_page % 64 == 0);
  for (int s = 0; s < params.num_segments; ++s) {
    const SelectSegment& segment = params.segments[s];
    const SelectionBudget& budget = segment.budget;
    AUGUR_CHECK(segment.rows.num_rows >= 0 && segment.rows.first_position >= 0);
    if (segment.rows.num_rows == 0) continue;
    AUGUR_CHECK(budget.init >= 0 && budget.local >= 2 &&
                budget.top_k >= budget.init + budget.local &&
                budget.top_k <= params.selection_stride);
    if (segment.eviction_pages == nullptr) continue;
    AUGUR_CHECK(params.keys_per_block == kBlockWindows && params.keys_per_page == kKeyPageWindows);
    AUGUR_CHECK(segment.query_top_k >= budget.init + budget.local &&
                segment.query_top_k <= budget.top_k);
  }
}

// Writes the `wanted` best of blocks [begin, end) to `blocks`, ascending; there are more than that.
// `ranked` is room for their scores.
void TakeBest(const float* scores, int begin, int end, int wanted, std::vector<float>& ranked,
              int32_t* blocks) {
  if (wanted == 0) return;
  ranked.assign(scores + begin, scores + end);
  std::nth_element(ranked.begin(), ranked.begin() + wanted - 1, ranked.end(), std::greater<>());
  const float lowest = ranked[wanted - 1];
  int equal = wanted;  // how many of those equal to the lowest still fit
  for (int i = 0; i < wanted; ++i) equal -= ranked[i] > lowest ? 1 : 0;
  for (int block = begin; block < end; ++block) {
    if (scores[block] > lowest || (scores[block] == lowest && equal-- > 0)) *blocks++ = block;
  }
}

// The largest bias of each candidate's visible windows. A candidate's windows are complete for
// every row that has it among its candidates (local is at least 2).
void PoolBiases(const float* const* pages, int begin, int end, float* out) {
  for (int block = begin; block < end; ++block) {
    float largest = kMinusInfinity;
    const int first_place = block * kBlockWindows;
    for (int place = std::max(1, first_place); place <= first_place + kBlockWindows; ++place) {
      const float bias = pages[place / kKeyPageWindows][place % kKeyPageWindows];
      if (bias > largest) largest = bias;  // never a NaN
    }
    out[block] = std::min(largest, std::numeric_limits<float>::max());  // below kForced
  }
}

}  // namespace

// Writes the rows that take all their blocks, and makes items of the others: as many tokens as
// their scores have room for, at least one.
void CpuBackend::PlanSelection(const SelectBlocksParams& params) {
  select_items_.clear();
  for (int s = 0; s < params.num_segments; ++s) {
    const SelectSegment& segment = params.segments[s];
    const Segment& rows = segment.rows;
    if (rows.num_rows == 0) continue;
    int token = 0;
    for (; token < rows.num_rows && BlocksOf(segment, token) <= segment.budget.top_k; ++token) {
      const int num_blocks = BlocksOf(segment, token);
      for (int kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
        const size_t list = size_t(rows.first_row + token) * params.num_kv_heads + kv_head;
        params.counts[list] = num_blocks;
        for (int b = 0; b < num_blocks; ++b) params.blocks[list * params.selection_stride + b] = b;
      }
    }
    const size_t token_floats = ScoreFloats(params, segment, rows.num_rows - 1);
    const size_t room = std::max<size_t>(kSelectScoreFloats / token_floats, 1);
    const int most = std::min<size_t>(room, kSelectMaxRows / params.heads_per_group);
    for (; token < rows.num_rows; token += most) {
      const int num_tokens = std::min(most, rows.num_rows - token);
      for (int kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
        select_items_.push_back({&segment, kv_head, token, num_tokens});
      }
    }
  }
}

// The scores of the candidates of all the item's tokens, in the thread's scratch.
void CpuBackend::ScoreCandidates(const SelectBlocksParams& params, const SelectItem& item,
                                 int thread) {
  const SelectSegment& segment = *item.segment;
  const int last_token = item.first_token + item.num_tokens - 1;
  SelectScratch& scratch = select_scratch_[thread];
  const size_t score_floats = ScoreFloats(params, segment, last_token) * item.num_tokens;
  if (scratch.scores.bytes() < score_floats * sizeof(float)) {
    // By powers of two, or a growing sequence would ask for memory every few blocks.
    const size_t floats = std::bit_ceil(std::max(score_floats, kSelectScoreFloats));
    scratch.scores = AlignedBuffer(floats * sizeof(float));
    AUGUR_CHECK(scratch.scores.data() != nullptr);
  }
  SelectSpan span;
  span.first_block = segment.budget.init;
  span.end_block = EndCandidate(segment, last_token);
  span.block_stride = span.end_block;
  scratch.block_scores.resize(span.block_stride * item.num_tokens);
  span.q_stride = params.q_stride;
  span.q = params.q + size_t(segment.rows.first_row + item.first_token) * span.q_stride +
           item.kv_head * params.heads_per_group * params.key_dim;
  span.pages =
      segment.key_pages + params.key_pages_offset + int64_t{item.kv_head} * segment.key_page_stride;
  span.scores = scratch.scores.floats();
  span.block_scores = scratch.block_scores.data();
  span.scratch = thread_scratch_[thread].floats();
  span.keys_per_page = params.keys_per_page;
  span.keys_per_block = params.keys_per_block;
  span.num_tokens = item.num_tokens;
  span.heads = params.heads_per_group;
  span.key_dim = params.key_dim;
  span.first_position = segment.rows.first_position + item.first_token;
  span.is_softmax = params.rule == ScoreRule::kSoftmaxSum;
  span.dtype = params.dtype;
  span.scale = params.scale;
  isa_.score_blocks(span);
  if (segment.eviction_pages == nullptr) return;
  scratch.biases.resize(span.end_block);
  PoolBiases(segment.eviction_pages + params.key_pages_offset +
                 int64_t{item.kv_head} * segment.key_page_stride,
             span.first_block, span.end_block, scratch.biases.data());
}

// One token of the item; its `scores` are used up.
void CpuBackend::ChooseBlocks(const SelectBlocksParams& params, const SelectItem& item, int token,
                              float* scores, SelectScratch& scratch) const {
  const SelectSegment& segment = *item.segment;
  const SelectionBudget& budget = segment.budget;
  const int end = EndCandidate(segment, token);
  const size_t row = segment.rows.first_row + token;
  const size_t list = row * params.num_kv_heads + item.kv_head;
  int32_t* blocks = params.blocks + list * params.selection_stride;
  params.counts[list] = budget.top_k;
  std::iota(blocks, blocks + budget.init, 0);
  std::iota(blocks + budget.top_k - budget.local, blocks + budget.top_k, end);

  const int free = budget.top_k - budget.init - budget.local;
  int32_t* chosen = blocks + budget.init;
  if (segment.eviction_pages == nullptr) {
    TakeBest(scores, budget.init, end, free, scratch.ranked, chosen);
    return;
  }
  const int by_query = segment.query_top_k - budget.init - budget.local;
  TakeBest(scores, budget.init, end, by_query, scratch.ranked, chosen);
  std::copy(scratch.biases.data() + budget.init, scratch.biases.data() + end, scores + budget.init);
  for (int i = 0; i < by_query; ++i) scores[chosen[i]] = kForced;
  TakeBest(scores, budget.init, end, free, scratch.ranked, chosen);
}

void CpuBackend::SelectBlocks(const SelectBlocksParams& params) {
  CheckParams(params);
  PlanSelection(params);
  pool_.ParallelFor(static_cast<int>(select_items_.size()), [&](int item, int thread) {
    const SelectItem& tokens = select_items_[item];
    SelectScratch& scratch = select_scratch_[thread];
    ScoreCandidates(params, tokens, thread);
    const size_t stride = scratch.block_scores.size() / tokens.num_tokens;
    for (int i = 0; i < tokens.num_tokens; ++i) {
      float* scores = scratch.block_scores.data() + i * stride;
      ChooseBlocks(params, tokens, tokens.first_token + i, scores, scratch);
    }
  });
}

}  // namespace augur::kernels
