// SelectBlocks against a slow selection written from the header alone: every key of every row by
// itself, blocks by a full stable sort.
#include "kernels/ops/select_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/ops/compress_keys.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct SelectShape {
  ScoreRule rule = ScoreRule::kSoftmaxSum;
  int keys_per_block = 4;
  int keys_per_page = 128;
  int num_kv_heads = 2;
  int heads = 2;
  int key_dim = 8;
  DType dtype = DType::kF32;
  SelectionBudget budget{8, 1, 3};
  int query_top_k = 0;    // above 0: with eviction biases
  bool is_whole = false;  // small whole numbers: no rounding, many ties

  std::string Name() const {
    return (rule == ScoreRule::kProduct ? "product " : "softmax ") +
           std::to_string(keys_per_block) + " keys, dim " + std::to_string(key_dim) + " " +
           NameOf(dtype);
  }
};

// Places of keys that a token sees: [first, end).
int FirstPlace(const SelectShape& shape) { return shape.keys_per_block == 4 ? 1 : 0; }
int EndPlace(const SelectShape& shape, int position) {
  return shape.keys_per_block == 4 ? CompleteWindows(position) + 1 : position;
}

// Queries, keys and biases of one sequence. Where no token sees a key, at the first place and from
// the last one on, lies what would win every comparison, or NaN.
class SelectSequence {
 public:
  SelectSequence(const SelectShape& shape, int tokens, uint32_t seed)
      : shape_(shape), tokens_(tokens) {
    const int end = EndPlace(shape, tokens - 1);
    const int per_page = shape.keys_per_page;
    num_pages_ = end / per_page + 1;
    const size_t heads = size_t(shape.num_kv_heads) * num_pages_ * per_page;
    q_ = Values(size_t(tokens) * q_stride(), seed);
    std::vector<float> keys = Values(heads * shape.key_dim, seed + 1);
    biases_ = Values(heads, seed + 2);
    for (size_t i = 0; i < heads; ++i) {
      const int place = static_cast<int>(i % (size_t(num_pages_) * per_page));
      if (place >= FirstPlace(shape) && place < end) continue;
      const float poison = place % 2 == 0 ? 1e4f : NAN;
      std::fill_n(keys.begin() + i * shape.key_dim, shape.key_dim, poison);
      biases_[i] = place % 2 == 0 ? kInfinity : NAN;
    }
    keys_ = std::make_unique<TypedMatrix>(shape.dtype, keys);
  }

  int q_stride() const { return shape_.num_kv_heads * shape_.heads * shape_.key_dim + 3; }
  int tokens() const { return tokens_; }
  const SelectShape& shape() const { return shape_; }

  const float* Q(int token, int kv_head, int head) const {
    return q_.data() + size_t(token) * q_stride() +
           (kv_head * shape_.heads + head) * shape_.key_dim;
  }
  const float* Key(int kv_head, int place) const {
    return keys_->values.data() + KeyIndex(kv_head, place) * shape_.key_dim;
  }
  float Bias(int kv_head, int place) const { return biases_[KeyIndex(kv_head, place)]; }

  void ClearQueries() { std::fill(q_.begin(), q_.end(), 0.0f); }
  void SpoilQuery(int token) { q_[size_t(token) * q_stride()] = NAN; }

