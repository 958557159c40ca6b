// PagedAttention, fed through RopeAppend as the engine does.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/paged_sequence.h"

namespace augur::kernels {
namespace {

std::vector<float> RandomRows(const HeadShape& shape, int tokens, uint32_t seed) {
  return RandomFloats(size_t(tokens) * shape.row_floats(), seed);
}

// A sequence's outputs in double, from q, k, v rotated by the backend's own formula in float and
// rounded to the pool's type.
std::vector<double> Reference(const HeadShape& shape, const RopeTable& rope,
                              const std::vector<float>& rows) {
  const int d = shape.head_dim, half = d / 2;
  const int tokens = static_cast<int>(rows.size()) / shape.row_floats();
  std::vector<float> turned = rows;
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < shape.num_q_heads + 2 * shape.num_kv_heads; ++h) {
      float* head = turned.data() + size_t(t) * shape.row_floats() + h * d;
      if (h < shape.num_q_heads + shape.num_kv_heads) {
        for (int i = 0; i < half; ++i) {
          const float c = rope.cos[size_t(t) * half + i], s = rope.sin[size_t(t) * half + i];
          const float a = head[i], b = head[i + half];
          head[i] = a * c - b * s;
          head[i + half] = b * c + a * s;
        }
      }
      if (h < shape.num_q_heads) continue;
      for (int i = 0; i < d; ++i) {
        std::byte rounded[4];
        WriteAs(shape.dtype, head[i], rounded, 0);
        head[i] = ReadAs(shape.dtype, rounded, 0);
      }
    }
  }
  std::vector<double> out;
  std::vector<double> p(tokens);
  const int group = shape.num_q_heads / shape.num_kv_heads;
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < shape.num_q_heads; ++h) {
      const float* q = turned.data() + size_t(t) * shape.row_floats() + h * d;
      const int k_offset = (shape.num_q_heads + h / group) * d;
      const int v_offset = k_offset + shape.num_kv_heads * d;
      double largest = -1e300, sum = 0.0;
      for (int j = 0; j <= t; ++j) {
        const float* k = turned.data() + size_t(j) * shape.row_floats() + k_offset;
        double score = 0.0;
        for (int i = 0; i < d; ++i) score += double(q[i]) * k[i];
        p[j] = score / std::sqrt(double(d));
        largest = std::max(largest, p[j]);
      }
      for (int j = 0; j <= t; ++j) sum += p[j] = std::exp(p[j] - largest);
      for (int i = 0; i < d; ++i) {
        double value = 0.0;
        for (int j = 0; j <= t; ++j) {
          value += p[j] * turned[size_t(j) * shape.row_floats() + v_offset + i];
        }
        out.push_back(value / sum);
      }
    }
  }
  return out;
}

double WorstError(const std::vector<float>& out, const std::vector<double>& expected) {
  double worst = 0.0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double error = std::abs(out[i] - expected[i]);
    if (!(error <= worst)) worst = error;  // a NaN counts as the worst
  }
  return worst;
}

std::vector<HeadShape> OddShapes() {
  std::vector<HeadShape> shapes;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [q_heads, kv_heads, head_dim] : {std::array{1, 1, 2},
                                                      {3, 1, 10},
                                                      {4, 2, 16},
                                                      {4, 2, 24},
                                                      {8, 2, 64},
                                                      {2, 2, 72},
                                                      {7, 1, 80},
                                                      {4, 4, 128},
                                                      {2, 1, 250},
                                                      {2, 1, 256}}) {
      shapes.push_back({q_heads, kv_heads, head_dim, dtype});
    }
  }
  return shapes;
}

