// SelectBlocks of both backends against scores in double, and against itself: other company, other
// chunks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/ops/compress_keys.h"
#include "kernels/ops/select_blocks.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"
#include "tests/kernels/twin_tolerances.h"

namespace augur::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kScale = 0.2f;

struct SelectShape {
  ScoreRule rule = ScoreRule::kSoftmaxSum;
  int num_kv_heads = 2;
  int heads = 2;
  int key_dim = 64;
  DType dtype = DType::kBF16;
  SelectionBudget budget{8, 1, 3};
  int keys_per_block = 4;
  int keys_per_page = 128;
  int query_top_k = 0;    // above 0: with eviction biases
  bool is_whole = false;  // small whole numbers: no rounding, many ties

  int q_stride() const { return num_kv_heads * heads * key_dim + 2; }
  std::string Name() const {
    return std::string(rule == ScoreRule::kProduct ? "product" : "softmax") + ", " +
           std::to_string(heads) + " heads, " + std::to_string(keys_per_block) + " keys, dim " +
           std::to_string(key_dim) + " " + std::string(NameOf(dtype)) +
           (query_top_k > 0 ? ", biases" : "") + (is_whole ? ", whole" : "");
  }
};

std::vector<float> Values(const SelectShape& shape, size_t count, uint32_t seed) {
  std::vector<float> values = RandomFloats(count, seed);
  if (shape.is_whole) {
    for (float& value : values) value = std::round(value);
  }
  return values;
}

// Places of keys that a token sees: [first, end).
int FirstPlace(const SelectShape& shape) { return shape.keys_per_block == 4 ? 1 : 0; }
int EndPlace(const SelectShape& shape, int position) {
  return shape.keys_per_block == 4 ? CompleteWindows(position) + 1 : position;
}

// Keys, biases and queries of one sequence. Where no token sees a key lies what would win every
// comparison, or NaN. Lists have just the entries that may be read.
class Sequence {
 public:
  Sequence(Backend& backend, const SelectShape& shape, int tokens, uint32_t seed)
      : shape_(shape),
        tokens_(tokens),
        seed_(seed),
        num_pages_(EndPlace(shape, tokens - 1) / shape.keys_per_page + 1),
        bytes_(backend, Places() * shape.key_dim * BytesOf(shape.dtype)),
        biases_(backend, Values(shape, Places(), seed + 1)) {
    std::vector<float> keys = Values(shape, Places() * shape.key_dim, seed + 2);
    const int end = EndPlace(shape, tokens - 1);
    for (size_t i = 0; i < Places(); ++i) {
      const int place = static_cast<int>(i % (size_t(num_pages_) * shape.keys_per_page));
      if (place >= FirstPlace(shape) && place < end) continue;
      std::fill_n(keys.begin() + i * shape.key_dim, shape.key_dim, place % 2 == 0 ? 1e4f : NAN);
      biases_[i] = place % 2 == 0 ? std::numeric_limits<float>::infinity() : NAN;
    }
    for (size_t i = 0; i < keys.size(); ++i) WriteAs(shape.dtype, keys[i], bytes_.data(), i);
    used_pages_ = std::max(0, end - 1) / shape.keys_per_page + 1;
    for (int h = 0; h < shape.num_kv_heads; ++h) {
      for (int p = 0; p < used_pages_; ++p) {
        const size_t index = Index(h, p * shape.keys_per_page);
        page_list_.push_back(bytes_.data() + index * shape.key_dim * BytesOf(shape.dtype));
        bias_list_.push_back(biases_.data() + index);
      }
    }
  }

  int tokens() const { return tokens_; }
  const SelectShape& shape() const { return shape_; }
  int used_pages() const { return used_pages_; }
  const std::vector<const std::byte*>& page_list() const { return page_list_; }
  const std::vector<const float*>& bias_list() const { return bias_list_; }

  std::vector<float> Q(int token) const {
    return Values(shape_, shape_.q_stride(), seed_ * 7919 + token);
  }
  float Bias(int kv_head, int place) const { return biases_[Index(kv_head, place)]; }
  float Key(int kv_head, int place, int c) const {
    return ReadAs(shape_.dtype, bytes_.data(), Index(kv_head, place) * shape_.key_dim + c);
  }