  // Lists [rows][kv heads] of tokens [first, end), taken in segments of `chunk` rows of one call.
  std::vector<std::vector<int32_t>> Select(Backend& backend, int first, int end, int chunk) const {
    const int stride = shape_.budget.top_k + 2;
    const int lists = (end - first) * shape_.num_kv_heads;
    std::vector<int32_t> blocks(size_t(lists) * stride, -1), counts(lists, -1);
    std::vector<const std::byte*> pages;
    std::vector<const float*> biases;
    // Just the pages that the header lets be read.
    const int used = std::max(0, EndPlace(shape_, end - 1) - 1) / shape_.keys_per_page + 1;
    const size_t key_bytes = shape_.key_dim * BytesOf(shape_.dtype);
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      for (int p = 0; p < used; ++p) {
        pages.push_back(keys_->bytes.data() + KeyIndex(h, p * shape_.keys_per_page) * key_bytes);
        biases.push_back(biases_.data() + KeyIndex(h, p * shape_.keys_per_page));
      }
    }
    std::vector<SelectSegment> segments;
    for (int row = first; row < end; row += chunk) {
      SelectSegment segment;
      segment.rows = {row - first, std::min(chunk, end - row), row};
      segment.budget = shape_.budget;
      segment.key_pages = pages.data();
      segment.key_page_stride = used;
      if (shape_.query_top_k > 0) segment.eviction_pages = biases.data();
      segment.query_top_k = shape_.query_top_k;
      segments.push_back(segment);
    }
    SelectBlocksParams params;
    params.q = q_.data() + size_t(first) * q_stride();
    params.segments = segments.data();
    params.num_segments = static_cast<int>(segments.size());
    params.q_stride = q_stride();
    params.num_kv_heads = shape_.num_kv_heads;
    params.heads_per_group = shape_.heads;
    params.key_dim = shape_.key_dim;
    params.keys_per_block = shape_.keys_per_block;
    params.keys_per_page = shape_.keys_per_page;
    params.rule = shape_.rule;
    params.scale = 0.6f;
    params.dtype = shape_.dtype;
    params.blocks = blocks.data();
    params.counts = counts.data();
    params.selection_stride = stride;
    backend.SelectBlocks(params);
    backend.Synchronize();
    std::vector<std::vector<int32_t>> result;
    for (int list = 0; list < lists; ++list) {
      const auto begin = blocks.begin() + size_t(list) * stride;
      EXPECT_GE(counts[list], 0);
      for (int i = counts[list]; i < stride; ++i) EXPECT_EQ(begin[i], -1) << "stray write";
      result.emplace_back(begin, begin + counts[list]);
    }
    return result;
  }

 private:
  std::vector<float> Values(size_t count, uint32_t seed) const {
    std::vector<float> values = RandomFloats(count, seed);
    if (shape_.is_whole) {
      for (float& value : values) value = std::round(value);
    }
    return values;
  }
  size_t KeyIndex(int kv_head, int place) const {
    return size_t(kv_head) * num_pages_ * shape_.keys_per_page + place;
  }

  SelectShape shape_;
  int tokens_;
  int num_pages_;
  std::vector<float> q_;
  std::unique_ptr<TypedMatrix> keys_;
  std::vector<float> biases_;
};

// 2^x with the roundings of isa/vector.h.
float Exp2InFloat(float x) {
  if (x < -126.0f) return 0.0f;
  const float whole = std::nearbyint(x);
  const float coefficients[] = {1.339887440266574e-3f, 9.618437357674640e-3f, 5.550332471162809e-2f,
                                2.402264791363012e-1f, 6.931472028550421e-1f, 1.0f};
  float power = 1.535336188319500e-4f;
  for (const float next : coefficients) power = std::fma(power, x - whole, next);
  return std::ldexp(power, static_cast<int>(whole));
}

