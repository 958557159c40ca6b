// PagedAttention over lists of entries: chosen blocks, biases, and lists that pass by in several
// calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/kernels/paged_sequence.h"

namespace augur::kernels {
namespace {

constexpr int kWhole = std::numeric_limits<int>::max();

// Rows of a segment and what they attend to.
struct Rows {
  int first = 0;  // position
  int count = 1;
  std::vector<std::vector<int32_t>> lists;  // [kv heads]; none: all blocks
  bool has_biases = false;
};

// A sequence whose keys and values are in pages, with NaN bytes behind its last token.
class ListedSequence {
 public:
  ListedSequence(const HeadShape& shape, int tokens, uint32_t seed)
      : shape_(shape), tokens_(tokens), pool_(shape, (tokens + 63) / 64) {
    table_ = pool_.TakeBlocks(tokens);
    const RopeTable rope(tokens, shape.head_dim);
    const std::vector<float> rows = RandomFloats(size_t(tokens) * shape.row_floats(), seed);
    qkv_ =
        AppendPieces(*MakeCpuBackend({1}), shape, pool_.kv(), rope, {{&rows, &table_, 0, tokens}});
    biases_ = RandomFloats(table_.size() * shape.num_kv_heads * 64, seed + 1, 2.0f);
    for (int h = 0; h < shape.num_kv_heads; ++h) {
      for (int t = tokens; t < blocks() * 64; ++t) biases_[BiasIndex(h, t / 64) + t % 64] = NAN;
    }
  }

  int blocks() const { return static_cast<int>(table_.size()); }
  const HeadShape& shape() const { return shape_; }

  // Outputs of all segments' rows, one after the other; `step` entries a call.
  std::vector<float> Attend(Backend& backend, const std::vector<Rows>& segments,
                            int step = kWhole) const {
    std::vector<float> q, out;
    int longest = 0;
    for (const Rows& rows : segments) {
      const auto begin = qkv_.begin() + size_t(rows.first) * shape_.row_floats();
      q.insert(q.end(), begin, begin + size_t(rows.count) * shape_.row_floats());
      longest = std::max(longest, EntriesOf(rows));
    }
    PagedAttentionParams params = AttentionOver(shape_, q, out);
    std::vector<float> states(
        size_t(params.rows) * shape_.num_q_heads * AttentionStateFloats(shape_.head_dim), NAN);
    if (step != kWhole) params.states = states.data();
    for (int first = 0; first < longest; first += step) {
      params.first_entry = first;
      params.end_entry = step == kWhole ? kWhole : first + step;
      Call(backend, segments, params);
      if (step == kWhole) break;
    }
    backend.Synchronize();
    return out;
  }

  // The definition in double, from the pages' own bytes.
  std::vector<double> Expected(const Rows& rows) const {
    std::vector<double> out;
    const int d = shape_.head_dim, group = shape_.num_q_heads / shape_.num_kv_heads;
    for (int t = rows.first; t < rows.first + rows.count; ++t) {
      for (int head = 0; head < shape_.num_q_heads; ++head) {
        const int h = head / group;
        const float* q = qkv_.data() + size_t(t) * shape_.row_floats() + head * d;
        std::vector<double> total(d, 0.0);
        double sum = 0.0;
        for (const int32_t block : ListOf(rows, h)) {
          const std::byte* page = pool_.kv().page(table_[block], shape_.layer, h);
          for (int i = 0; i < 64 && block * 64 + i <= t; ++i) {
            double score = 0.0;
            for (int c = 0; c < d; ++c) {
              score += double(q[c]) * ReadAs(shape_.dtype, page, size_t(i) * d + c);
            }
            score /= std::sqrt(double(d));
            if (rows.has_biases) score += biases_[BiasIndex(h, block) + i];
            const double weight = std::exp(score);
            sum += weight;
            for (int c = 0; c < d; ++c) {
              total[c] += weight * ReadAs(shape_.dtype, page, size_t(64 + i) * d + c);
            }
          }
        }
        for (const double value : total) out.push_back(value / sum);
      }
    }
    return out;
  }

