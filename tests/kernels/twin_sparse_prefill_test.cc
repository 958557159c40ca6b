// PagedAttention of segments whose rows have each their own choice of blocks, on every backend:
// against double, and against the same rows in other company.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "tests/kernels/twin_attention_checks.h"

namespace augur::kernels {
namespace {

using Choice = std::vector<std::vector<int32_t>>;  // [kv heads] blocks

// How a sequence's rows choose. The first block and the last two are always in.
struct Choosing {
  int others = 6;        // chosen besides, as far as there are that many
  int changed = 2;       // of them from token to token
  bool is_mixed = true;  // now and then a row takes all blocks, or none besides
  uint32_t seed = 1;
};

// The choices of tokens [0, tokens): a pure function of token and head, so that a chunk's rows
// choose what they choose in the whole.
std::vector<Choice> Choose(const AttentionShape& shape, int tokens, const Choosing& how) {
  std::vector<Choice> rows(tokens);
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    std::mt19937 random(how.seed * 1000 + h);
    std::vector<int32_t> others;
    for (int t = 0; t < tokens; ++t) {
      const int own = t / kBlockTokens;
      for (int i = 0; i < how.changed && !others.empty(); ++i) {
        others.erase(others.begin() + random() % others.size());
      }
      std::set<int32_t> blocks(others.begin(), others.end());
      for (int i = 0; i < 2 * how.others && static_cast<int>(blocks.size()) < how.others; ++i) {
        blocks.insert(static_cast<int32_t>(random() % (own + 1)));
      }
      others.assign(blocks.begin(), blocks.end());
      const int kind = how.is_mixed ? static_cast<int>(random() % 16) : 0;
      if (kind == 1) blocks.clear();
      if (kind == 2) {
        for (int b = 0; b <= own; ++b) blocks.insert(b);
      }
      for (const int b : {0, std::max(0, own - 1), own}) blocks.insert(b);
      rows[t].emplace_back(blocks.begin(), blocks.end());
    }
  }
  return rows;
}

// Tokens [first, first + count) with what they choose.
SegmentRows RowsWith(const AttentionSequence& sequence, const std::vector<Choice>& choices,
                     int first, int count) {
  return {.sequence = &sequence,
          .first_position = first,
          .count = count,
          .choices = {choices.begin() + first, choices.begin() + first + count}};
}

// One segment a row.
std::vector<SegmentRows> Apart(const SegmentRows& rows) {
  std::vector<SegmentRows> apart;
  for (int r = 0; r < rows.count; ++r) {
    apart.push_back({.sequence = rows.sequence,
                     .first_position = rows.first_position + r,
                     .count = 1,
                     .has_biases = rows.has_biases,
                     .choices = {rows.choices[r]}});
  }
  return apart;
}

// Fast ones on a device, and others.
std::vector<AttentionShape> Shapes() {
  return {{16, 2, 128, DType::kBF16}, {4, 2, 64, DType::kF16}, {4, 1, 128, DType::kBF16},
          {3, 2, 128, DType::kF16},   {7, 1, 64, DType::kF16}, {1, 2, 64, DType::kBF16},
          {2, 1, 96, DType::kBF16},   {4, 1, 64, DType::kF32}};
}

TEST(TwinSparsePrefillTest, MatchesDouble) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const int group : {1, 2, 4, 8, 16}) {
      if (kSanitized && group != 4) continue;
      for (const int head_dim : {64, 128, 96, 24}) {
        for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
          // The fast kernel's shapes all, others now and then.
          const bool is_fast = head_dim % 64 == 0 && dtype != DType::kF32;
          if (!is_fast && (group + head_dim / 8 + static_cast<int>(dtype)) % 4 != 0) continue;
          const AttentionShape shape{group, group >= 8 ? 1 : 2, head_dim, dtype};
          const int tokens = kSanitized ? 1100 : 4097;
          const AttentionSequence sequence(*under_test.backend, shape, {.tokens = tokens});
          const std::vector<Choice> choices = Choose(shape, tokens, {.others = 20, .changed = 4});
          for (const int rows : {1, 3, 63, 64, 65, 1000}) {
            for (const int end : {rows, 1050, tokens}) {
              if (end == tokens && rows == 1000 && !is_fast) continue;
              ExpectCloseToDouble(under_test, {RowsWith(sequence, choices, end - rows, rows)}, {});
            }
          }
        }
      }
    }
  }
}