// Score of each place that the token sees, in float with the op's order of sums.
std::vector<float> ScoresInFloat(const SelectSequence& sequence, int token, int kv_head) {
  const SelectShape& shape = sequence.shape();
  const bool is_softmax = shape.rule == ScoreRule::kSoftmaxSum;
  const int first = FirstPlace(shape), end = EndPlace(shape, token);
  const float factor = is_softmax ? 0.6f * 1.44269504088896341f : 1.0f;
  std::vector<float> total(std::max(end, 1), 0.0f), s(total.size());
  for (int head = 0; head < shape.heads; ++head) {
    float largest = -kInfinity, lanes[64] = {};
    for (int place = first; place < end; ++place) {
      s[place] = 0.0f;
      for (int c = 0; c < shape.key_dim; ++c) {
        s[place] = std::fma(sequence.Key(kv_head, place)[c],
                            sequence.Q(token, kv_head, head)[c] * factor, s[place]);
      }
      largest = std::max(largest, s[place]);
    }
    if (!is_softmax) return s;
    for (int place = first; place < end; ++place) {
      s[place] = Exp2InFloat(s[place] - largest);
      lanes[place % 64] += s[place];
    }
    for (int half = 32; half >= 1; half /= 2) {
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    for (int place = first; place < end; ++place) {
      total[place] = std::fma(s[place], 1.0f / lanes[0], total[place]);
    }
  }
  return total;
}

std::vector<double> ScoresInDouble(const SelectSequence& sequence, int token, int kv_head) {
  const SelectShape& shape = sequence.shape();
  const int first = FirstPlace(shape), end = EndPlace(shape, token);
  std::vector<double> total(std::max(end, 1), 0.0), e(total.size());
  for (int head = 0; head < shape.heads; ++head) {
    double sum = 0.0;
    for (int place = first; place < end; ++place) {
      double product = 0.0;
      for (int c = 0; c < shape.key_dim; ++c) {
        product += double(sequence.Q(token, kv_head, head)[c]) * sequence.Key(kv_head, place)[c];
      }
      e[place] = std::exp(product * double(0.6f));
      sum += e[place];
    }
    for (int place = first; place < end; ++place) total[place] += e[place] / sum;
  }
  return total;
}

// The largest score of each block's keys, by the header's words: of keys [keys_per_block b - 1,
// keys_per_block (b + 1)), those that are visible.
template <class Score>
std::vector<Score> Pool(const SelectShape& shape, int token, const std::vector<Score>& scores) {
  std::vector<Score> pooled(token / 64 + 1, -std::numeric_limits<Score>::infinity());
  const int first = FirstPlace(shape);
  for (int b = 0; b < static_cast<int>(pooled.size()); ++b) {
    for (int key = shape.keys_per_block * b - 1; key < shape.keys_per_block * (b + 1); ++key) {
      const int place = key + first;
      if (key >= 0 && place < EndPlace(shape, token))
        pooled[b] = std::max(pooled[b], scores[place]);
    }
  }
  return pooled;
}

// The `count` best blocks: forced ones, then falling score, then rising id.
std::vector<int32_t> Best(const std::vector<float>& scores, const std::vector<bool>& is_forced,
                          int count) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    if (is_forced[a] != is_forced[b]) return bool(is_forced[a]);
    return scores[a] > scores[b];
  });
  order.resize(std::min<size_t>(count, order.size()));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int32_t> Expected(const SelectSequence& sequence, int token, int kv_head) {
  const SelectShape& shape = sequence.shape();
  std::vector<float> pooled = Pool(shape, token, ScoresInFloat(sequence, token, kv_head));
  const int blocks = token / 64 + 1;
  std::vector<bool> is_forced(blocks, false);
  for (int b = 0; b < blocks; ++b) {
    is_forced[b] = b < shape.budget.init || b >= blocks - shape.budget.local;
  }
  if (shape.query_top_k == 0) return Best(pooled, is_forced, shape.budget.top_k);
  for (const int32_t b : Best(pooled, is_forced, shape.query_top_k)) is_forced[b] = true;
  std::vector<float> biases;
  for (int place = 0; place < std::max(1, EndPlace(shape, token)); ++place) {
    biases.push_back(sequence.Bias(kv_head, place));
  }
  return Best(Pool(shape, token, biases), is_forced, shape.budget.top_k);
}

// Every list: as long as it must be, ascending, with the forced blocks, and as expected.
void CheckLists(const SelectSequence& sequence, int first,
                const std::vector<std::vector<int32_t>>& lists) {
  const SelectShape& shape = sequence.shape();
  for (size_t i = 0; i < lists.size(); ++i) {
    const int token = first + static_cast<int>(i) / shape.num_kv_heads;
    const int blocks = token / 64 + 1;
    const std::vector<int32_t>& list = lists[i];
    ASSERT_EQ(list.size(), size_t(std::min(shape.budget.top_k, blocks)));
    for (size_t e = 1; e < list.size(); ++e) ASSERT_LT(list[e - 1], list[e]);
    for (int b = 0; b < blocks; ++b) {
      if (b >= shape.budget.init && b < blocks - shape.budget.local) continue;
      ASSERT_TRUE(std::binary_search(list.begin(), list.end(), b)) << "block " << b;
    }
    ASSERT_EQ(list, Expected(sequence, token, static_cast<int>(i) % shape.num_kv_heads))
        << shape.Name() << ", token " << token;
  }
}