 private:
  size_t Places() const { return size_t(shape_.num_kv_heads) * num_pages_ * shape_.keys_per_page; }
  size_t Index(int kv_head, int place) const {
    return size_t(kv_head) * num_pages_ * shape_.keys_per_page + place;
  }

  SelectShape shape_;
  int tokens_;
  uint32_t seed_;
  int num_pages_, used_pages_ = 0;
  SharedArray<std::byte> bytes_;
  SharedArray<float> biases_;
  std::vector<const std::byte*> page_list_;
  std::vector<const float*> bias_list_;
};

// Tokens [first, first + count) of a sequence; count 0: left out, with a row that is not its.
struct Piece {
  const Sequence* sequence;
  int first;
  int count;
};

struct CallOptions {
  Phase phase = Phase::kPrefill;
  int layers_before = 0;  // lists of other layers before this one's: key_pages_offset
  bool clear_queries = false;
  int spoil_row = -1;  // its q is NaN
};

using Lists = std::vector<std::vector<int32_t>>;  // [rows][kv heads]

// One call; a left-out piece's lists must be as they were, and come back empty.
Lists Select(Backend& backend, const std::vector<Piece>& pieces, const CallOptions& options = {}) {
  const SelectShape& shape = pieces[0].sequence->shape();
  std::vector<SharedArray<const std::byte*>> pages;
  std::vector<SharedArray<const float*>> biases;
  std::vector<SelectSegment> segments;
  std::vector<float> q;
  int rows = 0, max_blocks = 1, max_entries = 0;
  for (const Piece& piece : pieces) {
    max_entries = std::max<int>(max_entries, piece.sequence->page_list().size());
  }
  const int64_t offset = int64_t{options.layers_before} * max_entries;
  for (const Piece& piece : pieces) {
    const Sequence& sequence = *piece.sequence;
    std::vector<const std::byte*> page_list(offset, nullptr);
    page_list.insert(page_list.end(), sequence.page_list().begin(), sequence.page_list().end());
    pages.emplace_back(backend, page_list);
    std::vector<const float*> bias_list(offset, nullptr);
    bias_list.insert(bias_list.end(), sequence.bias_list().begin(), sequence.bias_list().end());
    biases.emplace_back(backend, bias_list);
    SelectSegment segment;
    segment.rows = {rows, piece.count, piece.first};
    segment.budget = shape.budget;
    segment.key_pages = pages.back().data();
    segment.key_page_stride = sequence.used_pages();
    if (shape.query_top_k > 0) segment.eviction_pages = biases.back().data();
    segment.query_top_k = shape.query_top_k;
    segments.push_back(segment);
    for (int t = piece.first; t < piece.first + std::max(piece.count, 1); ++t, ++rows) {
      const std::vector<float> row = sequence.Q(t);
      q.insert(q.end(), row.begin(), row.end());
      if (options.spoil_row == rows) q[size_t(rows) * shape.q_stride()] = NAN;
      if (piece.count > 0) max_blocks = std::max(max_blocks, t / 64 + 1);
    }
  }
  if (options.clear_queries) std::fill(q.begin(), q.end(), 0.0f);
  const SharedArray<SelectSegment> shared_segments(backend, segments);
  const SharedArray<float> shared_q(backend, q);
  const int stride = shape.budget.top_k + 2, lists = rows * shape.num_kv_heads;
  SharedArray<int32_t> blocks(backend, size_t(lists) * stride), counts(backend, lists);
  backend.SelectBlocks({.q = shared_q.data(),
                        .segments = shared_segments.data(),
                        .num_segments = static_cast<int>(segments.size()),
                        .q_stride = shape.q_stride(),
                        .num_kv_heads = shape.num_kv_heads,
                        .heads_per_group = shape.heads,
                        .key_dim = shape.key_dim,
                        .keys_per_block = shape.keys_per_block,
                        .keys_per_page = shape.keys_per_page,
                        .rule = shape.rule,
                        .scale = kScale,
                        .dtype = shape.dtype,
                        .blocks = blocks.data(),
                        .counts = counts.data(),
                        .selection_stride = stride,
                        .phase = options.phase,
                        .rows = rows,
                        .max_blocks = max_blocks,
                        .key_pages_offset = offset});
  backend.Synchronize();
  Lists result;
  for (int list = 0; list < lists; ++list) {
    const int count = std::max(counts[list], 0);
    const int32_t* begin = blocks.data() + size_t(list) * stride;
    EXPECT_LE(count, shape.budget.top_k);
    for (int i = count; i < stride; ++i) EXPECT_EQ(begin[i], -1) << "stray write";
    result.emplace_back(begin, begin + std::min(count, stride));
  }
  return result;
}

