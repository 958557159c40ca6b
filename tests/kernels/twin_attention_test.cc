// PagedAttention on every backend, against double and against itself in other company.
#include <gtest/gtest.h>

#include <deque>
#include <numeric>
#include <random>

#include "tests/kernels/twin_attention_checks.h"

namespace augur::kernels {
namespace {

constexpr int kGroups[] = {1, 2, 3, 4, 7, 8, 16};
constexpr int kHeadDims[] = {64, 96, 128, 2, 10, 24, 80, 250, 256};
constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

AttentionShape ShapeOf(int group, int head_dim, DType dtype) {
  return {group, group >= 8 ? 1 : 2, head_dim, dtype};
}

// One of each kernel that a device has, and odd ones.
std::vector<AttentionShape> SomeShapes() {
  return {{4, 2, 64, DType::kBF16}, {16, 1, 128, DType::kBF16}, {7, 1, 96, DType::kF16},
          {3, 2, 80, DType::kF32},  {2, 2, 10, DType::kBF16},   {1, 1, 250, DType::kF16}};
}

TEST(TwinAttentionTest, PrefillMatchesDouble) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    int turn = 0;
    for (const DType dtype : kDTypes) {
      for (const int head_dim : kHeadDims) {
        for (const int tokens : {1, 63, 64, 65, 1000, 4097}) {
          const AttentionShape shape = ShapeOf(kGroups[turn++ % 7], head_dim, dtype);
          if (tokens > (kSanitized ? 65 : head_dim > 128 ? 1000 : 4097)) continue;
          const AttentionSequence sequence(*under_test.backend, shape, {.tokens = tokens});
          ExpectCloseToDouble(under_test, {{&sequence, 0, tokens}}, {});
        }
      }
    }
  }
}

// Lengths of the sequences of a ragged batch of decode rows, each at its sequence's end.
const std::vector<int> kDecodeLengths = kSanitized
                                            ? std::vector<int>{1, 2, 64, 65, 66, 1100}
                                            : std::vector<int>{1, 2, 64, 65, 66, 1024, 1025, 4097};

// Their rows, padded ones between.
std::vector<SegmentRows> DecodeRows(const std::deque<AttentionSequence>& sequences) {
  std::vector<SegmentRows> rows;
  for (const AttentionSequence& sequence : sequences) {
    rows.push_back({&sequence, sequence.tokens() - 1, 1});
    rows.push_back({&sequence});
  }
  return rows;
}

TEST(TwinAttentionTest, DecodeMatchesDouble) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    int turn = 0;
    for (const DType dtype : kDTypes) {
      for (const int head_dim : kHeadDims) {
        for (const int group : kGroups) {
          const AttentionShape shape = ShapeOf(group, head_dim, dtype);
          // The fast kernels at every group, others in turn.
          if (!IsFastShape(shape) && group != kGroups[turn % 7]) continue;
          const auto sequences = Sequences(under_test, shape, kDecodeLengths);
          ExpectCloseToDouble(under_test, DecodeRows(sequences), {.phase = Phase::kDecode});
        }
        ++turn;
      }
    }
  }
}

TEST(TwinAttentionTest, DecodeRowsStandAloneUnderAnyBound) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : SomeShapes()) {
      const auto sequences = Sequences(under_test, shape, kDecodeLengths);
      const std::vector<SegmentRows> rows = DecodeRows(sequences);
      ExpectSegmentsStandAlone(under_test, rows, {.phase = Phase::kDecode});
      for (const DType out : OutTypes(under_test, shape)) {
        AttentionCall call{.phase = Phase::kDecode, .out_dtype = out};
        const std::vector<std::byte> expected = Attend(under_test, rows, call);
        for (const int bound : {66, 100, 2048, kWholeList}) {
          call.max_entries = bound;
          ASSERT_EQ(Attend(under_test, rows, call), expected)
              << under_test.name << " " << Describe(shape) << " bound " << bound;
        }
      }
    }
  }
}