// A row's bits are its own: alone, in a segment of any length, in a tile with any neighbours.
TEST(TwinSparsePrefillTest, RowsStandAlone) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : Shapes()) {
      const int tokens = 1400;
      const AttentionSequence sequence(*under_test.backend, shape, {.tokens = tokens});
      const std::vector<Choice> choices = Choose(shape, tokens, {});
      const int count = kSanitized ? 70 : 300;
      const SegmentRows rows = RowsWith(sequence, choices, tokens - count, count);
      for (const DType out : OutTypes(under_test, shape)) {
        const AttentionCall call{.out_dtype = out};
        const std::vector<std::byte> together = Attend(under_test, {rows}, call);
        ASSERT_EQ(Attend(under_test, Apart(rows), call), together)
            << under_test.name << " " << Describe(shape);
        for (const int at : {0, 5, count - 1}) {
          const SegmentRows alone = RowsWith(sequence, choices, tokens - count + at, 1);
          ASSERT_EQ(Attend(under_test, {alone}, call), RowsOf(together, shape, out, at, 1))
              << under_test.name << " " << Describe(shape) << " row " << at;
        }
        // Beside rows that choose otherwise.
        SegmentRows others = rows;
        const std::vector<Choice> other = Choose(shape, tokens, {.others = 12, .seed = 9});
        for (int r = 0; r < count; ++r) {
          if (r % 3 != 1) others.choices[r] = other[tokens - count + r];
        }
        const std::vector<std::byte> changed = Attend(under_test, {others}, call);
        for (int r = 1; r < count; r += 3) {
          ASSERT_EQ(RowsOf(changed, shape, out, r, 1), RowsOf(together, shape, out, r, 1))
              << under_test.name << " " << Describe(shape) << " row " << r;
        }
      }
    }
  }
}

// On the CPU a choice is a list of blocks: the same bits, with biases or without.
TEST(TwinSparsePrefillTest, RowsHaveTheBitsOfListsOnTheCpu) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    if (under_test.on_device) continue;
    for (const AttentionShape& shape : Shapes()) {
      const AttentionSequence sequence(*under_test.backend, shape, {.tokens = 1300});
      const std::vector<Choice> choices = Choose(shape, 1300, {.others = 18});
      for (const bool has_biases : {false, true}) {
        SegmentRows rows = RowsWith(sequence, choices, 1200, 100);
        rows.has_biases = has_biases;
        const std::vector<std::byte> chosen = Attend(under_test, {rows}, {});
        std::vector<SegmentRows> lists = Apart(rows);
        for (SegmentRows& row : lists) {
          row.lists = row.choices[0];
          row.choices.clear();
        }
        ASSERT_EQ(chosen, Attend(under_test, lists, {})) << Describe(shape);
        for (const int at : {0, 31, 99}) {
          ASSERT_EQ(Attend(under_test, {lists[at]}, {}), RowsOf(chosen, shape, DType::kF32, at, 1))
              << Describe(shape) << " row " << at;
        }
      }
    }
  }
}

// With biases, which a device leaves to another kernel.
TEST(TwinSparsePrefillTest, BiasesMatchDouble) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape :
         {AttentionShape{4, 2, 64, DType::kBF16}, AttentionShape{3, 1, 80, DType::kF32}}) {
      const AttentionSequence sequence(*under_test.backend, shape, {.tokens = 1300});
      SegmentRows rows = RowsWith(sequence, Choose(shape, 1300, {}), 1200, 100);
      rows.has_biases = true;
      ExpectCloseToDouble(under_test, {rows}, {});
    }
  }
}