// Rows of a few tokens each by themselves, as decoding has them.
std::vector<Piece> OneByOne(const Sequence& sequence, int first, int end) {
  std::vector<Piece> pieces;
  for (int t = first; t < end; ++t) pieces.push_back({&sequence, t, 1});
  return pieces;
}

struct Scores {
  std::vector<double> blocks;
  double slack = 0.0;  // that a score may be off by, absolute or (softmax) relative
};

// The largest value of each block's keys that are visible.
template <class ValueAt>
std::vector<double> Pool(const SelectShape& shape, int token, ValueAt value_at) {
  std::vector<double> pooled(token / 64 + 1, -kInfinity);
  const int first = FirstPlace(shape);
  for (int b = 0; b < static_cast<int>(pooled.size()); ++b) {
    for (int key = shape.keys_per_block * b - 1; key < shape.keys_per_block * (b + 1); ++key) {
      if (key < 0 || key + first >= EndPlace(shape, token)) continue;
      pooled[b] = std::max<double>(pooled[b], value_at(key + first));
    }
  }
  return pooled;
}

Scores ScoresInDouble(const Sequence& sequence, int token, int kv_head) {
  const SelectShape& shape = sequence.shape();
  const int end = EndPlace(shape, token);
  const std::vector<float> q = sequence.Q(token);
  std::vector<double> total(std::max(end, 1), 0.0), e(total.size());
  double largest_magnitude = 0.0;
  for (int head = 0; head < shape.heads; ++head) {
    const float* of_head = q.data() + size_t(kv_head * shape.heads + head) * shape.key_dim;
    double sum = 0.0;
    for (int place = FirstPlace(shape); place < end; ++place) {
      double product = 0.0, magnitude = 0.0;
      for (int c = 0; c < shape.key_dim; ++c) {
        const double term = double(of_head[c]) * sequence.Key(kv_head, place, c);
        product += term;
        magnitude += std::abs(term);
      }
      largest_magnitude = std::max(largest_magnitude, magnitude);
      e[place] = shape.rule == ScoreRule::kProduct ? product : std::exp(product * double(kScale));
      sum += e[place];
    }
    const double norm = shape.rule == ScoreRule::kProduct ? 1.0 : sum;
    for (int place = FirstPlace(shape); place < end; ++place) total[place] += e[place] / norm;
  }
  Scores scores;
  scores.blocks = Pool(shape, token, [&](int place) { return total[place]; });
  scores.slack = kSelectTolerance.At(largest_magnitude);
  if (shape.rule == ScoreRule::kSoftmaxSum) scores.slack *= kScale;
  return scores;
}

// The chosen of blocks [begin, end) that are not `taken` beat all others but for the tolerance; and
// equal whole products go to the lower block.
void CheckChoice(const Sequence& sequence, const Scores& scores, int begin, int end,
                 const std::vector<int32_t>& list) {
  const SelectShape& shape = sequence.shape();
  double worst = kInfinity, best_other = -kInfinity;
  int worst_block = -1, other_block = -1;
  for (int b = begin; b < end; ++b) {
    if (std::binary_search(list.begin(), list.end(), b)) {
      if (scores.blocks[b] <= worst) worst_block = b;
      worst = std::min(worst, scores.blocks[b]);
    } else {
      if (scores.blocks[b] > best_other) other_block = b;
      best_other = std::max(best_other, scores.blocks[b]);
    }
  }
  if (worst_block < 0 || other_block < 0) return;
  if (shape.rule == ScoreRule::kProduct && shape.is_whole) {
    ASSERT_TRUE(worst > best_other || (worst == best_other && worst_block < other_block))
        << "block " << worst_block << " over " << other_block;
    return;
  }
  const double slack =
      shape.rule == ScoreRule::kProduct ? scores.slack : scores.slack * std::abs(best_other);
  ASSERT_GE(worst, best_other - slack) << "block " << worst_block << " over " << other_block;
}