  // Ascending lists of `count` blocks a kv head, with the first block and, mostly, `last`.
  std::vector<std::vector<int32_t>> RandomLists(int last, int count, uint32_t seed) const {
    std::mt19937 random(seed);
    std::vector<std::vector<int32_t>> lists;
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      std::vector<int32_t> others(std::max(0, last - 1));
      std::iota(others.begin(), others.end(), 1);
      std::shuffle(others.begin(), others.end(), random);
      others.resize(std::min<size_t>(others.size(), std::max(0, count - 2 - h)));
      others.push_back(0);
      if (last > 0 && random() % 4 != 0) others.push_back(last);
      std::sort(others.begin(), others.end());
      lists.push_back(others);
    }
    return lists;
  }
  std::vector<std::vector<int32_t>> AllBlocks(int last) const {
    std::vector<int32_t> all(last + 1);
    std::iota(all.begin(), all.end(), 0);
    return std::vector<std::vector<int32_t>>(shape_.num_kv_heads, all);
  }

 private:
  size_t BiasIndex(int kv_head, int block) const {
    return (size_t(kv_head) * blocks() + block) * 64;
  }

  std::vector<int32_t> ListOf(const Rows& rows, int kv_head) const {
    if (!rows.lists.empty()) return rows.lists[kv_head];
    return AllBlocks((rows.first + rows.count - 1) / 64)[0];
  }
  int EntriesOf(const Rows& rows) const {
    size_t most = 0;
    for (int h = 0; h < shape_.num_kv_heads; ++h) most = std::max(most, ListOf(rows, h).size());
    return static_cast<int>(most);
  }

  // One call; its lists hold the entries of the call and nothing else.
  void Call(Backend& backend, const std::vector<Rows>& segments,
            PagedAttentionParams& params) const {
    struct Lists {
      std::vector<const std::byte*> pages;
      std::vector<int32_t> blocks, counts;
      std::vector<const float*> biases;
    };
    std::vector<Lists> lists(segments.size());
    std::vector<AttentionSegment> list_segments;
    int row = 0;
    for (size_t s = 0; s < segments.size(); row += segments[s++].count) {
      const Rows& rows = segments[s];
      const int stride =
          std::max(0, std::min(EntriesOf(rows), params.end_entry) - params.first_entry);
      if (stride == 0) continue;  // has passed by
      for (int h = 0; h < shape_.num_kv_heads; ++h) {
        const std::vector<int32_t> list = ListOf(rows, h);
        lists[s].counts.push_back(static_cast<int32_t>(list.size()));
        for (int e = params.first_entry; e < params.first_entry + stride; ++e) {
          const bool is_there = e < static_cast<int>(list.size());
          const int block = is_there ? list[e] : -1;
          lists[s].blocks.push_back(block);
          lists[s].pages.push_back(is_there ? pool_.kv().page(table_[block], shape_.layer, h)
                                            : nullptr);
          lists[s].biases.push_back(is_there ? biases_.data() + BiasIndex(h, block) : nullptr);
        }
      }
      AttentionSegment segment;
      segment.rows = {row, rows.count, rows.first};
      segment.pages = lists[s].pages.data();
      if (!rows.lists.empty()) {
        segment.blocks = lists[s].blocks.data();
        segment.counts = lists[s].counts.data();
      }
      if (rows.has_biases) segment.biases = lists[s].biases.data();
      segment.list_stride = stride;
      list_segments.push_back(segment);
    }
    params.segments = list_segments.data();
    params.num_segments = static_cast<int>(list_segments.size());
    backend.PagedAttention(params);
  }

