// Rows of sampled attention over sequences in pages, and sums of values, on a backend of the twin
// tests: what a call is made of, and what comes back.
#pragma once

#include <optional>
#include <vector>

#include "tests/kernels/twin_attention.h"

namespace augur::kernels {

struct SampledRow {
  const AttentionSequence* sequence = nullptr;  // null: left out
  int samples = 0;
  uint64_t seed = 1;
  std::vector<std::vector<int32_t>> lists = {};  // [kv heads] blocks; none: all of them
  bool has_biases = false;
  // [kv heads][blocks]: halves of V that lie elsewhere; none: behind their keys.
  std::vector<const std::byte*> values = {};
  int position = -1;              // -1: the sequence's last
  std::vector<float> state = {};  // kShared's, [kv heads][ValueStateFloats]; none: a first step's
  bool has_sums = false;

  int At() const { return position < 0 ? sequence->tokens() - 1 : position; }
};

struct SampledOptions {
  ValueEstimator estimator = ValueEstimator::kProportional;
  DType out_dtype = DType::kF32;
  int max_entries = 0;  // 0: as many as there are
  int64_t forced_offset = -1;
  Fp8Pages fp8 = {};
};

struct SampledResult {
  std::vector<std::byte> out;  // [rows][out_floats] of out_dtype, 0xff where a row is left out
  std::vector<int32_t> entry_rows;
  std::vector<SampledCounts> counts;
  SampledCounts totals;
  std::vector<float> states;  // [rows][kv heads][ValueStateFloats]

  float Out(size_t i) const { return ReadAs(DType::kF32, out.data(), i); }
};

inline bool operator==(const SampledCounts& a, const SampledCounts& b) {
  return a.draws == b.draws && a.rows == b.rows && a.distinct == b.distinct;
}

// Queries as a device reads them.
inline float RoundedQuery(const AttentionSequence& sequence, int position, int head, int channel) {
  std::byte bits[4];
  WriteAs(sequence.shape().dtype, sequence.Query(position, head, channel), bits, 0);
  return ReadAs(sequence.shape().dtype, bits, 0);
}

class SampledBatch {
 public:
  SampledBatch(Backend& backend, const AttentionShape& shape, const std::vector<SampledRow>& rows,
               const SampledOptions& options)
      : backend_(backend),
        shape_(shape),
        rows_(rows),
        options_(options),
        stride_(Stride()),
        lists_(rows.size() * shape.num_kv_heads),
        q_(backend, rows.size() * shape.out_floats()),
        out_(backend, rows.size() * shape.out_floats() * BytesOf(options.out_dtype)),
        keys_(backend, std::vector<const std::byte*>((lists_ + 1) * stride_, nullptr)),
        values_(backend, keys_.ToVector()),
        biases_(backend, std::vector<const float*>((lists_ + 1) * stride_, nullptr)),
        blocks_(backend, std::vector<int32_t>(lists_ * stride_, -1)),
        entry_rows_(backend, std::vector<int32_t>(lists_ * stride_, -1)),
        sums_(backend, std::vector<float>((lists_ + 1) * stride_ * shape.head_dim, 0.0f)),
        sum_lists_(backend, std::vector<const float*>((lists_ + 1) * stride_, nullptr)),
        states_(backend, std::vector<float>(kStateOffset + lists_ * state_floats(), 0.0f)),
        list_counts_(backend, lists_),
        counts_(backend, rows.size()),
        totals_(backend, std::vector<SampledCounts>(1)),
        segments_(backend, std::vector<SampledSegment>(rows.size())) {
    for (size_t r = 0; r < rows.size(); ++r) FillRow(static_cast<int>(r));
  }

  // Of the next Run, whose rows have the seeds from `first` on; the states are those that the last
  // one left, or the rows' own again.
  void SetDraws(uint64_t first, int64_t forced_offset = -1) {
    for (size_t r = 0; r < segments_.size(); ++r) segments_[r].seed = first + r;
    options_.forced_offset = forced_offset;
  }
  void ResetStates() {
    std::fill(states_.data(), states_.data() + states_.size(), 0.0f);
    for (size_t r = 0; r < rows_.size(); ++r) {
      std::copy(rows_[r].state.begin(), rows_[r].state.end(), segments_[r].state + kStateOffset);
    }
  }

  SampledResult Run() {
    SampledAttentionParams params = Params();
    backend_.SampledAttention(params);
    backend_.Synchronize();
    return {out_.ToVector(), entry_rows_.ToVector(), counts_.ToVector(), totals_[0],
            std::vector<float>(states_.data() + kStateOffset, states_.data() + states_.size())};
  }

 private:
  static constexpr int kStateOffset = 3;
  int state_floats() const { return ValueStateFloats(shape_.group); }

  // Of the values of the entry's tokens up to the row's own, in order.
  void FillSums(const SampledRow& row, int head, int block, float* sums) {
    for (int t = block * kBlockTokens; t < std::min(block * kBlockTokens + 64, row.At() + 1); ++t) {
      for (int c = 0; c < shape_.head_dim; ++c) sums[c] += row.sequence->Value(0, head, t, c);
    }
  }

  int Stride() const {
    int most = 1;
    for (const SampledRow& row : rows_) {
      if (row.sequence == nullptr) continue;
      most = std::max(most, row.At() / kBlockTokens + 1);
    }
    return most;
  }

