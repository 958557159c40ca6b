#include "kernels/ops/sampled_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {
namespace {

// Scores of many rows are kept until their draws; rows beyond this wait for the ones before.
constexpr size_t kSampledScoreBytes = size_t{32} << 20;
// Entries that a thread scores at a time, and that are gathered into one sum: sums of as many
// entries are added up in ascending order.
constexpr int kRunEntries = 16;

int SamplesOf(const SampledAttentionParams& params, const SampledSegment& segment) {
  return segment.samples > 0 ? segment.samples : params.samples;
}

int EntriesOf(const SampledSegment& segment, int kv_head) {
  if (segment.counts != nullptr) return segment.counts[kv_head];
  return segment.position / kBlockTokens + 1;
}

// Of the calls that a long list passes by in, only the last one does.
bool Draws(const SampledAttentionParams& params, const SampledSegment& segment) {
  return params.scores == nullptr || segment.values != nullptr;
}

void CheckParams(const SampledAttentionParams& params) {
  AUGUR_CHECK(params.num_kv_heads > 0 && params.num_q_heads % params.num_kv_heads == 0);
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim % 2 == 0 && params.head_dim <= kMaxHeadDim);
  AUGUR_CHECK(params.q_stride >= params.num_q_heads * params.head_dim);
  AUGUR_CHECK(params.out_dtype == DType::kF32);
  AUGUR_CHECK(params.layer >= 0 && params.layer < 4096 && params.num_q_heads < 4096);
  AUGUR_CHECK(params.scores == nullptr || params.num_segments == 1);
  for (int s = 0; s < params.num_segments; ++s) {
    const SampledSegment& segment = params.segments[s];
    if (segment.row < 0) continue;
    AUGUR_CHECK(segment.row < params.rows && segment.position >= 0);
    const int samples = SamplesOf(params, segment);
    AUGUR_CHECK(samples > 0 && samples <= kMaxValueSamples);
    for (int head = 0; head < params.num_kv_heads; ++head) {
      const int entries = EntriesOf(segment, head);
      AUGUR_CHECK(entries > 0 && entries <= segment.list_stride && entries <= params.max_entries);
    }
    AUGUR_CHECK(params.scores != nullptr || segment.keys != nullptr);
    AUGUR_CHECK(params.estimator != ValueEstimator::kShared || !Draws(params, segment) ||
                segment.state != nullptr);
  }
}

const std::byte* ValuesOf(const SampledAttentionParams& params, const SampledSegment& segment,
                          int kv_head, int entry) {
  const int64_t place = int64_t{kv_head} * segment.list_stride + entry;
  if (segment.values != nullptr) return segment.values[params.values_offset + place];
  const size_t half_bytes = size_t(kBlockTokens) * params.head_dim * BytesOf(params.dtype);
  return segment.keys[params.keys_offset + place] + half_bytes;
}

// Where kShared leaves what the next token shall read; holds what this one reads.
float* NextState(const SampledSegment& segment, int64_t offset, int kv_head, int heads) {
  const size_t at = offset + size_t(kv_head) * ValueStateFloats(heads);
  float* const state = segment.state + at;
  if (segment.next_state == nullptr) return state;
  float* const next = segment.next_state + at;
  std::copy_n(state, ValueStateFloats(heads), next);
  return next;
}

void Add(const SampledCounts& counts, SampledCounts* to) {
  to->draws += counts.draws;
  to->rows += counts.rows;
  to->distinct += counts.distinct;
}

size_t PaddedFloats(size_t count) { return (count + 15) / 16 * 16; }

}  // namespace

// Of the entries that the call's lists begin with.
const int32_t* CpuBackend::SampledBlocks(const SampledAttentionParams& params,
                                         const SampledItem& item) const {
  const SampledSegment& segment = params.segments[item.segment];
  if (segment.blocks == nullptr) {
    return every_block_.data() + (segment.keys != nullptr ? params.first_entry : 0);
  }
  return segment.blocks + size_t(item.kv_head) * segment.list_stride;
}