// With biases: some query_top_k by the query, the others exactly by the pooled biases.
void CheckBiased(const Sequence& sequence, int token, int kv_head, const Scores& scores, int begin,
                 int end, const std::vector<int32_t>& list) {
  const SelectShape& shape = sequence.shape();
  const int by_query = shape.query_top_k - shape.budget.init - shape.budget.local;
  std::vector<int32_t> order(end - begin);
  std::iota(order.begin(), order.end(), begin);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return scores.blocks[a] > scores.blocks[b]; });
  const std::vector<double> biases =
      Pool(shape, token, [&](int place) { return sequence.Bias(kv_head, place); });
  std::stable_sort(order.begin() + by_query, order.end(), [&](int a, int b) {
    return biases[a] != biases[b] ? biases[a] > biases[b] : a < b;
  });
  order.resize(shape.budget.top_k - shape.budget.init - shape.budget.local);
  std::sort(order.begin(), order.end());
  const std::vector<int32_t> chosen(list.begin() + shape.budget.init,
                                    list.end() - shape.budget.local);
  ASSERT_EQ(chosen, order);
}

void CheckList(const Sequence& sequence, int token, int kv_head, const std::vector<int32_t>& list) {
  const SelectShape& shape = sequence.shape();
  const int blocks = token / 64 + 1;
  ASSERT_EQ(list.size(), size_t(std::min(shape.budget.top_k, blocks)));
  for (size_t e = 1; e < list.size(); ++e) ASSERT_LT(list[e - 1], list[e]);
  const int begin = std::min(shape.budget.init, blocks);
  const int end = std::max(begin, blocks - shape.budget.local);
  for (int b = 0; b < blocks; ++b) {
    if (b >= begin && b < end) continue;
    ASSERT_TRUE(std::binary_search(list.begin(), list.end(), b)) << "block " << b;
  }
  if (blocks <= shape.budget.top_k) return;
  const Scores scores = ScoresInDouble(sequence, token, kv_head);
  if (shape.query_top_k > 0) {
    CheckBiased(sequence, token, kv_head, scores, begin, end, list);
  } else {
    CheckChoice(sequence, scores, begin, end, list);
  }
}

std::vector<SelectShape> Shapes() {
  const auto product = ScoreRule::kProduct;
  return {
      {},
      {.heads = 16, .key_dim = 128, .budget = {12, 1, 4}},
      {.heads = 8, .key_dim = 96, .dtype = DType::kF16},
      {.num_kv_heads = 8, .heads = 4, .key_dim = 128, .dtype = DType::kF16},
      {.num_kv_heads = 1, .heads = 5, .key_dim = 64, .budget = {6, 2, 2}},
      {.heads = 1, .key_dim = 32, .keys_per_page = 64},
      {.heads = 3, .key_dim = 34, .dtype = DType::kF32},
      {.num_kv_heads = 1, .heads = 16, .key_dim = 256, .budget = {5, 0, 4}},
      {.rule = product, .heads = 1, .key_dim = 128, .budget = {20, 1, 9}},
      {.rule = product, .heads = 1, .key_dim = 64, .dtype = DType::kF16, .keys_per_page = 192},
      {.rule = product, .heads = 1, .key_dim = 64, .budget = {7, 0, 2}, .is_whole = true},
      {.rule = product, .heads = 1, .key_dim = 40, .dtype = DType::kF32, .is_whole = true},
      {.rule = product,
       .heads = 1,
       .key_dim = 32,
       .budget = {7, 0, 2},
       .keys_per_block = 64,
       .keys_per_page = 512},
      {.rule = product, .heads = 1, .key_dim = 32, .keys_per_block = 64, .is_whole = true},
      {.heads = 2, .key_dim = 32, .keys_per_block = 64},
      {.query_top_k = 6},
      {.rule = product, .heads = 1, .budget = {9, 0, 3}, .query_top_k = 5, .is_whole = true},
      {.query_top_k = 4},  // none by the query
  };
}