// Segments that begin anywhere, each a chunk of its own sequence that ends with it.
TEST(TwinAttentionTest, RaggedPrefillMatchesDoubleAndStandsAlone) {
  const std::vector<std::pair<int, int>> chunks = {{0, 1},    {0, 40},    {64, 100}, {128, 64},
                                                   {37, 200}, {1000, 77}, {1023, 1}, {511, 130}};
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : SomeShapes()) {
      std::vector<int> lengths;
      for (const auto& [first, count] : chunks) lengths.push_back(first + count);
      const auto sequences = Sequences(under_test, shape, lengths);
      std::vector<SegmentRows> rows;
      for (size_t i = 0; i < chunks.size(); ++i) {
        rows.push_back({&sequences[i], chunks[i].first, chunks[i].second});
        if (i % 3 == 1) rows.push_back({&sequences[i]});
      }
      ExpectCloseToDouble(under_test, rows, {});
      ExpectSegmentsStandAlone(under_test, rows, {});
    }
  }
}

// Pages hold nothing behind a chunk while it is attended to.
TEST(TwinAttentionTest, ChunkingKeepsARowsBits) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : SomeShapes()) {
      const int tokens = kSanitized ? 150 : 1000;
      const AttentionSequence whole(*under_test.backend, shape, {.tokens = tokens});
      for (const DType out : OutTypes(under_test, shape)) {
        const AttentionCall call{.out_dtype = out};
        const std::vector<std::byte> expected = Attend(under_test, {{&whole, 0, tokens}}, call);
        for (const int chunk : {7, 64, 100, 512}) {
          const int end = chunk == 7 ? 140 : tokens;  // many small calls take their time
          for (int first = 0; first < end; first += chunk) {
            const int count = std::min(chunk, end - first);
            const AttentionSequence part(*under_test.backend, shape, {.tokens = first + count});
            ASSERT_EQ(Attend(under_test, {{&part, first, count}}, call),
                      RowsOf(expected, shape, out, first, count))
                << under_test.name << " " << Describe(shape) << " chunk " << chunk << " from "
                << first;
          }
        }
      }
    }
  }
}

// Ascending lists [kv heads] of about `count` blocks with the first one and, mostly, the last, and
// some behind it.
std::vector<std::vector<int32_t>> RandomLists(const AttentionShape& shape, int last, int behind,
                                              int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<int32_t>> lists;
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    std::vector<int32_t> list(std::max(0, last - 1));
    std::iota(list.begin(), list.end(), 1);
    std::shuffle(list.begin(), list.end(), random);
    list.resize(std::min<size_t>(list.size(), std::max(0, count - 2 - h)));
    list.push_back(0);
    if (last > 0 && random() % 4 != 0) list.push_back(last);
    std::sort(list.begin(), list.end());
    for (int b = last + 1; b <= last + behind; ++b) list.push_back(b);
    lists.push_back(list);
  }
  return lists;
}

TEST(TwinAttentionTest, DecodeRowsWithListsMatchDoubleAndStandAlone) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : SomeShapes()) {
      const int tokens = kSanitized ? 1500 : 4000;
      const AttentionSequence sequence(*under_test.backend, shape, {.tokens = tokens});
      std::vector<SegmentRows> rows = {{&sequence, tokens - 1, 1}, {&sequence}};
      uint32_t seed = 0;
      for (const int position : {3, 64, 700, 1027, 1100, tokens - 1}) {
        for (const int entries : {2, 5, 16, 17, 40}) {
          const int last = position / kBlockTokens;
          const int behind = position == 1100 ? 2 : 0;  // entries that the row does not see
          rows.push_back(
              {&sequence, position, 1, RandomLists(shape, last, behind, entries, ++seed)});
        }
      }
      ExpectCloseToDouble(under_test, rows, {.phase = Phase::kDecode});
      ExpectSegmentsStandAlone(under_test, rows, {.phase = Phase::kDecode});

      SegmentRows listed{&sequence, tokens - 1, 1};
      std::vector<int32_t> all(sequence.num_blocks());
      std::iota(all.begin(), all.end(), 0);
      listed.lists.assign(shape.num_kv_heads, all);
      for (const DType out : OutTypes(under_test, shape)) {
        const AttentionCall call{.phase = Phase::kDecode, .out_dtype = out};
        ASSERT_EQ(Attend(under_test, {listed}, call), Attend(under_test, {rows[0]}, call))
            << under_test.name << " " << Describe(shape);
      }
    }
  }
}

