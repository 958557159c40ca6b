// Sequences in pages of a backend's memory, attention over them, and what it should give in double.
// Pages are filled by the test, so that PagedAttention is looked at alone; every byte behind a
// sequence's last token is 0xff, a NaN in each of the three types.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <vector>

#include "kernels/kv_page.h"
#include "kernels/random_weight.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {

inline constexpr int kWholeList = std::numeric_limits<int>::max();

struct AttentionShape {
  int group = 4;
  int num_kv_heads = 2;
  int head_dim = 64;
  DType dtype = DType::kF32;
  int num_layers = 1;

  int num_q_heads() const { return group * num_kv_heads; }
  int out_floats() const { return num_q_heads() * head_dim; }
  int row_floats() const { return out_floats() + 2 * num_kv_heads * head_dim; }
  size_t page_bytes() const { return size_t{2} * kBlockTokens * head_dim * BytesOf(dtype); }
};

inline std::string Describe(const AttentionShape& shape) {
  return std::string(NameOf(shape.dtype)) + " group " + std::to_string(shape.group) + " x " +
         std::to_string(shape.num_kv_heads) + " head_dim " + std::to_string(shape.head_dim);
}

// Memory that only ops may touch, filled through a piece of shared memory: pinned memory is scarce.
class DeviceBytes {
 public:
  DeviceBytes(Backend& backend, const std::vector<std::byte>& bytes)
      : backend_(&backend), data_(static_cast<std::byte*>(backend.Allocate(bytes.size()))) {
    AUGUR_CHECK(data_ != nullptr);
    SharedArray<std::byte> piece(backend, std::min<size_t>(bytes.size(), 16 << 20));
    for (size_t begin = 0; begin < bytes.size(); begin += piece.size()) {
      const size_t count = std::min(piece.size(), bytes.size() - begin);
      std::memcpy(piece.data(), bytes.data() + begin, count);
      backend.Copy(data_ + begin, piece.data(), count);
      backend.Synchronize();
    }
  }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() { backend_->Free(data_); }
  const std::byte* data() const { return data_; }

 private:
  Backend* backend_;
  std::byte* data_;
};

struct SequenceContent {
  uint32_t seed = 1;
  int tokens = 1;
  float score_scale = 1.0f;       // times q and k
  int bad_token = -1;             // whose query and key are NaN
  bool has_bad_values = false;    // and values
  std::set<int> bad_blocks = {};  // without a token: every byte of their pages is 0xff
};

// Queries, keys and values of unit variance within [-1.74, 1.74]: a pure function of seed and
// place, so that a longer sequence of the same seed goes on where a shorter one ends.
class AttentionSequence {
 public:
  AttentionSequence(Backend& backend, const AttentionShape& shape, const SequenceContent& content)
      : shape_(shape),
        content_(content),
        bytes_(Fill()),
        pages_(backend, bytes_),
        biases_(backend, size_t(shape.num_kv_heads) * num_blocks() * kBlockTokens) {
    for (int h = 0; h < shape.num_kv_heads; ++h) {
      for (int t = 0; t < content.tokens; ++t) {
        biases_[BiasPlace(h, 0) + t] = 2.0f * Random(7, h, t, 0);
      }
    }
  }

  const AttentionShape& shape() const { return shape_; }
  int tokens() const { return content_.tokens; }
  int num_blocks() const { return (content_.tokens + kBlockTokens - 1) / kBlockTokens; }

  const std::byte* Page(int layer, int kv_head, int block) const {
    return pages_.data() + PageOffset(layer, kv_head, block);
  }
  const float* Biases(int kv_head, int block) const {
    return biases_.data() + BiasPlace(kv_head, block);
  }

  float Query(int position, int q_head, int channel) const {
    if (position == content_.bad_token) return NAN;
    return content_.score_scale * Random(0, q_head, position, channel);
  }
  float Key(int layer, int kv_head, int token, int channel) const {
    const std::byte* page = bytes_.data() + PageOffset(layer, kv_head, token / kBlockTokens);
    return ReadAs(shape_.dtype, page, size_t(token % kBlockTokens) * shape_.head_dim + channel);
  }
  float Value(int layer, int kv_head, int token, int channel) const {
    const std::byte* page = bytes_.data() + PageOffset(layer, kv_head, token / kBlockTokens);
    const size_t row = kBlockTokens + token % kBlockTokens;
    return ReadAs(shape_.dtype, page, row * shape_.head_dim + channel);
  }