TEST(TwinSelectBlocksTest, ChoosesTheBestAtEveryLength) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const SelectShape& shape : Shapes()) {
      for (const int tokens : {1, 63, 64, 65, 450, 511, 513, 1000, 2049, 4097}) {
        const Sequence sequence(*backend, shape, tokens, tokens);
        for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
          const Lists lists = Select(*backend, {{&sequence, tokens - 1, 1}}, {.phase = phase});
          for (int h = 0; h < shape.num_kv_heads; ++h) {
            CheckList(sequence, tokens - 1, h, lists[h]);
            if (::testing::Test::HasFatalFailure()) {
              FAIL() << name << ": " << shape.Name() << ", " << tokens << " tokens, "
                     << (phase == Phase::kDecode ? "decode" : "prefill");
            }
          }
        }
      }
    }
  }
}

// MiniCPM4.1's shape.
TEST(TwinSelectBlocksTest, LongContexts) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const ScoreRule rule : {ScoreRule::kSoftmaxSum, ScoreRule::kProduct}) {
      const SelectShape shape{.rule = rule,
                              .heads = rule == ScoreRule::kProduct ? 1 : 16,
                              .key_dim = 128,
                              .budget = {96, 1, 33}};
      for (const int tokens : {32768, 131072, 140000}) {
        if (kSanitized && tokens > 32768) continue;
        const Sequence sequence(*backend, shape, tokens, 3);
        const int first = tokens - 3;
        for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
          const Lists lists =
              phase == Phase::kDecode
                  ? Select(*backend, OneByOne(sequence, first, tokens), {.phase = phase})
                  : Select(*backend, {{&sequence, first, 3}}, {.phase = phase});
          for (size_t i = 0; i < lists.size(); ++i) {
            CheckList(sequence, first + static_cast<int>(i) / 2, i % 2, lists[i]);
            if (::testing::Test::HasFatalFailure()) {
              FAIL() << name << ": " << shape.Name() << ", " << tokens << " tokens, "
                     << (phase == Phase::kDecode ? "decode" : "prefill");
            }
          }
        }
      }
    }
  }
}

// In any company, left-out rows among it.
TEST(TwinSelectBlocksTest, ARowDependsOnItselfAlone) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const SelectShape& shape : Shapes()) {
      const Sequence a(*backend, shape, 3000, 1), b(*backend, shape, 700, 2),
          c(*backend, shape, 5000, 3), d(*backend, shape, 64, 4);
      for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
        std::vector<Piece> pieces = {{&a, 2999, 1}, {&b, 699, 0},  {&b, 698, 1}, {&d, 3, 1},
                                     {&c, 4999, 1}, {&a, 1000, 0}, {&a, 2998, 1}};
        if (phase == Phase::kPrefill) {
          pieces[2] = {&b, 400, 300};
          pieces[4] = {&c, 4500, 500};
        }
        const Lists together = Select(*backend, pieces, {.phase = phase});
        size_t at = 0;
        for (const Piece& piece : pieces) {
          if (piece.count == 0) {
            for (int h = 0; h < shape.num_kv_heads; ++h) ASSERT_TRUE(together[at++].empty());
            continue;
          }
          const Lists alone = Select(*backend, {piece}, {.phase = phase});
          for (const std::vector<int32_t>& list : alone) {
            ASSERT_EQ(together[at++], list) << name << ": " << shape.Name();
          }
        }
      }
    }
  }
}