// Keys of all items, in runs of entries.
void CpuBackend::ScoreSampled(const SampledAttentionParams& params) {
  const int heads = params.num_q_heads / params.num_kv_heads;
  score_items_.clear();
  for (size_t i = 0; i < sampled_items_.size(); ++i) {
    const SampledItem& item = sampled_items_[i];
    const int entries = EntriesOf(params.segments[item.segment], item.kv_head);
    for (int begin = 0; begin < entries; begin += kRunEntries) {
      score_items_.push_back({static_cast<int>(i), begin, std::min(entries, begin + kRunEntries)});
    }
  }
  pool_.ParallelFor(static_cast<int>(score_items_.size()), [&](int index, int thread) {
    const ScoreItem& run = score_items_[index];
    const SampledItem& item = sampled_items_[run.item];
    const SampledSegment& segment = params.segments[item.segment];
    const size_t list = size_t(item.kv_head) * segment.list_stride;
    SampledScoreSpan span;
    span.q = params.q + size_t(segment.row) * params.q_stride +
             size_t(item.kv_head) * heads * params.head_dim;
    span.keys = segment.keys + params.keys_offset + list;
    span.blocks = SampledBlocks(params, item);
    if (segment.biases != nullptr) span.biases = segment.biases + params.biases_offset + list;
    span.scores = item.scores + size_t(params.first_entry) * kBlockTokens;
    span.scratch = score_scratch_[thread].floats();
    span.scores_stride = item.stride;
    span.begin = run.begin;
    span.end = run.end;
    span.position = segment.position;
    span.heads = heads;
    span.head_dim = params.head_dim;
    span.dtype = params.dtype;
    span.scale = params.scale;
    isa_.score_entries(span);
  });
}

void CpuBackend::DrawItem(const SampledAttentionParams& params, const SampledItem& item,
                          DrawScratch& scratch) const {
  const SampledSegment& segment = params.segments[item.segment];
  const int heads = params.num_q_heads / params.num_kv_heads;
  const int32_t* blocks = SampledBlocks(params, item);
  DrawSource source{{segment.seed, segment.choice_index, static_cast<uint32_t>(segment.position),
                     static_cast<uint32_t>(params.layer), static_cast<uint32_t>(item.kv_head)},
                    params.forced_offset};
  const int wished = SamplesOf(params, segment);
  if (params.estimator == ValueEstimator::kShared) {
    DrawShared(isa_, params.budget, wished, scratch.group, blocks, source,
               NextState(segment, params.state_offset, item.kv_head, heads), &scratch.draws);
    return;
  }
  int samples = wished;
  if (params.budget == ValueBudget::kRows) {
    samples = DrawsForRows(isa_, params.estimator, samples, scratch.group, &scratch.probabilities);
  }
  for (int g = 0; g < heads; ++g) {
    source.key.head = static_cast<uint32_t>(item.kv_head * heads + g);
    DrawValues(isa_, params.estimator, samples, scratch.group[g], blocks, source,
               &scratch.draws[g]);
  }
}

// The drawn rows of half an fp8 page, one behind the other, and their places there.
void CpuBackend::UnpackDrawn(const SampledAttentionParams& params, const std::byte* values,
                             DrawScratch& scratch) {
  const size_t row_bytes = params.head_dim * BytesOf(params.dtype);
  scratch.rows.resize(kBlockTokens * row_bytes);
  for (size_t i = 0; i < scratch.tokens.size(); ++i) {
    std::byte* const row = scratch.rows.data() + i * row_bytes;
    UnpackRow(params.dtype, params.head_dim, values, scratch.tokens[i], row);
    scratch.tokens[i] = static_cast<int32_t>(i);
  }
}