 private:
  float Random(int kind, int head, int token, int channel) const {
    const uint64_t place = uint64_t(token) * shape_.head_dim + channel;
    const uint64_t index = ((uint64_t(kind) * 1024 + head) << 40) + place;
    return 1.7320508f * RandomWeight(content_.seed, index);
  }
  // Later blocks at lower addresses, layers and heads between: nothing follows its predecessor.
  size_t PageOffset(int layer, int kv_head, int block) const {
    const size_t slot = size_t(num_blocks() - 1 - block) * shape_.num_layers + layer;
    return (slot * shape_.num_kv_heads + kv_head) * shape_.page_bytes();
  }
  size_t BiasPlace(int kv_head, int block) const {
    return (size_t(kv_head) * num_blocks() + block) * kBlockTokens;
  }

  std::vector<std::byte> Fill() const {
    std::vector<std::byte> bytes(
        size_t(num_blocks()) * shape_.num_layers * shape_.num_kv_heads * shape_.page_bytes(),
        std::byte{0xff});
    for (int layer = 0; layer < shape_.num_layers; ++layer) {
      for (int h = 0; h < shape_.num_kv_heads; ++h) {
        for (int t = 0; t < content_.tokens; ++t) {
          if (!content_.bad_blocks.contains(t / kBlockTokens)) FillToken(layer, h, t, bytes.data());
        }
      }
    }
    return bytes;
  }
  void FillToken(int layer, int kv_head, int token, std::byte* bytes) const {
    std::byte* page = bytes + PageOffset(layer, kv_head, token / kBlockTokens);
    const size_t key_row = size_t(token % kBlockTokens) * shape_.head_dim;
    const size_t value_row = key_row + size_t(kBlockTokens) * shape_.head_dim;
    const bool is_bad = token == content_.bad_token;
    for (int c = 0; c < shape_.head_dim; ++c) {
      const float key = content_.score_scale * Random(10 + 2 * layer, kv_head, token, c);
      const float value = Random(11 + 2 * layer, kv_head, token, c);
      WriteAs(shape_.dtype, is_bad ? NAN : key, page, key_row + c);
      WriteAs(shape_.dtype, is_bad && content_.has_bad_values ? NAN : value, page, value_row + c);
    }
  }

  AttentionShape shape_;
  SequenceContent content_;
  std::vector<std::byte> bytes_;  // as the pages hold them, for the reference
  DeviceBytes pages_;
  SharedArray<float> biases_;  // [kv heads][blocks][64], NaN behind the last token
};

// Rows of one segment and what they attend to. Without rows: a padded row, that belongs to none.
struct SegmentRows {
  const AttentionSequence* sequence = nullptr;
  int first_position = 0;
  int count = 0;
  std::vector<std::vector<int32_t>> lists = {};  // [kv heads] blocks; none: all of them
  bool has_biases = false;
  // [rows][kv heads] ascending blocks, each row's own the last; none: no row chooses.
  std::vector<std::vector<std::vector<int32_t>>> choices = {};

  int last_block() const { return (first_position + count - 1) / kBlockTokens; }
  // What a row attends to.
  std::vector<int32_t> BlocksOf(int row, int kv_head) const {
    if (!choices.empty()) return choices[row][kv_head];
    std::vector<int32_t> blocks(EntriesOf(kv_head));
    for (size_t e = 0; e < blocks.size(); ++e) blocks[e] = BlockOf(kv_head, static_cast<int>(e));
    return blocks;
  }
  int EntriesOf(int kv_head) const {
    if (count == 0) return 0;
    return lists.empty() ? last_block() + 1 : static_cast<int>(lists[kv_head].size());
  }
  int MostEntries(int num_kv_heads) const {
    int most = 0;
    for (int h = 0; h < num_kv_heads; ++h) most = std::max(most, EntriesOf(h));
    return most;
  }
  int BlockOf(int kv_head, int entry) const {
    return lists.empty() ? entry : lists[kv_head][entry];
  }
  int q_rows() const { return std::max(1, count); }
};

struct AttentionCall {
  Phase phase = Phase::kPrefill;
  DType out_dtype = DType::kF32;
  int max_entries = 0;    // 0: just as many as there are
  int step = kWholeList;  // entries a call
  int layer = 0;          // read through pages_offset
};