std::vector<SelectShape> Shapes() {
  return {
      {},
      {.num_kv_heads = 1, .heads = 5, .key_dim = 34, .dtype = DType::kBF16, .budget = {6, 2, 2}},
      {.num_kv_heads = 1, .heads = 16, .key_dim = 16, .dtype = DType::kF16, .budget = {5, 0, 4}},
      {.keys_per_page = 64, .heads = 3, .is_whole = true},
      {.rule = ScoreRule::kProduct, .heads = 1, .dtype = DType::kBF16},
      {.rule = ScoreRule::kProduct, .heads = 1, .key_dim = 4, .is_whole = true},
      {.rule = ScoreRule::kProduct, .keys_per_block = 64, .heads = 1, .budget = {7, 0, 2}},
      {.rule = ScoreRule::kProduct,
       .keys_per_block = 64,
       .keys_per_page = 512,
       .heads = 1,
       .key_dim = 32,
       .dtype = DType::kF16},
      {.keys_per_block = 64, .num_kv_heads = 1, .heads = 2, .key_dim = 4},
      {.query_top_k = 6},
      {.query_top_k = 4},  // none by the query
      {.rule = ScoreRule::kProduct, .heads = 1, .query_top_k = 8, .is_whole = true},
      {.rule = ScoreRule::kProduct, .heads = 1, .query_top_k = 5, .is_whole = true},
  };
}

// The last token of sequences of every length to 200, then of every length mod 64.
TEST(SelectBlocksTest, EveryLengthMatchesTheSlowSelection) {
  std::vector<int> lengths;
  for (int tokens = 1; tokens <= 200; ++tokens) lengths.push_back(tokens);
  for (int tokens = 201; tokens <= 3000; tokens += kSanitized ? 411 : 37) lengths.push_back(tokens);
  std::vector<std::unique_ptr<Backend>> backends;
  for (const CpuIsa isa : IsasHere()) backends.push_back(MakeCpuBackend({1, isa}));
  for (const SelectShape& shape : Shapes()) {
    for (const int tokens : lengths) {
      const SelectSequence sequence(shape, tokens, 40 + tokens);
      const auto lists = sequence.Select(*backends[0], tokens - 1, tokens, 1);
      CheckLists(sequence, tokens - 1, lists);
      if (HasFatalFailure()) return;
      for (const auto& backend : backends) {
        ASSERT_EQ(sequence.Select(*backend, tokens - 1, tokens, 1), lists) << backend->Describe();
      }
    }
  }
}

// All tokens of a prompt: whole, in chunks, one by one, on several threads.
TEST(SelectBlocksTest, ChunksAndThreadsGiveARowTheSameList) {
  for (SelectShape shape : Shapes()) {
    const int tokens = kSanitized ? 700 : 1000;
    const SelectSequence sequence(shape, tokens, 9);
    const auto one = MakeCpuBackend({1});
    const auto whole = sequence.Select(*one, 0, tokens, tokens);
    CheckLists(sequence, 0, whole);
    if (HasFatalFailure()) return;
    for (const int threads : {1, 2, 5}) {
      const auto backend = MakeCpuBackend({threads});
      for (const int chunk : {1, 7, 64, 333}) {
        ASSERT_EQ(sequence.Select(*backend, 0, tokens, chunk), whole) << chunk << " " << threads;
      }
    }
  }
}

// Longer than the scores of one item have room for.
TEST(SelectBlocksTest, LongSequencesGiveARowTheSameList) {
  const SelectShape shape{.num_kv_heads = 1, .heads = 16, .budget = {20, 1, 4}};
  const int tokens = 30000, first = tokens - 150;
  const SelectSequence sequence(shape, tokens, 5);
  const auto backend = MakeCpuBackend({2});
  const auto rows = sequence.Select(*backend, first, tokens, 1);
  EXPECT_EQ(sequence.Select(*backend, first, tokens, tokens), rows);
  CheckLists(sequence, tokens - 1, {rows.back()});
}