// Lengths around block edges; NaN bytes fill whatever RopeAppend has not written.
TEST(PagedAttentionTest, MatchesDoubleOnEveryIsa) {
  for (const HeadShape& shape : OddShapes()) {
    for (const int tokens : {1, 63, 65, kSanitized ? 70 : 150}) {
      const RopeTable rope(tokens, shape.head_dim);
      const std::vector<float> rows = RandomRows(shape, tokens, 11);
      const std::vector<double> expected = Reference(shape, rope, rows);
      std::vector<float> first;
      for (const CpuIsa isa : IsasHere()) {
        const auto backend = MakeCpuBackend({2, isa});
        const std::vector<float> out = RunChunked(*backend, shape, rope, rows, tokens);
        ASSERT_LT(WorstError(out, expected), 3e-6)
            << backend->Describe() << " tokens " << tokens << " head_dim " << shape.head_dim << " "
            << NameOf(shape.dtype);
        if (first.empty()) first = out;
        ASSERT_TRUE(SameBits(out, first)) << backend->Describe();
      }
    }
  }
}

TEST(PagedAttentionTest, LongContextsMatchDouble) {
  const HeadShape shape{2, 1, 16, DType::kF32};
  const int tokens = kSanitized ? 1100 : 2500;  // several groups of 1,024
  const RopeTable rope(tokens, shape.head_dim);
  const std::vector<float> rows = RandomRows(shape, tokens, 3);
  const std::vector<double> expected = Reference(shape, rope, rows);
  const auto backend = MakeCpuBackend({2});
  EXPECT_LT(WorstError(RunChunked(*backend, shape, rope, rows, 500), expected), 3e-6);
}

// Whole, in chunks, token by token; one thread and several; every ISA: one set of bits.
TEST(PagedAttentionTest, ChunkingAndThreadsKeepARowsBits) {
  for (const HeadShape& shape :
       {HeadShape{8, 2, 64, DType::kBF16}, {6, 2, 24, DType::kF16}, {2, 2, 32, DType::kF32}}) {
    const int tokens = kSanitized ? 140 : 1200;
    const RopeTable rope(tokens, shape.head_dim);
    const std::vector<float> rows = RandomRows(shape, tokens, 4);
    const std::vector<float> expected = RunChunked(*MakeCpuBackend({1}), shape, rope, rows, tokens);
    for (const int threads : {1, 2, 5}) {
      const auto backend = MakeCpuBackend({threads});
      for (const int chunk : {1, 7, 64, 100, 512, tokens}) {
        ASSERT_TRUE(SameBits(RunChunked(*backend, shape, rope, rows, chunk), expected))
            << "chunk " << chunk << " threads " << threads << " head_dim " << shape.head_dim;
      }
    }
    const auto avx2 = MakeCpuBackend({2, IsasHere()[IsasHere().size() / 2]});
    ASSERT_TRUE(SameBits(RunChunked(*avx2, shape, rope, rows, 333), expected));
  }
}

// Long decode rows are split over threads at group edges; that too keeps the bits.
TEST(PagedAttentionTest, SplitDecodeKeepsARowsBits) {
  const HeadShape shape{4, 1, 32, DType::kBF16};
  const int tokens = kSanitized ? 2100 : 5000;
  const RopeTable rope(tokens, shape.head_dim);
  const std::vector<float> rows = RandomRows(shape, tokens, 6);
  PagedPool pool(shape, 90);
  const std::vector<int32_t> blocks = pool.TakeBlocks(tokens);
  const auto one = MakeCpuBackend({1});
  const std::vector<float> all =
      RunStep(*one, shape, pool.kv(), rope, {{&rows, &blocks, 0, tokens}});
  for (const int threads : {1, 2, 3, 8}) {
    const auto backend = MakeCpuBackend({threads});
    for (const int position : {tokens - 1, 1023, 1024, 2048}) {
      for (const int count : {1, 5}) {
        const int first = std::max(0, position - count + 1);
        const std::vector<float> out = RunStep(*backend, shape, pool.kv(), rope,
                                               {{&rows, &blocks, first, position - first + 1}});
        ASSERT_TRUE(
            SameBits(out.data(), all.data() + size_t(first) * shape.out_floats(), out.size()))
            << threads << " threads, position " << position;
      }
    }
  }
}