// One PagedAttention over some segments, or several when lists pass by.
class AttentionBatch {
 public:
  AttentionBatch(Backend& backend, const AttentionShape& shape,
                 const std::vector<SegmentRows>& rows, const AttentionCall& call)
      : backend_(backend),
        shape_(shape),
        rows_(rows),
        call_(call),
        num_rows_(CountRows()),
        q_(backend, size_t(num_rows_) * shape.row_floats()),
        out_(backend, OutBytes() + kGuardBytes),
        choice_stride_(ChoiceStride()),
        choices_(backend, size_t(num_rows_) * shape.num_kv_heads * choice_stride_),
        choice_counts_(backend, size_t(num_rows_) * shape.num_kv_heads) {
    size_t row = 0;
    for (const SegmentRows& segment : rows_) {
      for (int r = 0; r < segment.count; ++r) {
        FillQuery(segment, r, row + r);
        if (!segment.choices.empty()) FillChoices(segment.choices[r], row + r);
      }
      row += segment.q_rows();
    }
  }

  // [rows][out_floats], padded rows among them, in out_dtype.
  std::vector<std::byte> Run() {
    PagedAttentionParams params = Params();
    int most = 0;
    for (const SegmentRows& segment : rows_) {
      most = std::max(most, segment.MostEntries(shape_.num_kv_heads));
    }
    params.max_entries = call_.max_entries > 0 ? call_.max_entries : most;
    const size_t state_floats = AttentionStateFloats(shape_.head_dim);
    SharedArray<float> states(
        backend_, call_.step == kWholeList ? 0 : num_rows_ * shape_.num_q_heads() * state_floats);
    for (int first = 0; first < most; first += call_.step) {
      params.first_entry = first;
      if (call_.step != kWholeList) {
        params.end_entry = first + call_.step;
        params.states = states.data();
      }
      RunEntries(params);
      if (call_.step == kWholeList) break;
    }
    for (size_t i = 0; i < kGuardBytes; ++i) AUGUR_CHECK(out_[OutBytes() + i] == std::byte{0xff});
    return {out_.data(), out_.data() + OutBytes()};
  }

 private:
  static constexpr size_t kGuardBytes = 256;  // behind the output, to stay as they are

  int CountRows() const {
    int rows = 0;
    for (const SegmentRows& segment : rows_) rows += segment.q_rows();
    return rows;
  }
  size_t OutBytes() const {
    return size_t(num_rows_) * shape_.out_floats() * BytesOf(call_.out_dtype);
  }
  void FillQuery(const SegmentRows& segment, int r, size_t row) {
    float* q = q_.data() + row * shape_.row_floats();
    for (int h = 0; h < shape_.num_q_heads(); ++h) {
      for (int c = 0; c < shape_.head_dim; ++c) {
        q[h * shape_.head_dim + c] = segment.sequence->Query(segment.first_position + r, h, c);
      }
    }
  }