  void FillRow(int r) {
    const SampledRow& row = rows_[r];
    if (row.sequence == nullptr) return;
    for (int h = 0; h < shape_.num_q_heads(); ++h) {
      for (int c = 0; c < shape_.head_dim; ++c) {
        q_[(size_t(r) * shape_.num_q_heads() + h) * shape_.head_dim + c] =
            RoundedQuery(*row.sequence, row.At(), h, c);
      }
    }
    SampledSegment& segment = segments_[r];
    const size_t first = size_t(r) * shape_.num_kv_heads;
    // Lists are found by the call's offset of one list.
    segment.keys = keys_.data() + first * stride_;
    if (!row.values.empty()) segment.values = values_.data() + first * stride_;
    if (row.has_biases) segment.biases = biases_.data() + first * stride_;
    if (!row.lists.empty()) {
      segment.blocks = blocks_.data() + first * stride_;
      segment.counts = list_counts_.data() + first;
    }
    segment.row = r;
    segment.position = row.At();
    segment.list_stride = stride_;
    segment.samples = row.samples;
    segment.seed = row.seed;
    segment.entry_rows = entry_rows_.data() + first * stride_;
    segment.state = states_.data() + first * state_floats();
    std::copy(row.state.begin(), row.state.end(), segment.state + kStateOffset);
    if (row.has_sums) segment.value_sums = sum_lists_.data() + first * stride_;
    const int blocks = row.At() / kBlockTokens + 1;
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      const int entries = row.lists.empty() ? blocks : static_cast<int>(row.lists[h].size());
      list_counts_[first + h] = entries;
      for (int e = 0; e < entries; ++e) {
        const int block = row.lists.empty() ? e : row.lists[h][e];
        const size_t place = (first + h) * stride_ + e;
        blocks_[place] = block;
        keys_[place + stride_] = row.sequence->Page(0, h, block);
        biases_[place + stride_] = row.sequence->Biases(h, block);
        sum_lists_[place + stride_] = sums_.data() + place * shape_.head_dim;
        if (row.has_sums) FillSums(row, h, block, sums_.data() + place * shape_.head_dim);
        if (!row.values.empty()) values_[place + stride_] = row.values[h * blocks + block];
      }
    }
  }

  SampledAttentionParams Params() {
    SampledAttentionParams params;
    params.q = q_.data();
    params.out = out_.data();
    params.segments = segments_.data();
    params.counts = counts_.data();
    params.totals = totals_.data();
    params.num_segments = params.rows = static_cast<int>(rows_.size());
    params.q_stride = shape_.out_floats();
    params.num_q_heads = shape_.num_q_heads();
    params.num_kv_heads = shape_.num_kv_heads;
    params.head_dim = shape_.head_dim;
    params.dtype = shape_.dtype;
    params.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    params.out_dtype = options_.out_dtype;
    params.layer = 5;
    params.samples = 32;
    params.estimator = options_.estimator;
    params.max_entries = options_.max_entries > 0 ? options_.max_entries : stride_;
    params.keys_offset = params.values_offset = params.biases_offset = stride_;
    params.sums_offset = stride_;
    params.state_offset = kStateOffset;
    params.forced_offset = options_.forced_offset;
    params.fp8 = options_.fp8;
    return params;
  }

  Backend& backend_;
  const AttentionShape shape_;
  const std::vector<SampledRow> rows_;
  SampledOptions options_;
  const int stride_;
  const size_t lists_;
  SharedArray<float> q_;
  SharedArray<std::byte> out_;
  SharedArray<const std::byte*> keys_, values_;
  SharedArray<const float*> biases_;
  SharedArray<int32_t> blocks_, entry_rows_;
  SharedArray<float> sums_;
  SharedArray<const float*> sum_lists_;
  SharedArray<float> states_;
  SharedArray<int32_t> list_counts_;
  SharedArray<SampledCounts> counts_, totals_;
  SharedArray<SampledSegment> segments_;
};

inline SampledResult Sample(const BackendUnderTest& under_test, const AttentionShape& shape,
                            const std::vector<SampledRow>& rows,
                            const SampledOptions& options = {}) {
  return SampledBatch(*under_test.backend, shape, rows, options).Run();
}

// Exact attention of a row, in double: [q heads][head_dim].
inline std::vector<double> ExactRow(const AttentionShape& shape, const SampledRow& row) {
  std::vector<double> out(shape.out_floats(), 0.0);
  const AttentionSequence& sequence = *row.sequence;
  const double scale = 1.0 / std::sqrt(static_cast<double>(shape.head_dim));
  for (int q = 0; q < shape.num_q_heads(); ++q) {
    const int h = q / shape.group;
    std::vector<int> tokens;
    for (int t = 0; t <= row.At(); ++t) {
      const bool listed =
          row.lists.empty() || std::count(row.lists[h].begin(), row.lists[h].end(), t / 64) > 0;
      if (listed) tokens.push_back(t);
    }
    std::vector<double> scores;
    double top = -INFINITY, sum = 0;
    for (const int t : tokens) {
      double score = 0;
      for (int c = 0; c < shape.head_dim; ++c) {
        score += double{RoundedQuery(sequence, row.At(), q, c)} * sequence.Key(0, h, t, c);
      }
      score *= scale;
      if (row.has_biases) score += sequence.Biases(h, t / 64)[t % 64];
      scores.push_back(score);
      top = std::max(top, score);
    }
    for (double& score : scores) sum += score = std::exp(score - top);
    for (size_t i = 0; i < tokens.size(); ++i) {
      for (int c = 0; c < shape.head_dim; ++c) {
        out[size_t(q) * shape.head_dim + c] += scores[i] / sum * sequence.Value(0, h, tokens[i], c);
      }
    }
  }
  return out;
}

}  // namespace augur::kernels