// Draws of one entry into its run's sums; gives how many distinct rows they read.
int CpuBackend::GatherEntry(const SampledAttentionParams& params, const SampledItem& item,
                            int entry, DrawScratch& scratch) const {
  const SampledSegment& segment = params.segments[item.segment];
  const int heads = static_cast<int>(scratch.group.size());
  const int end_place = (entry + 1) * kBlockTokens;
  scratch.tokens.clear();
  scratch.weights.clear();
  std::fill(scratch.mass.begin(), scratch.mass.end(), 0.0f);
  for (;;) {
    int place = end_place;
    for (int g = 0; g < heads; ++g) {
      const std::vector<ValueDraw>& draws = scratch.draws[g];
      if (scratch.next[g] < draws.size()) place = std::min(place, draws[scratch.next[g]].place);
    }
    if (place == end_place) break;
    scratch.tokens.push_back(place % kBlockTokens);
    for (int g = 0; g < heads; ++g) {
      float weight = 0;
      const std::vector<ValueDraw>& draws = scratch.draws[g];
      if (scratch.next[g] < draws.size() && draws[scratch.next[g]].place == place) {
        weight = draws[scratch.next[g]].weight;
        scratch.counts.draws += draws[scratch.next[g]].count;
        ++scratch.counts.rows;
        ++scratch.next[g];
      }
      scratch.weights.push_back(weight);
      scratch.mass[g] += weight;
    }
  }
  const int distinct = static_cast<int>(scratch.tokens.size());
  if (distinct > 0) {
    ValueGather gather;
    gather.values = ValuesOf(params, segment, item.kv_head, entry);
    if (params.fp8.holds(gather.values)) {
      UnpackDrawn(params, gather.values, scratch);
      gather.values = scratch.rows.data();
    }
    gather.tokens = scratch.tokens.data();
    gather.weights = scratch.weights.data();
    gather.sums = scratch.sums.data();
    gather.sums_stride = PaddedHeadDim(params.head_dim);
    gather.count = distinct;
    gather.heads = heads;
    gather.head_dim = params.head_dim;
    gather.dtype = params.dtype;
    isa_.gather_values(gather);
  }
  return distinct;
}

void CpuBackend::GatherItem(const SampledAttentionParams& params, const SampledItem& item,
                            DrawScratch& scratch) const {
  const SampledSegment& segment = params.segments[item.segment];
  const int heads = static_cast<int>(scratch.group.size());
  const size_t list = size_t(item.kv_head) * segment.list_stride;
  const int32_t* blocks = SampledBlocks(params, item);
  const int entries = EntriesOf(segment, item.kv_head);
  const int padded = PaddedHeadDim(params.head_dim);
  const bool has_variate =
      params.estimator == ValueEstimator::kShared && segment.value_sums != nullptr;
  scratch.next.assign(heads, 0);
  scratch.mass.resize(heads);
  scratch.sums.assign(size_t{2} * heads * padded, 0.0f);
  float* run = scratch.sums.data();
  float* total = run + size_t(heads) * padded;
  for (int entry = 0; entry < entries; ++entry) {
    const int distinct = GatherEntry(params, item, entry, scratch);
    scratch.counts.distinct += distinct;
    if (segment.entry_rows != nullptr) segment.entry_rows[list + entry] = distinct;
    if (has_variate) {
      // The entry's mass beyond what was drawn of it goes to the mean of its values.
      const float* sum = segment.value_sums[params.sums_offset + list + entry];
      const int visible =
          std::min(kBlockTokens, segment.position - blocks[entry] * kBlockTokens + 1);
      for (int g = 0; g < heads; ++g) {
        const HeadDistribution& head = scratch.group[g];
        if (head.whole() == 0) continue;
        const double share =
            static_cast<double>(head.masses[entry]) / static_cast<double>(head.whole());
        const float rest = (static_cast<float>(share) - scratch.mass[g]) / visible;
        for (int c = 0; c < params.head_dim; ++c) run[size_t(g) * padded + c] += rest * sum[c];
      }
    }
    if ((entry + 1) % kRunEntries != 0 && entry + 1 < entries) continue;
    for (size_t c = 0; c < size_t(heads) * padded; ++c) {
      total[c] += run[c];
      run[c] = 0.0f;
    }
  }
  float* out = static_cast<float*>(params.out) +
               size_t(segment.row) * params.num_q_heads * params.head_dim +
               size_t(item.kv_head) * heads * params.head_dim;
  for (int g = 0; g < heads; ++g) {
    const float poison = scratch.group[g].is_nan ? NAN : 0.0f;
    for (int c = 0; c < params.head_dim; ++c) {
      out[g * params.head_dim + c] = total[size_t(g) * padded + c] + poison;
    }
  }
}

void CpuBackend::DrawAndGather(const SampledAttentionParams& params, const SampledItem& item,
                               DrawScratch& scratch) const {
  const int heads = params.num_q_heads / params.num_kv_heads;
  const int entries = EntriesOf(params.segments[item.segment], item.kv_head);
  scratch.group.resize(heads);
  scratch.draws.resize(heads);
  scratch.counts = {};
  bool is_nan = false;
  for (int g = 0; g < heads; ++g) {
    Measure(isa_, item.scores + g * item.stride, entries, &scratch.group[g]);
    is_nan |= scratch.group[g].is_nan;
  }
  for (std::vector<ValueDraw>& draws : scratch.draws) draws.clear();
  if (!is_nan) {
    DrawItem(params, item, scratch);
  } else if (params.estimator == ValueEstimator::kShared) {
    NextState(params.segments[item.segment], params.state_offset, item.kv_head, heads);
  }
  GatherItem(params, item, scratch);
}