  int ChoiceStride() const {
    size_t most = 0;
    for (const SegmentRows& segment : rows_) {
      for (const auto& row : segment.choices) {
        for (const std::vector<int32_t>& blocks : row) most = std::max(most, blocks.size());
      }
    }
    return static_cast<int>(most);
  }
  void FillChoices(const std::vector<std::vector<int32_t>>& choices, size_t row) {
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      const size_t list = row * shape_.num_kv_heads + h;
      choice_counts_[list] = static_cast<int32_t>(choices[h].size());
      std::copy(choices[h].begin(), choices[h].end(), choices_.data() + list * choice_stride_);
    }
  }

  PagedAttentionParams Params() {
    PagedAttentionParams params;
    params.q = q_.data();
    params.out = out_.data();
    params.rows = num_rows_;
    params.q_stride = shape_.row_floats();
    params.num_q_heads = shape_.num_q_heads();
    params.num_kv_heads = shape_.num_kv_heads;
    params.head_dim = shape_.head_dim;
    params.dtype = shape_.dtype;
    params.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    params.out_dtype = call_.out_dtype;
    params.phase = call_.phase;
    for (const SegmentRows& segment : rows_) {
      params.has_biases |= segment.has_biases;
      params.has_blocks |= !segment.lists.empty();
      params.has_choices |= !segment.choices.empty();
    }
    return params;
  }

  // One call: its lists hold the entries of the call and nothing else. Pages of the layers before
  // call_.layer are null.
  void RunEntries(PagedAttentionParams params) {
    std::vector<int> strides;
    size_t entries = 0, heads = 0;
    for (const SegmentRows& segment : rows_) {
      const int end = std::min(segment.MostEntries(shape_.num_kv_heads), params.end_entry);
      strides.push_back(std::max(0, end - params.first_entry));
      entries += size_t(strides.back()) * shape_.num_kv_heads;
      heads += shape_.num_kv_heads;
    }
    SharedArray<const std::byte*> pages(
        backend_, std::vector<const std::byte*>(entries * (call_.layer + 1), nullptr));
    SharedArray<int32_t> blocks(backend_, std::vector<int32_t>(entries, -1));
    SharedArray<int32_t> counts(backend_, heads);
    SharedArray<const float*> biases(backend_, std::vector<const float*>(entries, nullptr));
    SharedArray<AttentionSegment> segments(backend_, std::vector<AttentionSegment>(rows_.size()));
    params.pages_offset = int64_t(entries) * call_.layer;
    size_t place = 0, head = 0;
    int row = 0;
    for (size_t s = 0; s < rows_.size(); ++s) {
      const SegmentRows& from = rows_[s];
      // A list that has passed by leaves its segment without rows.
      segments[s].rows = {row, strides[s] > 0 ? from.count : 0, from.first_position};
      segments[s].list_stride = strides[s];
      segments[s].pages = pages.data() + place;
      if (!from.lists.empty()) {
        segments[s].blocks = blocks.data() + place;
        segments[s].counts = counts.data() + head;
      }
      if (from.has_biases) segments[s].biases = biases.data() + place;
      if (!from.choices.empty()) {
        segments[s].choices = choices_.data();
        segments[s].choice_counts = choice_counts_.data();
        segments[s].choice_stride = choice_stride_;
      }
      for (int h = 0; h < shape_.num_kv_heads; ++h, place += strides[s]) {
        counts[head++] = from.EntriesOf(h);
        for (int e = 0; e < strides[s] && params.first_entry + e < from.EntriesOf(h); ++e) {
          const int block = from.BlockOf(h, params.first_entry + e);
          blocks[place + e] = block;
          biases[place + e] = from.sequence->Biases(h, block);
          pages[params.pages_offset + place + e] = from.sequence->Page(call_.layer, h, block);
        }
      }
      row += from.q_rows();
    }
    params.segments = segments.data();
    params.num_segments = static_cast<int>(rows_.size());
    backend_.PagedAttention(params);
    backend_.Synchronize();
  }

  Backend& backend_;
  const AttentionShape shape_;
  const std::vector<SegmentRows> rows_;
  const AttentionCall call_;
  const int num_rows_;
  SharedArray<float> q_;
  SharedArray<std::byte> out_;
  const int choice_stride_;
  SharedArray<int32_t> choices_;        // [rows][kv heads][choice_stride_], -1 behind a row's own
  SharedArray<int32_t> choice_counts_;  // [rows][kv heads]
};

// What one (row, query head) should give. `spread` is the standard deviation of an output over
// values of unit variance: errors are counted in it, since what many values average out to is
// small and errors of p and q average out alike.
struct ExpectedAttention {
  std::vector<double> out;
  double spread = 0.0;
};

inline ExpectedAttention ExpectAttention(const SegmentRows& rows, int layer, int row, int q_head) {
  const AttentionSequence& sequence = *rows.sequence;
  const AttentionShape& shape = sequence.shape();
  const int kv_head = q_head / shape.group, position = rows.first_position + row;
  const int d = shape.head_dim;
  std::vector<double> q(d), scores;
  std::vector<int> tokens;
  for (int c = 0; c < d; ++c) q[c] = sequence.Query(position, q_head, c);
  double largest = -INFINITY;
  for (const int block : rows.BlocksOf(row, kv_head)) {
    for (int t = block * kBlockTokens; t < (block + 1) * kBlockTokens && t <= position; ++t) {
      double score = 0.0;
      for (int c = 0; c < d; ++c) score += q[c] * sequence.Key(layer, kv_head, t, c);
      score /= std::sqrt(double(d));
      if (rows.has_biases) score += sequence.Biases(kv_head, block)[t % kBlockTokens];
      largest = std::max(largest, score);
      scores.push_back(score);
      tokens.push_back(t);
    }
  }
  ExpectedAttention expected;
  expected.out.assign(d, 0.0);
  double sum = 0.0, squares = 0.0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double p = std::exp(scores[i] - largest);
    sum += p;
    squares += p * p;
    for (int c = 0; c < d; ++c) {
      expected.out[c] += p * sequence.Value(layer, kv_head, tokens[i], c);
    }
  }
  for (double& value : expected.out) value /= sum;
  expected.spread = std::sqrt(squares) / sum;
  return expected;
}

}  // namespace augur::kernels