TEST(TwinSelectBlocksTest, ChunksGiveARowTheSameList) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const SelectShape& shape : Shapes()) {
      const int tokens = kSanitized ? 700 : 1300;
      const Sequence sequence(*backend, shape, tokens, 9);
      const Lists whole = Select(*backend, {{&sequence, 0, tokens}});
      for (int t = 1; t < tokens; t += 97) {
        for (int h = 0; h < shape.num_kv_heads; ++h) {
          CheckList(sequence, t, h, whole[size_t(t) * shape.num_kv_heads + h]);
        }
        if (::testing::Test::HasFatalFailure()) FAIL() << name << ": " << shape.Name() << " " << t;
      }
      for (const int chunk : {7, 64, 333}) {
        std::vector<Piece> pieces;
        for (int t = 0; t < tokens; t += chunk) {
          pieces.push_back({&sequence, t, std::min(chunk, tokens - t)});
        }
        ASSERT_EQ(Select(*backend, pieces), whole) << name << ": " << shape.Name() << " " << chunk;
        Lists apart;
        for (const Piece& piece : pieces) {
          const Lists lists = Select(*backend, {piece});
          apart.insert(apart.end(), lists.begin(), lists.end());
        }
        ASSERT_EQ(apart, whole) << name << ": " << shape.Name() << " " << chunk;
      }
    }
  }
}

// Several ranges and rounds of scratch; rows of a long chunk are those of short ones.
TEST(TwinSelectBlocksTest, LongChunksGiveARowTheSameList) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    if (!on_device) continue;  // the CPU's are in kernels_select_blocks_test
    for (const ScoreRule rule : {ScoreRule::kSoftmaxSum, ScoreRule::kProduct}) {
      const SelectShape shape{.rule = rule,
                              .heads = rule == ScoreRule::kProduct ? 1 : 16,
                              .key_dim = 128,
                              .budget = {96, 1, 33}};
      const int tokens = 131072, first = tokens - 5000;
      const Sequence sequence(*backend, shape, tokens, 3);
      const Lists whole = Select(*backend, {{&sequence, first, 5000}});
      for (const int t : {0, 1, 255, 256, 4094, 4095, 4096, 4999}) {
        const Lists alone = Select(*backend, {{&sequence, first + t, 1}});
        ASSERT_EQ(alone[0], whole[t * 2]) << t;
        ASSERT_EQ(alone[1], whole[t * 2 + 1]) << t;
      }
    }
  }
}

TEST(TwinSelectBlocksTest, TiesGoToTheLowerBlock) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const SelectShape& shape : Shapes()) {
      if (shape.query_top_k > 0) continue;
      const Sequence sequence(*backend, shape, 64 * 30, 3);
      for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
        const Lists lists = Select(*backend, {{&sequence, 64 * 30 - 1, 1}},
                                   {.phase = phase, .clear_queries = true});
        std::vector<int32_t> lowest(shape.budget.top_k);
        std::iota(lowest.begin(), lowest.end(), 0);
        for (int i = 0; i < shape.budget.local; ++i) {
          lowest[shape.budget.top_k - shape.budget.local + i] = 30 - shape.budget.local + i;
        }
        for (const std::vector<int32_t>& list : lists) {
          ASSERT_EQ(list, lowest) << name << ": " << shape.Name();
        }
      }
    }
  }
}

TEST(TwinSelectBlocksTest, LayersShareTheirSegments) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const SelectShape& shape : Shapes()) {
      const Sequence sequence(*backend, shape, 2500, 5);
      for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
        const std::vector<Piece> pieces = {{&sequence, 2499, 1}};
        ASSERT_EQ(Select(*backend, pieces, {.phase = phase, .layers_before = 3}),
                  Select(*backend, pieces, {.phase = phase}))
            << name << ": " << shape.Name();
      }
    }
  }
}

// A NaN costs its own (row, kv head) the scores, nothing else.
TEST(TwinSelectBlocksTest, ANaNQueryStillGetsAFullList) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const SelectShape& shape : Shapes()) {
      const Sequence sequence(*backend, shape, 1500, 3);
      const std::vector<Piece> pieces = {{&sequence, 1450, 50}};
      const Lists clean = Select(*backend, pieces);
      const Lists dirty = Select(*backend, pieces, {.spoil_row = 17});
      for (size_t i = 0; i < clean.size(); ++i) {
        if (static_cast<int>(i) != 17 * shape.num_kv_heads) {
          ASSERT_EQ(dirty[i], clean[i]) << name << ": " << shape.Name() << " " << i;
        }
        ASSERT_EQ(dirty[i].size(), size_t(shape.budget.top_k));
        for (size_t e = 1; e < dirty[i].size(); ++e) ASSERT_LT(dirty[i][e - 1], dirty[i][e]);
      }
    }
  }
}