TEST(TwinAttentionTest, DecodeRowsHaveTheSameBitsOnFewerSms) {
  BackendUnderTest fewer{"cuda, fewer SMs", BackendLeavingSms(9), true};
  if (fewer.backend == nullptr) GTEST_SKIP() << "no CUDA device";
  std::vector<std::vector<std::byte>> results;
  const auto attend_on = [&](const BackendUnderTest& under_test) {
    for (const AttentionShape& shape : SomeShapes()) {
      const auto sequences = Sequences(under_test, shape, kDecodeLengths);
      results.push_back(Attend(under_test, DecodeRows(sequences), {.phase = Phase::kDecode}));
    }
  };
  attend_on(fewer);
  const std::vector<std::vector<std::byte>> on_fewer = std::move(results);
  results.clear();
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    if (under_test.on_device) attend_on(under_test);
  }
  ASSERT_EQ(results.size(), on_fewer.size());
  EXPECT_TRUE(results == on_fewer);
}

// Lists, biases and rows of every kind; whole, and in calls of some groups.
TEST(TwinAttentionTest, BiasesAndStreamingMatchDoubleAndKeepARowsBits) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : SomeShapes()) {
      const int tokens = kSanitized ? 1500 : 2600, last = (tokens - 1) / kBlockTokens;
      const AttentionSequence sequence(*under_test.backend, shape, {.tokens = tokens});
      const std::vector<SegmentRows> rows = {
          {&sequence, tokens - 1, 1, RandomLists(shape, last, 0, 40, 1), true},
          {&sequence, tokens - 40, 40},
          {&sequence, tokens - 300, 75, RandomLists(shape, last, 0, 34, 2)},
          {&sequence},
          {&sequence, 5, 3, {}, true},
          {&sequence, 1000, 40, RandomLists(shape, 1000 / kBlockTokens, 2, 12, 3), true},
          {&sequence, 1023, 2},
          {&sequence, tokens - 1, 1, {}, true}};
      ExpectCloseToDouble(under_test, rows, {});
      for (const DType out : OutTypes(under_test, shape)) {
        const std::vector<std::byte> whole = Attend(under_test, rows, {.out_dtype = out});
        for (const int step : {16, 48}) {
          ASSERT_EQ(Attend(under_test, rows, {.out_dtype = out, .step = step}), whole)
              << under_test.name << " " << Describe(shape) << " step " << step;
        }
      }
    }
  }
}

// Without biases or lists, where a device may have another kernel for calls that are whole.
TEST(TwinAttentionTest, StreamingOfAllBlocksMatchesDouble) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : SomeShapes()) {
      const AttentionSequence sequence(*under_test.backend, shape, {.tokens = 2100});
      for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
        const int count = phase == Phase::kDecode ? 1 : 70;
        const std::vector<SegmentRows> rows = {
            {&sequence, 2100 - count, count}, {&sequence}, {&sequence, 1030 - count, count}};
        ExpectCloseToDouble(under_test, rows, {.phase = phase, .step = 16});
        for (const DType out : OutTypes(under_test, shape)) {
          ASSERT_EQ(Attend(under_test, rows, {.phase = phase, .out_dtype = out, .step = 16}),
                    Attend(under_test, rows, {.phase = phase, .out_dtype = out, .step = 32}))
              << under_test.name << " " << Describe(shape);
        }
      }
    }
  }
}

// Layers whose lists lie behind each other, read through one set of segments.
TEST(TwinAttentionTest, AnOffsetReadsAnotherLayersPages) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (AttentionShape shape : SomeShapes()) {
      shape.num_layers = 3;
      const auto sequences = Sequences(under_test, shape, {300, 65, 1100});
      std::vector<SegmentRows> decode, prefill;
      for (const AttentionSequence& sequence : sequences) {
        decode.push_back({&sequence, sequence.tokens() - 1, 1});
        prefill.push_back({&sequence, sequence.tokens() - 30, 30});
      }
      for (const int layer : {1, 2}) {
        ExpectCloseToDouble(under_test, decode, {.phase = Phase::kDecode, .layer = layer});
        ExpectCloseToDouble(under_test, prefill, {.layer = layer});
        decode[2].lists = RandomLists(shape, decode[2].last_block(), 0, 7, 5);
        ExpectCloseToDouble(under_test, decode, {.phase = Phase::kDecode, .layer = layer});
      }
    }
  }
}