// The float scores are those of the definition: no block left out beats a chosen one by more than
// rounding.
TEST(SelectBlocksTest, SoftmaxScoresMatchDouble) {
  const SelectShape shape{.num_kv_heads = 1, .heads = 7, .key_dim = 32};
  const auto backend = MakeCpuBackend({1});
  for (int tokens = 600; tokens <= 3000; tokens += 97) {
    const SelectSequence sequence(shape, tokens, tokens);
    const std::vector<int32_t> list = sequence.Select(*backend, tokens - 1, tokens, 1)[0];
    const auto pooled = Pool(shape, tokens - 1, ScoresInDouble(sequence, tokens - 1, 0));
    double worst_chosen = 1e9, best_other = 0.0;
    const int blocks = static_cast<int>(pooled.size());
    for (int b = shape.budget.init; b < blocks - shape.budget.local; ++b) {
      if (std::binary_search(list.begin(), list.end(), b)) {
        worst_chosen = std::min(worst_chosen, pooled[b]);
      } else {
        best_other = std::max(best_other, pooled[b]);
      }
    }
    ASSERT_GE(worst_chosen, best_other * (1 - 1e-5)) << tokens;
  }
}

TEST(SelectBlocksTest, TiesGoToTheLowerBlock) {
  for (const ScoreRule rule : {ScoreRule::kSoftmaxSum, ScoreRule::kProduct}) {
    SelectShape shape{.rule = rule, .heads = 1, .is_whole = true};
    shape.key_dim = 2;
    SelectSequence sequence(shape, 64 * 20, 3);
    const auto backend = MakeCpuBackend({1});
    sequence.ClearQueries();
    const std::vector<int32_t> lowest = {0, 1, 2, 3, 4, 17, 18, 19};
    EXPECT_EQ(sequence.Select(*backend, 64 * 20 - 1, 64 * 20, 1)[1], lowest);
  }
}

// A NaN among a row's keys or queries costs that row its scores, nothing else.
TEST(SelectBlocksTest, ANaNQueryStillGetsAFullList) {
  for (const SelectShape& shape : Shapes()) {
    SelectSequence sequence(shape, 1200, 3);
    const auto backend = MakeCpuBackend({1});
    const auto clean = sequence.Select(*backend, 1100, 1200, 100);
    sequence.SpoilQuery(1150);
    const auto dirty = sequence.Select(*backend, 1100, 1200, 100);
    for (size_t i = 0; i < clean.size(); ++i) {
      const int token = 1100 + static_cast<int>(i) / shape.num_kv_heads;
      if (token != 1150) {
        ASSERT_EQ(dirty[i], clean[i]);
      }
      ASSERT_EQ(dirty[i].size(), size_t(shape.budget.top_k));
      for (size_t e = 1; e < dirty[i].size(); ++e) ASSERT_LT(dirty[i][e - 1], dirty[i][e]);
    }
  }
}

// When all blocks are taken no key is read: there need be none.
TEST(SelectBlocksTest, TakesAllBlocksUnread) {
  SelectSegment segment;
  segment.rows = {0, 512, 0};
  segment.budget = {8, 1, 2};
  std::vector<int32_t> blocks(512 * 8), counts(512);
  SelectBlocksParams params;
  params.segments = &segment;
  params.num_segments = 1;
  params.q_stride = 4;
  params.num_kv_heads = 1;
  params.heads_per_group = 1;
  params.key_dim = 4;
  params.keys_per_block = 4;
  params.blocks = blocks.data();
  params.counts = counts.data();
  params.selection_stride = 8;
  MakeCpuBackend({2})->SelectBlocks(params);
  for (int row = 0; row < 512; ++row) {
    ASSERT_EQ(counts[row], row / 64 + 1);
    for (int i = 0; i < counts[row]; ++i) ASSERT_EQ(blocks[row * 8 + i], i);
  }
}

TEST(SelectBlocksDeathTest, BudgetsHoldTheForcedBlocks) {
  const auto backend = MakeCpuBackend({1});
  for (const SelectionBudget& budget : {SelectionBudget{3, 1, 3}, SelectionBudget{8, 1, 1}}) {
    const SelectSequence sequence({.budget = budget}, 64, 1);
    EXPECT_DEATH(sequence.Select(*backend, 0, 64, 64), "CHECK failed");
  }
}

}  // namespace
}  // namespace augur::kernels