TEST(TwinSparsePrefillTest, AllBlocksAreTheDenseForm) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : Shapes()) {
      const AttentionSequence sequence(*under_test.backend, shape, {.tokens = 1100});
      const Choosing all{.others = 1000, .changed = 0, .is_mixed = false};
      std::vector<Choice> choices = Choose(shape, 1100, all);
      for (int t = 0; t < 1100; ++t) {
        for (std::vector<int32_t>& blocks : choices[t]) {
          blocks.resize(t / kBlockTokens + 1);
          std::iota(blocks.begin(), blocks.end(), 0);
        }
      }
      const SegmentRows rows = RowsWith(sequence, choices, 1000, 100);
      ExpectCloseToDouble(under_test, {rows}, {});
      if (under_test.on_device) continue;
      EXPECT_EQ(Attend(under_test, {rows}, {}), Attend(under_test, {{&sequence, 1000, 100}}, {}))
          << Describe(shape);
    }
  }
}

// Segments that begin anywhere, one of them a single row, padded rows between.
TEST(TwinSparsePrefillTest, RaggedSegmentsMatchDoubleAndStandAlone) {
  const std::vector<std::pair<int, int>> chunks = {{0, 1},    {0, 40},    {64, 100}, {128, 64},
                                                   {37, 200}, {1000, 77}, {1023, 1}, {511, 130}};
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : Shapes()) {
      std::vector<int> lengths;
      for (const auto& [first, count] : chunks) lengths.push_back(first + count);
      const auto sequences = Sequences(under_test, shape, lengths);
      std::vector<SegmentRows> rows;
      for (size_t i = 0; i < chunks.size(); ++i) {
        const Choosing how{.others = 4, .seed = static_cast<uint32_t>(i)};
        rows.push_back(RowsWith(sequences[i], Choose(shape, lengths[i], how), chunks[i].first,
                                chunks[i].second));
        if (i % 3 == 1) rows.push_back({&sequences[i]});
      }
      ExpectCloseToDouble(under_test, rows, {});
      ExpectSegmentsStandAlone(under_test, rows, {});
    }
  }
}

// Pages hold nothing behind a chunk while it is attended to.
TEST(TwinSparsePrefillTest, ChunkingKeepsARowsBits) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : Shapes()) {
      const int tokens = kSanitized ? 150 : 1000;
      const AttentionSequence whole(*under_test.backend, shape, {.tokens = tokens});
      const std::vector<Choice> choices = Choose(shape, tokens, {});
      const std::vector<std::byte> expected =
          Attend(under_test, {RowsWith(whole, choices, 0, tokens)}, {});
      for (const int chunk : {7, 64, 100, 512}) {
        const int end = chunk == 7 ? 140 : tokens;  // many small calls take their time
        for (int first = 0; first < end; first += chunk) {
          const int count = std::min(chunk, end - first);
          const AttentionSequence part(*under_test.backend, shape, {.tokens = first + count});
          ASSERT_EQ(Attend(under_test, {RowsWith(part, choices, first, count)}, {}),
                    RowsOf(expected, shape, DType::kF32, first, count))
              << under_test.name << " " << Describe(shape) << " chunk " << chunk << " from "
              << first;
        }
      }
    }
  }
}

// What nobody has chosen may hold anything; what some rows have chosen makes them NaN, and leaves
// the bits of the others.
TEST(TwinSparsePrefillTest, BlocksThatARowHasNotChosenDoNotReachIt) {
  const int tokens = 1400, first = 1100, count = tokens - first;
  const int nobodys = 9, somebodys = 5;
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : Shapes()) {
      std::vector<Choice> choices = Choose(shape, tokens, {.is_mixed = false});
      std::vector<bool> chose(tokens);
      for (int t = 0; t < tokens; ++t) {
        chose[t] = t % 5 == 2 || (t >= 1200 && t < 1264);
        for (std::vector<int32_t>& blocks : choices[t]) {
          std::erase(blocks, nobodys);
          std::erase(blocks, somebodys);
          if (!chose[t] || t / kBlockTokens < somebodys) continue;
          blocks.insert(std::upper_bound(blocks.begin(), blocks.end(), somebodys), somebodys);
        }
      }
      const AttentionSequence good(*under_test.backend, shape, {.tokens = tokens});
      const AttentionSequence spoilt(*under_test.backend, shape,
                                     {.tokens = tokens, .bad_blocks = {nobodys, somebodys}});
      const std::vector<std::byte> clean =
          Attend(under_test, {RowsWith(good, choices, first, count)}, {});
      const std::vector<std::byte> dirty =
          Attend(under_test, {RowsWith(spoilt, choices, first, count)}, {});
      for (int r = 0; r < count; ++r) {
        const std::vector<std::byte> row = RowsOf(dirty, shape, DType::kF32, r, 1);
        if (!chose[first + r]) {
          ASSERT_EQ(row, RowsOf(clean, shape, DType::kF32, r, 1))
              << under_test.name << " " << Describe(shape) << " row " << r;
          continue;
        }
        for (int i = 0; i < shape.out_floats(); ++i) {
          ASSERT_TRUE(std::isnan(ReadAs(DType::kF32, row.data(), i)))
              << under_test.name << " " << Describe(shape) << " row " << r;
        }
      }
    }
  }
}