// Keys of unit variance times 100, and queries: scores reach tens of thousands.
TEST(TwinAttentionTest, LargeScoresDoNotOverflow) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : SomeShapes()) {
      const SequenceContent content{.tokens = 1100, .score_scale = 100.0f};
      const AttentionSequence sequence(*under_test.backend, shape, content);
      for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
        const int count = phase == Phase::kDecode ? 1 : 300;
        const std::vector<SegmentRows> rows = {{&sequence, 1100 - count, count}};
        const AttentionCall call{.phase = phase};
        const std::vector<std::byte> out = Attend(under_test, rows, call);
        for (size_t i = 0; i < out.size() / sizeof(float); ++i) {
          // Means of values, whatever their weights.
          ASSERT_LE(std::abs(ReadAs(DType::kF32, out.data(), i)), 1.75f)
              << under_test.name << " " << Describe(shape);
        }
        // A float's last bit is 2^-9 at 30,000: weights are right to some percent. What 16-bit
        // queries give is anyone's guess.
        if (under_test.on_device && IsFastShape(shape) && shape.dtype != DType::kF32) continue;
        EXPECT_LT(WorstError(rows, call, out), 0.1) << under_test.name << " " << Describe(shape);
      }
    }
  }
}

TEST(TwinAttentionTest, ALaterNaNLeavesEarlierRowsAlone) {
  const int tokens = 300, bad = 171;
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : SomeShapes()) {
      const AttentionSequence good(*under_test.backend, shape, {.tokens = tokens});
      for (const bool has_bad_values : {false, true}) {
        const SequenceContent content{
            .tokens = tokens, .bad_token = bad, .has_bad_values = has_bad_values};
        const AttentionSequence spoilt(*under_test.backend, shape, content);
        const std::vector<std::byte> clean = Attend(under_test, {{&good, 0, tokens}}, {});
        const std::vector<std::byte> dirty = Attend(under_test, {{&spoilt, 0, tokens}}, {});
        EXPECT_EQ(RowsOf(dirty, shape, DType::kF32, 0, bad),
                  RowsOf(clean, shape, DType::kF32, 0, bad))
            << under_test.name << " " << Describe(shape) << " values " << has_bad_values;
        int finite = 0;
        for (size_t i = size_t(bad) * shape.out_floats(); i < dirty.size() / sizeof(float); ++i) {
          finite += !std::isnan(ReadAs(DType::kF32, dirty.data(), i));
        }
        EXPECT_EQ(finite, 0) << under_test.name << " " << Describe(shape);
        for (const int position : {bad - 1, bad}) {
          const AttentionCall call{.phase = Phase::kDecode};
          const std::vector<std::byte> out = Attend(under_test, {{&spoilt, position, 1}}, call);
          EXPECT_EQ(std::isnan(ReadAs(DType::kF32, out.data(), 0)), position == bad);
          if (position == bad) continue;
          EXPECT_EQ(out, Attend(under_test, {{&good, position, 1}}, call))
              << under_test.name << " " << Describe(shape);
        }
      }
    }
  }
}

// Rows over lists so long that a device splits them; the same bits beside short ones.
TEST(TwinAttentionTest, LongDecodeRowsMatchDouble) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    std::vector<std::pair<AttentionShape, int>> cases = {{{4, 1, 128, DType::kBF16}, 40000},
                                                         {{7, 1, 64, DType::kF16}, 40000},
                                                         {{2, 1, 64, DType::kF32}, 40000},
                                                         {{3, 1, 24, DType::kBF16}, 40000}};
    if (under_test.on_device) cases.push_back({{16, 2, 128, DType::kBF16}, 131072});
    for (const auto& [shape, tokens] : cases) {
      const auto sequences = Sequences(under_test, shape, {100, tokens, 3000});
      std::vector<SegmentRows> rows = DecodeRows(sequences);
      rows.push_back({&sequences[1], 20000, 1});
      ExpectCloseToDouble(under_test, rows, {.phase = Phase::kDecode});
      ExpectSegmentsStandAlone(under_test, rows, {.phase = Phase::kDecode});
    }
  }
}

}  // namespace
}  // namespace augur::kernels