  HeadShape shape_;
  int tokens_;
  PagedPool pool_;
  std::vector<int32_t> table_;
  std::vector<float> qkv_;
  std::vector<float> biases_;  // [kv heads][blocks][64]
};

double WorstError(const std::vector<float>& out, const std::vector<double>& expected) {
  double worst = out.size() == expected.size() ? 0.0 : 1e9;
  for (size_t i = 0; i < out.size(); ++i) {
    const double error = std::abs(out[i] - expected[i]);
    if (!(error <= worst)) worst = error;  // a NaN counts as the worst
  }
  return worst;
}

std::vector<HeadShape> Shapes() {
  return {{4, 2, 16, DType::kF32},  {8, 2, 64, DType::kBF16}, {6, 2, 24, DType::kF16},
          {3, 1, 10, DType::kBF16}, {4, 1, 72, DType::kF32},  {8, 1, 128, DType::kBF16}};
}

// One thread and several, and every ISA.
std::vector<std::unique_ptr<Backend>> Backends() {
  std::vector<std::unique_ptr<Backend>> backends;
  for (const CpuIsa isa : IsasHere()) backends.push_back(MakeCpuBackend({2, isa}));
  for (const int threads : {1, 5}) backends.push_back(MakeCpuBackend({threads}));
  return backends;
}

TEST(AttentionListTest, AListOfAllBlocksIsTheDenseForm) {
  for (const HeadShape& shape : Shapes()) {
    const int tokens = kSanitized ? 1100 : 1500;
    const ListedSequence sequence(shape, tokens, 3);
    const std::vector<float> dense =
        sequence.Attend(*MakeCpuBackend({1}), {{1000, 40, {}}, {63, 1, {}}, {tokens - 1, 1, {}}});
    const std::vector<Rows> listed = {{1000, 40, sequence.AllBlocks(1039 / 64)},
                                      {63, 1, sequence.AllBlocks(0)},
                                      {tokens - 1, 1, sequence.AllBlocks((tokens - 1) / 64)}};
    for (const auto& backend : Backends()) {
      ASSERT_TRUE(SameBits(sequence.Attend(*backend, listed), dense))
          << backend->Describe() << " head_dim " << shape.head_dim;
    }
  }
}

// One row and many, with and without biases, lists shorter and longer than a group.
TEST(AttentionListTest, ListsMatchDouble) {
  for (const HeadShape& shape : Shapes()) {
    const int tokens = 2530;
    const ListedSequence sequence(shape, tokens, 4);
    const auto backend = MakeCpuBackend({2});
    uint32_t seed = 0;
    for (const auto& [first, count] :
         {std::pair{2529, 1}, {70, 1}, {2240, 1}, {1000, 30}, {3, 2}}) {
      for (const int entries : {2, 5, 16, 17, 37}) {
        for (const bool has_biases : {false, true}) {
          const int last = (first + count - 1) / 64;
          const Rows rows{first, count, sequence.RandomLists(last, entries, ++seed), has_biases};
          ASSERT_LT(WorstError(sequence.Attend(*backend, {rows}), sequence.Expected(rows)), 5e-6)
              << "from " << first << ", " << entries << " entries, head_dim " << shape.head_dim;
        }
      }
    }
    const Rows dense{2500, 7, {}, true};
    ASSERT_LT(WorstError(sequence.Attend(*backend, {dense}), sequence.Expected(dense)), 5e-6);
  }
}

// Rows that share a list give what each gives alone, with the list or with its visible part.
TEST(AttentionListTest, RowsOfASharedListStandAlone) {
  for (const HeadShape& shape : Shapes()) {
    const ListedSequence sequence(shape, 1700, 5);
    const auto backend = MakeCpuBackend({1});
    const Rows shared{1400, 300, sequence.RandomLists(1699 / 64, 24, 8), true};
    const std::vector<float> together = sequence.Attend(*backend, {shared});
    ASSERT_TRUE(SameBits(sequence.Attend(*MakeCpuBackend({4}), {shared}), together));
    for (int row = 0; row < shared.count; row += 13) {
      Rows alone{shared.first + row, 1, shared.lists, true};
      const float* expected = together.data() + size_t(row) * shape.out_floats();
      std::vector<float> out = sequence.Attend(*backend, {alone});
      ASSERT_TRUE(SameBits(out.data(), expected, out.size())) << row;
      for (std::vector<int32_t>& list : alone.lists) {
        std::erase_if(list, [&](int32_t block) { return block > alone.first / 64; });
      }
      out = sequence.Attend(*backend, {alone});
      ASSERT_TRUE(SameBits(out.data(), expected, out.size())) << row;
    }
  }
}

// Neighbouring tokens with a list each, which a backend may walk together: as each token alone.
TEST(AttentionListTest, TokensWithOwnListsStandAlone) {
  for (const HeadShape& shape : Shapes()) {
    const ListedSequence sequence(shape, 2200, 9);
    std::vector<Rows> segments;
    for (int token = 2100; token < 2150; ++token) {  // over a block's edge
      const int entries = 1 + token % 3 * 16 + token % 5;
      segments.push_back(
          {token, 1, sequence.RandomLists(token / 64, entries, token / 4), token % 11 < 8});
    }
    segments.push_back({2149, 1, segments.back().lists, true});
    std::vector<float> alone;
    for (const Rows& rows : segments) {
      const std::vector<float> out = sequence.Attend(*MakeCpuBackend({1}), {rows});
      ASSERT_LT(WorstError(out, sequence.Expected(rows)), 5e-6) << rows.first;
      alone.insert(alone.end(), out.begin(), out.end());
    }
    for (const auto& backend : Backends()) {
      ASSERT_TRUE(SameBits(sequence.Attend(*backend, segments), alone))
          << backend->Describe() << " head_dim " << shape.head_dim;
    }
  }
}

// Segments of every kind in one step, whole and in calls of some groups.
TEST(AttentionListTest, BatchesAndStreamingKeepARowsBits) {
  for (const HeadShape& shape : Shapes()) {
    if (shape.head_dim > 64) continue;  // the generic kernels take their time
    const int tokens = 2600;
    const ListedSequence sequence(shape, tokens, 6);
    const int last = (tokens - 1) / 64;
    std::vector<Rows> segments = {{tokens - 1, 1, sequence.RandomLists(last, 40, 1), true},
                                  {tokens - 40, 40, {}, false},
                                  {tokens - 300, 75, sequence.RandomLists(last, 34, 2), false},
                                  {5, 3, {}, true},
                                  {1020, 10, sequence.AllBlocks(1029 / 64), true},
                                  {1000, 40, sequence.AllBlocks(last), false},
                                  {2047, 2, {}, false}};
    for (int row = 0; row < 10; ++row) {
      segments.push_back({2000 + row, 1, sequence.RandomLists((2000 + row) / 64, 20, 50 + row)});
    }
    std::vector<float> alone;
    for (const Rows& rows : segments) {
      const std::vector<float> out = sequence.Attend(*MakeCpuBackend({1}), {rows});
      alone.insert(alone.end(), out.begin(), out.end());
    }
    for (const float value : alone) ASSERT_TRUE(std::isfinite(value));
    for (const auto& backend : Backends()) {
      for (const int step : {kWhole, 16, 48}) {
        ASSERT_TRUE(SameBits(sequence.Attend(*backend, segments, step), alone))
            << backend->Describe() << " step " << step << " head_dim " << shape.head_dim;
      }
    }
  }
}

// A few long rows, whose groups the threads share in each call.
TEST(AttentionListTest, SplitStreamingKeepsARowsBits) {
  const HeadShape shape{4, 1, 16, DType::kBF16};
  const ListedSequence sequence(shape, 8000, 6);
  const int last = 7999 / 64;
  const std::vector<Rows> segments = {{7999, 1, {}, true},
                                      {7990, 9, sequence.RandomLists(last, 110, 1)}};
  const std::vector<float> alone = sequence.Attend(*MakeCpuBackend({1}), segments);
  for (const auto& backend : Backends()) {
    for (const int step : {kWhole, 32, 80}) {
      ASSERT_TRUE(SameBits(sequence.Attend(*backend, segments, step), alone))
          << backend->Describe() << " step " << step;
    }
  }
}

TEST(AttentionListDeathTest, CallsEndAtGroupEdges) {
  const ListedSequence sequence({2, 1, 16, DType::kF32}, 200, 7);
  const auto backend = MakeCpuBackend({1});
  EXPECT_DEATH(sequence.Attend(*backend, {{199, 1, {}}}, 3), "CHECK failed");
}

}  // namespace
}  // namespace augur::kernels