// When all blocks are taken no key is read: there need be none.
TEST(TwinSelectBlocksTest, TakesAllBlocksUnread) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const Phase phase : {Phase::kDecode, Phase::kPrefill}) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        SelectSegment segment;
        segment.rows = {0, phase == Phase::kDecode ? 1 : 512, phase == Phase::kDecode ? 511 : 0};
        segment.budget = {8, 1, 2};
        const SharedArray<SelectSegment> segments(*backend, std::vector{segment});
        SharedArray<int32_t> blocks(*backend, 512 * 8), counts(*backend, 512);
        backend->SelectBlocks({.segments = segments.data(),
                               .num_segments = 1,
                               .q_stride = 64,
                               .num_kv_heads = 1,
                               .heads_per_group = 1,
                               .key_dim = 64,
                               .keys_per_block = 4,
                               .dtype = dtype,
                               .blocks = blocks.data(),
                               .counts = counts.data(),
                               .selection_stride = 8,
                               .phase = phase,
                               .rows = segment.rows.num_rows});
        backend->Synchronize();
        for (int row = 0; row < segment.rows.num_rows; ++row) {
          ASSERT_EQ(counts[row], (segment.rows.first_position + row) / 64 + 1) << name;
          for (int i = 0; i < counts[row]; ++i) ASSERT_EQ(blocks[row * 8 + i], i) << name;
        }
      }
    }
  }
}

// A bench's drawn choices: distinct, ascending, the same on every backend, and as much of them
// stays from row to row as was asked for.
TEST(TwinSelectBlocksTest, DrivenChoicesKeepTheReuseAskedFor) {
  constexpr int kRows = 48, kHeads = 2, kTopK = 40, kFree = 30;
  std::vector<int32_t> of_cpu;
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    SelectSegment prompt, decoding;
    prompt.rows = {0, kRows - 1, 64 * 1000 - 20};  // over a block's end
    decoding.rows = {kRows - 1, 1, 64 * 500 + 7};
    prompt.budget = decoding.budget = {kTopK, 2, 8};
    const SharedArray<SelectSegment> segments(*backend, std::vector{prompt, decoding});
    SharedArray<int32_t> blocks(*backend, kRows * kHeads * kTopK), counts(*backend, kRows * kHeads);
    backend->DriveChoice({.segments = segments.data(),
                          .num_segments = 2,
                          .max_rows = kRows - 1,
                          .num_kv_heads = kHeads,
                          .blocks = blocks.data(),
                          .counts = counts.data(),
                          .selection_stride = kTopK,
                          .layer = 3,
                          .reuse = 0.8f});
    backend->Synchronize();
    double kept = 0;
    for (int list = 0; list < kRows * kHeads; ++list) {
      ASSERT_EQ(counts[list], kTopK) << name;
      const int32_t* row = blocks.data() + list * kTopK;
      for (int i = 1; i < kTopK; ++i) ASSERT_LT(row[i - 1], row[i]) << name;
      if (list < kHeads || list / kHeads == kRows - 1) continue;
      const int32_t* before = row - kHeads * kTopK;
      std::vector<int32_t> same;
      std::set_intersection(row, row + kTopK, before, before + kTopK, std::back_inserter(same));
      kept += static_cast<double>(same.size() - (kTopK - kFree)) / kFree;
    }
    EXPECT_NEAR(kept / ((kRows - 2) * kHeads), 0.8, 0.03) << name;
    const std::vector<int32_t> found(blocks.data(), blocks.data() + kRows * kHeads * kTopK);
    if (of_cpu.empty()) of_cpu = found;
    EXPECT_EQ(found, of_cpu) << name;
  }
}

}  // namespace
}  // namespace augur::kernels