TEST(PagedAttentionTest, ABatchOfMixedSegmentsKeepsARowsBits) {
  const HeadShape shape{8, 2, 64, DType::kBF16};
  const RopeTable rope(1300, shape.head_dim);
  struct Sequence {
    int before;  // tokens already in the pages
    int rows;
  };
  const std::vector<Sequence> sequences = {{0, 1},    {0, 40},  {63, 1},    {64, 1},
                                           {100, 60}, {127, 2}, {1100, 1},  {1023, 3},
                                           {5, 130},  {200, 7}, {1200, 100}};
  PagedPool pool(shape, 140);
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<int32_t>> blocks;
  const auto one = MakeCpuBackend({1});
  std::vector<float> alone;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto [before, count] = sequences[i];
    rows.push_back(RandomRows(shape, before + count, 100 + static_cast<uint32_t>(i)));
    blocks.push_back(pool.TakeBlocks(before + count));
  }
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto [before, count] = sequences[i];
    if (before > 0) {
      RunStep(*one, shape, pool.kv(), rope, {{&rows[i], &blocks[i], 0, before}});
    }
    const std::vector<float> out =
        RunStep(*one, shape, pool.kv(), rope, {{&rows[i], &blocks[i], before, count}});
    alone.insert(alone.end(), out.begin(), out.end());
  }
  for (const int threads : {1, 2, 4}) {
    std::vector<Piece> pieces;
    for (size_t i = 0; i < sequences.size(); ++i) {
      pieces.push_back({&rows[i], &blocks[i], sequences[i].before, sequences[i].rows});
    }
    const auto backend = MakeCpuBackend({threads});
    EXPECT_TRUE(SameBits(RunStep(*backend, shape, pool.kv(), rope, pieces), alone)) << threads;
  }
}

// A NaN in one token's own row stays out of the rows before it, in its chunk too.
TEST(PagedAttentionTest, ALaterNaNLeavesEarlierRowsAlone) {
  const HeadShape shape{8, 2, 64, DType::kBF16};
  const int tokens = 100, bad = 71;
  const RopeTable rope(tokens, shape.head_dim);
  std::vector<float> rows = RandomRows(shape, tokens, 8);
  const auto backend = MakeCpuBackend({2});
  const std::vector<float> clean = RunChunked(*backend, shape, rope, rows, tokens);
  for (int i = 0; i < shape.row_floats(); ++i) rows[size_t(bad) * shape.row_floats() + i] = NAN;
  const std::vector<float> dirty = RunChunked(*backend, shape, rope, rows, tokens);
  EXPECT_TRUE(SameBits(clean.data(), dirty.data(), size_t(bad) * shape.out_floats()));
  for (int t = bad; t < tokens; ++t) {
    for (int i = 0; i < shape.out_floats(); ++i) {
      ASSERT_TRUE(std::isnan(dirty[size_t(t) * shape.out_floats() + i]));
    }
  }
}

TEST(PagedAttentionTest, LargeScoresDoNotOverflow) {
  const HeadShape shape{2, 1, 16, DType::kF32};
  const RopeTable rope(130, shape.head_dim);
  std::vector<float> rows = RandomRows(shape, 130, 8);
  for (float& value : rows) value *= 100.0f;
  const std::vector<double> expected = Reference(shape, rope, rows);
  // Scores reach tens of thousands, where a float's last bit is 1/256 of a power of e.
  EXPECT_LT(WorstError(RunChunked(*MakeCpuBackend({1}), shape, rope, rows, 130), expected), 2.0);
}

TEST(PagedAttentionDeathTest, HeadDimIsBounded) {
  const HeadShape shape{1, 1, 258, DType::kF32};
  const RopeTable rope(1, shape.head_dim);
  const std::vector<float> rows = RandomRows(shape, 1, 1);
  const auto backend = MakeCpuBackend({1});
  EXPECT_DEATH(RunChunked(*backend, shape, rope, rows, 1), "CHECK failed");
}

}  // namespace
}  // namespace augur::kernels