// A NaN inside the chunk reaches the later rows that have chosen its block, and no others.
TEST(TwinSparsePrefillTest, ALaterNaNLeavesEarlierRowsAlone) {
  const int tokens = 300, bad = 171;
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : Shapes()) {
      const std::vector<Choice> choices = Choose(shape, tokens, {});
      const AttentionSequence good(*under_test.backend, shape, {.tokens = tokens});
      const std::vector<std::byte> clean =
          Attend(under_test, {RowsWith(good, choices, 0, tokens)}, {});
      for (const bool has_bad_values : {false, true}) {
        const SequenceContent content{
            .tokens = tokens, .bad_token = bad, .has_bad_values = has_bad_values};
        const AttentionSequence spoilt(*under_test.backend, shape, content);
        const std::vector<std::byte> dirty =
            Attend(under_test, {RowsWith(spoilt, choices, 0, tokens)}, {});
        EXPECT_EQ(RowsOf(dirty, shape, DType::kF32, 0, bad),
                  RowsOf(clean, shape, DType::kF32, 0, bad))
            << under_test.name << " " << Describe(shape) << " values " << has_bad_values;
        for (int t = bad; t < tokens; ++t) {
          for (int h = 0; h < shape.num_kv_heads; ++h) {
            const std::vector<int32_t>& blocks = choices[t][h];
            const bool sees_it =
                t == bad ||  // its query is NaN
                std::find(blocks.begin(), blocks.end(), bad / kBlockTokens) != blocks.end();
            const size_t at = size_t(t) * shape.out_floats() + h * shape.group * shape.head_dim;
            ASSERT_EQ(std::isnan(ReadAs(DType::kF32, dirty.data(), at)), sees_it)
                << under_test.name << " " << Describe(shape) << " token " << t;
          }
        }
      }
    }
  }
}

// A context of more blocks than any table on a device holds at once.
TEST(TwinSparsePrefillTest, VeryLongContextsMatchDouble) {
  if (kSanitized) return;
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    const AttentionShape shape{4, 1, 64, DType::kBF16};
    const int blocks = 4200, tokens = blocks * kBlockTokens - 7, count = 40;
    const AttentionSequence sequence(*under_test.backend, shape, {.tokens = tokens});
    SegmentRows rows{.sequence = &sequence, .first_position = tokens - count, .count = count};
    std::mt19937 random(3);
    for (int r = 0; r < count; ++r) {
      std::set<int32_t> chosen = {0, blocks - 2, blocks - 1, 2047, 2048, 4095, 4096};
      if (r % 4 == 1) chosen = {blocks - 1};
      if (r % 4 == 2) chosen = {1000, blocks - 1};
      for (int i = 0; r % 4 == 3 && i < 60; ++i) chosen.insert(random() % blocks);
      rows.choices.push_back({{chosen.begin(), chosen.end()}});
    }
    ExpectCloseToDouble(under_test, {rows}, {});
    ASSERT_EQ(Attend(under_test, Apart(rows), {}), Attend(under_test, {rows}, {}))
        << under_test.name;
  }
}

}  // namespace
}  // namespace augur::kernels