// Blocks of lists that name none.
void CpuBackend::CountBlocks(const SampledAttentionParams& params) {
  for (int s = 0; s < params.num_segments; ++s) {
    const SampledSegment& segment = params.segments[s];
    if (segment.row < 0 || segment.blocks != nullptr) continue;
    int most = 0;
    for (int head = 0; head < params.num_kv_heads; ++head) {
      most = std::max(most, params.first_entry + EntriesOf(segment, head));
    }
    for (int block = static_cast<int>(every_block_.size()); block < most; ++block) {
      every_block_.push_back(block);
    }
  }
}

// Items of as many segments from `first` on as there is room for the scores of; gives the segment
// behind them.
int CpuBackend::PlanSampled(const SampledAttentionParams& params, int first) {
  const int heads = params.num_q_heads / params.num_kv_heads;
  sampled_items_.clear();
  size_t floats = 0;
  int end = first;
  for (; end < params.num_segments; ++end) {
    const SampledSegment& segment = params.segments[end];
    if (segment.row < 0) continue;
    size_t needed = 0;
    for (int head = 0; head < params.num_kv_heads; ++head) {
      needed += heads * PaddedFloats(size_t(EntriesOf(segment, head)) * kBlockTokens);
    }
    if (params.scores == nullptr && !sampled_items_.empty() &&
        (floats + needed) * sizeof(float) > kSampledScoreBytes) {
      break;
    }
    for (int head = 0; head < params.num_kv_heads; ++head) {
      const size_t stride = PaddedFloats(size_t(EntriesOf(segment, head)) * kBlockTokens);
      sampled_items_.push_back({end, head, nullptr, stride});
    }
    floats += needed;
  }
  if (params.scores == nullptr && sampled_scores_.bytes() < floats * sizeof(float)) {
    size_t bytes = size_t{1} << 16;
    while (bytes < floats * sizeof(float)) bytes *= 2;
    sampled_scores_ = AlignedBuffer(bytes);
    AUGUR_CHECK(sampled_scores_.data() != nullptr);
  }
  float* room = sampled_scores_.floats();
  for (SampledItem& item : sampled_items_) {
    if (params.scores != nullptr) {
      item.stride = params.scores_stride;
      item.scores = params.scores + size_t(item.kv_head) * heads * item.stride;
      continue;
    }
    item.scores = room;
    room += heads * item.stride;
  }
  return end;
}

void CpuBackend::SampledAttention(const SampledAttentionParams& params) {
  CheckParams(params);
  const int heads = params.num_q_heads / params.num_kv_heads;
  const size_t scratch_bytes = SampledScratchFloats(heads, params.head_dim) * sizeof(float);
  score_scratch_.resize(pool_.num_threads());
  draw_scratch_.resize(pool_.num_threads());
  for (AlignedBuffer& buffer : score_scratch_) {
    if (buffer.bytes() < scratch_bytes) buffer = AlignedBuffer(scratch_bytes);
    AUGUR_CHECK(buffer.data() != nullptr);
  }
  CountBlocks(params);
  for (int first = 0; first < params.num_segments;) {
    const int end = PlanSampled(params, first);
    if (params.segments[first].keys != nullptr || params.scores == nullptr) ScoreSampled(params);
    if (Draws(params, params.segments[first])) {
      item_counts_.assign(sampled_items_.size(), {});
      pool_.ParallelFor(static_cast<int>(sampled_items_.size()), [&](int index, int thread) {
        DrawAndGather(params, sampled_items_[index], draw_scratch_[thread]);
        item_counts_[index] = draw_scratch_[thread].counts;
      });
      for (int s = first; params.counts != nullptr && s < end; ++s) params.counts[s] = {};
      for (size_t i = 0; i < sampled_items_.size(); ++i) {
        if (params.counts != nullptr) {
          Add(item_counts_[i], &params.counts[sampled_items_[i].segment]);
        }
        if (params.totals != nullptr) Add(item_counts_[i], params.totals);
      }
    }
    first = end;
  }
}

}  // namespace augur::kernels
