// Sampled attention on the CPU: what the code computes. The means are taken over every offset there
// is, so nothing here hangs on luck; sampled_statistics_test.cc draws.
#include "kernels/ops/sampled_attention.h"

#include <gtest/gtest.h>

#include "kernels/ops/sample_queries.h"
#include "kernels/ops/sum_values.h"
#include "tests/kernels/sampled_case.h"

namespace augur::kernels {
namespace {

std::unique_ptr<Backend> Cpu(int threads = 1, CpuIsa isa = CpuIsa::kAuto) {
  return MakeCpuBackend({threads, isa});
}

SampledCase RandomCase(int n, int heads, int head_dim, float spread, uint32_t seed) {
  SampledCase list(n, heads, head_dim);
  const std::vector<float> scores = RandomFloats(size_t(n) * heads, seed, spread);
  list.SetScores([&](int g, int j) {
    // Heads of a group look at similar places.
    return 0.7f * scores[j] + 0.7f * scores[size_t(j) * heads + g] + 0.1f * g;
  });
  return list;
}

struct Shape {
  int n, heads, samples;
  float spread;
};
const Shape kShapes[] = {{1, 2, 5, 1},    {2, 1, 1, 1},  {13, 4, 7, 2},  {64, 4, 32, 3},
                         {64, 2, 128, 2}, {64, 3, 5, 0}, {130, 2, 24, 3}};

// E[w_j] = p_j in the float path.
TEST(SampledAttentionTest, MeanCoefficientsAreTheProbabilities) {
  const auto backend = Cpu();
  for (const Shape& shape : kShapes) {
    if (kSanitized && shape.n > 64) continue;
    SampledCase list = RandomCase(shape.n, shape.heads, shape.n > 64 ? 256 : 64, shape.spread, 7);
    list.SetOneHotValues();
    for (const ValueEstimator estimator : kUnbiased) {
      for (const bool has_sums : {false, true}) {
        if (estimator != ValueEstimator::kShared && has_sums) continue;
        SCOPED_TRACE(testing::Message() << NameOf(estimator) << " n " << shape.n << " S "
                                        << shape.samples << " sums " << has_sums);
        list.has_sums = has_sums;
        // Predictions that are off, each head by its own.
        list.PredictState({0.3, -0.5, 0.9, 0.0}, static_cast<float>(shape.samples) / 2);
        const std::vector<double> mean = MeanOverOffsets([&](int64_t offset) {
          return list.Run(*backend, estimator, shape.samples, 1, offset);
        });
        for (int g = 0; g < shape.heads; ++g) {
          const std::vector<double> p = list.Probabilities(g);
          for (int j = 0; j < shape.n; ++j) {
            ASSERT_NEAR(mean[size_t(g) * list.head_dim + j], p[j], 1e-6) << g << " " << j;
          }
        }
      }
    }
  }
}

// In the first step too, whose rates know the anchor alone: where the list is no longer, and with
// little of the mass, most of it and next to all of it outside.
TEST(SampledAttentionTest, MeanCoefficientsOfTheFirstStep) {
  const auto backend = Cpu();
  const int first = 64, tokens = kSanitized ? 64 : 256;  // whose values are one-hot
  const std::pair<int, float> cases[] = {{300, 0.0f}, {385, -6.0f}, {385, 0.0f}, {385, 8.0f}};
  for (const auto& [n, outside] : cases) {
    SampledCase list = RandomCase(n, 2, 256, 1, 7);
    for (int j = 64; j < 128; ++j) list.key(j)[0] += outside;
    list.SetValues([&](int j, int c) { return j - first == c && c < tokens ? 1.0f : 0.0f; });
    for (const int samples : {1, 30}) {
      SCOPED_TRACE(testing::Message() << n << " " << outside << " S " << samples);
      const std::vector<double> mean = MeanOverOffsets([&](int64_t offset) {
        return list.Run(*backend, ValueEstimator::kShared, samples, 1, offset);
      });
      for (int g = 0; g < 2; ++g) {
        const std::vector<double> p = list.Probabilities(g);
        for (int c = 0; c < tokens && first + c < n; ++c) {
          ASSERT_NEAR(mean[size_t(g) * 256 + c], p[first + c], 2e-6) << g << " " << c;
        }
      }
    }
  }
}

// The published budgets do not have that mean.
TEST(SampledAttentionTest, LargestRemainderIsBiased) {
  const auto backend = Cpu();
  SampledCase list = RandomCase(256, 1, 256, 2, 3);
  list.SetOneHotValues();
  const std::vector<double> mean = MeanOverOffsets([&](int64_t offset) {
    return list.Run(*backend, ValueEstimator::kLargestRemainder, 5, 1, offset);
  });
  const std::vector<double> p = list.Probabilities(0);
  double worst = 0;
  for (int j = 0; j < 256; ++j) worst = std::max(worst, std::fabs(mean[j] - p[j]));
  EXPECT_GT(worst, 1e-3);
}

TEST(SampledAttentionTest, CountsStayBesideTheirMeanAndDrawsAddUp) {
  const auto backend = Cpu();
  for (const Shape& shape : kShapes) {
    SampledCase list = RandomCase(shape.n, shape.heads, shape.n > 64 ? 256 : 64, shape.spread, 9);
    list.SetOneHotValues();
    for (const ValueEstimator estimator : kAllEstimators) {
      if (estimator == ValueEstimator::kShared) continue;
      SCOPED_TRACE(testing::Message() << NameOf(estimator) << " n " << shape.n);
      const int tiles = list.entries();
      const int of_tile = std::max(1, shape.samples / tiles);
      for (uint64_t seed = 0; seed < 40; ++seed) {
        const std::vector<float> out = list.Run(*backend, estimator, shape.samples, seed);
        const int per_head = estimator == ValueEstimator::kFlash ? of_tile * tiles : shape.samples;
        EXPECT_EQ(list.counts.draws, per_head * shape.heads);
        EXPECT_LE(list.counts.distinct, list.counts.rows);
        EXPECT_LE(list.counts.rows, list.counts.draws);
        if (estimator == ValueEstimator::kIid || estimator == ValueEstimator::kStratified ||
            estimator == ValueEstimator::kLargestRemainder) {
          continue;
        }
        for (int g = 0; g < shape.heads; ++g) {
          const std::vector<double> p = list.Probabilities(g);
          for (int j = 0; j < shape.n; ++j) {
            double mass = 0;
            for (int i = j / 64 * 64; i < std::min(shape.n, j / 64 * 64 + 64); ++i) mass += p[i];
            const bool flash = estimator == ValueEstimator::kFlash;
            const double unit = flash ? mass / of_tile : 1.0 / shape.samples;
            const double count = out[size_t(g) * list.head_dim + j] / unit;
            EXPECT_NEAR(count, std::round(count), 1e-3);
            EXPECT_LT(std::fabs(count - p[j] / unit), 1.0 + 1e-3);
          }
        }
      }
    }
  }
}

TEST(SampledAttentionTest, SharedDrawsEachRowOnceAndATilesRatesToTheirFloorOrCeiling) {
  const auto backend = Cpu();
  SampledCase list = RandomCase(250, 4, 256, 2, 11);
  list.SetOneHotValues();
  const std::vector<double> errors = {0.2, -0.2, 0.1, 0.4};
  const float lambda = 20;
  list.PredictState(errors, lambda);
  std::vector<double> rates(list.entries(), 0.0);
  std::vector<double> pi(250, 0.0);
  for (int j = 0; j < 250; ++j) {
    for (int g = 0; g < 4; ++g) {
      pi[j] = std::max(pi[j], lambda * list.Probabilities(g)[j] * std::exp(-errors[g]));
    }
    pi[j] = std::min(1.0, pi[j]);
    rates[j / 64] += pi[j];
  }
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const std::vector<float> out = list.Run(*backend, ValueEstimator::kShared, 20, seed);
    for (int e = 0; e < list.entries(); ++e) {
      EXPECT_LT(std::fabs(list.entry_rows[e] - rates[e]), 1.0 + 1e-4) << e;
    }
    for (int j = 0; j < 250; ++j) {
      const bool drawn = out[j] != 0;
      for (int g = 0; g < 4; ++g) {
        const float found = out[size_t(g) * 256 + j];
        // 0 or one time p / pi.
        EXPECT_EQ(found != 0, drawn);
        if (drawn) {
          EXPECT_NEAR(found, list.Probabilities(g)[j] / pi[j], 1e-4);
        }
      }
    }
    EXPECT_EQ(list.counts.draws, 4 * list.counts.distinct);
  }
}

TEST(SampledAttentionTest, ConstantValuesComeBack) {
  const auto backend = Cpu();
  SampledCase list = RandomCase(200, 4, 32, 2, 5);
  list.SetValues([](int, int c) { return 1.0f + 0.25f * c; });
  list.has_sums = true;
  for (const ValueEstimator estimator : kAllEstimators) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      list.PredictState({0.5, -1, 0.2, 0}, 10);
      if (seed % 2 == 0) list.state[0] = 0.0f;
      const std::vector<float> out = list.Run(*backend, estimator, 24, seed);
      for (int g = 0; g < 4; ++g) {
        for (int c = 0; c < 32; ++c) {
          ASSERT_NEAR(out[g * 32 + c], 1.0f + 0.25f * c, 1e-4) << NameOf(estimator);
        }
      }
    }
  }
}

// A budget of distinct rows is met in the mean.
TEST(SampledAttentionTest, BudgetsOfDistinctRows) {
  const auto backend = Cpu();
  SampledCase list = RandomCase(1000, 4, 16, 2, 5);
  list.SetValues([](int token, int) { return 1.0f * token; });
  list.budget = ValueBudget::kRows;
  for (const ValueEstimator estimator : kUnbiased) {
    list.state.assign(list.state.size(), 0.0f);
    double rows = 0;
    int steps = 0;
    for (uint64_t seed = 0; seed < 120; ++seed) {
      list.Run(*backend, estimator, 60, seed, -1, true);
      if (seed < 20) continue;  // shared's rate settles
      rows += static_cast<double>(list.counts.distinct);
      ++steps;
    }
    if (estimator == ValueEstimator::kFlash) {
      // It rises by a draw in every tile and for every head at once.
      EXPECT_GT(rows / steps, 57.5);
      EXPECT_LT(rows / steps, 60.0 + list.entries() * list.heads);
    } else {
      EXPECT_NEAR(rows / steps, 60.0, 2.5) << NameOf(estimator);
    }
  }
}

// The same bits alone, among 32 others, on any number of threads and any instruction set, and with
// keys that pass by in several calls.
TEST(SampledAttentionTest, BitsDoNotDependOnCompanyThreadsOrWindows) {
  const int kRows = 32;
  std::vector<SampledCase> lists;
  for (int i = 0; i < kRows; ++i) {
    lists.push_back(RandomCase(100 + 61 * i, 4, 64, 2, 20 + i));
    const std::vector<float> values = RandomFloats(size_t(lists[i].n) * 64, 80 + i);
    lists[i].SetValues([&](int token, int c) { return values[size_t(token) * 64 + c]; });
    lists[i].has_sums = true;
    lists[i].PredictState({0.2, 0.1, -0.3, 0}, 30);
  }
  std::vector<float> q;
  for (const SampledCase& list : lists) q.insert(q.end(), list.q.begin(), list.q.end());
  for (const ValueEstimator estimator : kAllEstimators) {
    std::vector<std::vector<float>> alone;
    for (int i = 0; i < kRows; ++i) alone.push_back(lists[i].Run(*Cpu(), estimator, 40, 5 + i));
    std::vector<CpuIsa> isas = IsasHere();
    for (const int threads : {1, 2, 3, 5}) {
      const auto backend = Cpu(threads, isas[threads % isas.size()]);
      std::vector<SampledSegment> segments;
      std::vector<std::vector<float>> states;
      for (int i = 0; i < kRows; ++i) {
        segments.push_back(lists[i].Segment(i, 40, 5 + i));
        states.push_back(lists[i].state);
      }
      for (int i = 0; i < kRows; ++i) segments[i].state = states[i].data();
      std::vector<SampledCounts> counts(kRows);
      std::vector<float> out(size_t(kRows) * 256, NAN);
      SampledAttentionParams params =
          lists[0].Params(estimator, segments.data(), kRows, out.data());
      params.q = q.data();
      params.rows = kRows;
      params.counts = counts.data();
      backend->SampledAttention(params);
      for (int i = 0; i < kRows; ++i) {
        ASSERT_TRUE(SameBits(alone[i].data(), out.data() + size_t(i) * 256, 256))
            << NameOf(estimator) << " row " << i << " threads " << threads;
      }
    }
    // Windows of 16 entries.
    SampledCase& list = lists[kRows - 1];
    const auto backend = Cpu(2);
    const size_t stride = size_t(list.entries()) * 64;
    std::vector<float> scores(4 * stride), out(256, NAN), state = list.state;
    SampledSegment whole = list.Segment(0, 40, 5 + kRows - 1);
    whole.state = state.data();
    for (int first = 0; first < list.entries(); first += 16) {
      SampledSegment part = whole;
      const int32_t count = std::min(16, list.entries() - first);
      part.keys += first;
      part.blocks += first;
      part.counts = &count;
      part.values = nullptr;
      SampledAttentionParams params = list.Params(estimator, &part, 1, out.data());
      params.first_entry = first;
      params.scores = scores.data();
      params.scores_stride = stride;
      backend->SampledAttention(params);
    }
    whole.keys = nullptr;
    SampledAttentionParams params = list.Params(estimator, &whole, 1, out.data());
    params.scores = scores.data();
    params.scores_stride = stride;
    backend->SampledAttention(params);
    ASSERT_TRUE(SameBits(alone.back(), out)) << NameOf(estimator);
  }
}

// Lists of layers behind each other, values that follow their keys, entries up to the position's
// and the call's samples, and a state of its own for the next token, so that a row may be run
// again: the bits of the same list said in full.
TEST(SampledAttentionTest, WhatAStepLeavesOutIsFoundByTheCall) {
  const auto backend = Cpu();
  SampledCase list = RandomCase(200, 2, 16, 2, 3);
  list.SetValues([](int token, int c) { return 0.1f * token + c; });
  list.has_sums = true;
  for (const ValueEstimator estimator : kAllEstimators) {
    list.PredictState({0.2, -0.3}, 20);
    const std::vector<float> expected = list.Run(*backend, estimator, 24, 7);
    const std::vector<int32_t> rows = list.entry_rows;
    std::vector<std::vector<float>> pages = list.keys;
    std::vector<const std::byte*> lists(pages.size(), nullptr);
    std::vector<const float*> sums(2 * pages.size(), nullptr);
    for (size_t e = 0; e < pages.size(); ++e) {
      pages[e].insert(pages[e].end(), list.values[e].begin(), list.values[e].end());
      lists.push_back(reinterpret_cast<const std::byte*>(pages[e].data()));
      sums.push_back(list.sums[e].data());
    }
    SampledSegment segment = list.Segment(0, 0, 7);
    segment.keys = lists.data();
    segment.values = nullptr;
    segment.value_sums = sums.data();
    segment.blocks = segment.counts = nullptr;
    std::vector<float> state(5, 0.0f), out(32, NAN);
    state.insert(state.end(), list.state.begin(), list.state.end());
    const std::vector<float> before = state;
    std::vector<float> next(state.size(), 0.5f);
    segment.state = state.data();
    segment.next_state = next.data();
    const SampledSegment segments[] = {{}, segment};
    SampledCounts counts[2], totals = {1, 2, 3};
    SampledAttentionParams params = list.Params(estimator, segments, 2, out.data());
    params.counts = counts;
    params.totals = &totals;
    params.samples = 24;
    params.max_entries = list.entries();
    params.keys_offset = list.entries();
    params.sums_offset = 2 * list.entries();
    params.state_offset = 5;
    backend->SampledAttention(params);
    EXPECT_TRUE(SameBits(expected, out)) << NameOf(estimator);
    EXPECT_EQ(list.entry_rows, rows);
    EXPECT_EQ(counts[0].draws, 0);
    EXPECT_EQ(counts[1].distinct, list.counts.distinct);
    EXPECT_EQ(totals.draws, 1 + list.counts.draws);
    EXPECT_EQ(totals.rows, 2 + list.counts.rows);
    EXPECT_EQ(totals.distinct, 3 + list.counts.distinct);
    EXPECT_EQ(state, before);
    backend->SampledAttention(params);
    EXPECT_TRUE(SameBits(expected, out)) << "run again";
    if (estimator != ValueEstimator::kShared) continue;
    list.Run(*backend, estimator, 24, 7, /*forced_offset=*/-1, /*keeps_state=*/true);
    EXPECT_EQ(std::vector<float>(next.begin() + 5, next.end()), list.state);
  }
}

// With more samples than the softmax can use, sampled attention is exact attention.
TEST(SampledAttentionTest, ManySamplesGiveExactAttention) {
  const auto backend = Cpu(2);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    SampledCase list = RandomCase(300, 4, 40, 1, 5);
    const std::vector<float> random = RandomFloats(300 * 40, 6);
    list.SetValues([&](int token, int c) { return random[token * 40 + c]; });
    // The same list in pages of the type, with biases.
    std::vector<TypedMatrix> keys, values;
    std::vector<std::vector<float>> biases;
    std::vector<const std::byte*> key_rows, value_rows;
    std::vector<const float*> bias_rows;
    SampledSegment segment = list.Segment(0, kMaxValueSamples, 3);
    for (int e = 0; e < list.entries(); ++e) {
      keys.emplace_back(dtype, list.keys[e]);
      values.emplace_back(dtype, list.values[e]);
      biases.push_back(RandomFloats(64, 50 + e));
    }
    for (int e = 0; e < list.entries(); ++e) {
      key_rows.push_back(keys[e].bytes.data());
      value_rows.push_back(values[e].bytes.data());
      bias_rows.push_back(biases[e].data());
    }
    segment.keys = key_rows.data();
    segment.values = value_rows.data();
    segment.biases = bias_rows.data();
    for (const ValueEstimator estimator : kAllEstimators) {
      std::vector<float> out(160, NAN);
      list.state.assign(list.state.size(), 0.0f);
      SampledAttentionParams params = list.Params(estimator, &segment, 1, out.data());
      params.dtype = dtype;
      backend->SampledAttention(params);
      const double tolerance = estimator == ValueEstimator::kIid ? 0.05 : 0.01;
      for (int g = 0; g < 4; ++g) {
        double sum = 0;
        std::vector<double> expected(40, 0.0);
        for (int j = 0; j < 300; ++j) {
          const double w = std::exp(double{keys[j / 64].values[j % 64 * 40 + g]} +
                                    double{biases[j / 64][j % 64]});
          sum += w;
          for (int c = 0; c < 40; ++c) expected[c] += w * values[j / 64].values[j % 64 * 40 + c];
        }
        for (int c = 0; c < 40; ++c) {
          ASSERT_NEAR(out[g * 40 + c], expected[c] / sum, tolerance) << NameOf(estimator);
        }
      }
    }
  }
}

void ExpectFinite(const std::vector<float>& out, const char* what) {
  for (const float value : out) ASSERT_TRUE(std::isfinite(value)) << what;
}

// One token, one that dominates, flat scores, more samples than tokens, one sample, tiles without
// mass. Bytes that no token has written are NaN, so a row of them that were read would show.
TEST(SampledAttentionTest, Edges) {
  const auto backend = Cpu(2);
  const auto flat = [](int, int) { return 0.0f; };
  const auto dominant = [](int, int j) { return j == 70 ? 80.0f : 0.0f; };
  const auto empty_tiles = [](int, int j) { return j / 64 == 1 ? 0.0f : -500.0f - j; };
  const auto falling = [](int g, int j) { return -0.5f * j * (g + 1); };
  for (const ValueEstimator estimator : kAllEstimators) {
    for (const auto& scores : std::initializer_list<std::function<float(int, int)>>{
             flat, dominant, empty_tiles, falling}) {
      for (const int n : {1, 2, 63, 64, 65, 100, 257}) {
        SampledCase list(n, 4, 16);
        list.SetScores(scores);
        list.SetValues([](int token, int c) { return 1.0f + 0.01f * token + c; });
        list.has_sums = true;
        for (const auto budget : {ValueBudget::kDraws, ValueBudget::kRows}) {
          list.budget = budget;
          for (const int samples : {1, 3, 1000}) {
            for (const float error : {0.0f, 30.0f, -30.0f}) {
              list.PredictState(std::vector<double>(4, error), static_cast<float>(samples));
              const std::vector<float> out = list.Run(*backend, estimator, samples, 3, -1, true);
              ExpectFinite(out, NameOf(estimator));
              ExpectFinite(list.state, "state");
              EXPECT_GT(list.state[1], 0.0f);
              for (const int32_t rows : list.entry_rows) EXPECT_GE(rows, 0);
              if (n == 1) {
                ASSERT_NEAR(out[0], 1.0f, 1e-5);
              }
            }
          }
        }
      }
    }
  }
}

TEST(SampledAttentionTest, ANanScoreGivesNanToItsKvHeadAlone) {
  const auto backend = Cpu();
  SampledCase list = RandomCase(100, 2, 16, 1, 3);
  list.SetValues([](int, int) { return 1.0f; });
  list.key(70)[1] = NAN;
  for (const ValueEstimator estimator : kAllEstimators) {
    list.PredictState({0, 0}, 5);
    list.state[3] = 0;
    const std::vector<float> out = list.Run(*backend, estimator, 8, 1);
    EXPECT_TRUE(std::isnan(out[16])) << NameOf(estimator);
  }
}

// A state of its own for the next token is written whatever the scores are.
TEST(SampledAttentionTest, ANanScoreLeavesTheStateToTheNextToken) {
  const auto backend = Cpu();
  SampledCase list = RandomCase(100, 2, 16, 1, 3);
  list.SetValues([](int, int) { return 1.0f; });
  list.key(70)[1] = NAN;
  list.state = {1.0f, 5.0f, 0.25f, 0.5f};
  std::vector<float> next(4, -7.0f), out(32, NAN);
  SampledSegment segment = list.Segment(0, 8, 1);
  segment.next_state = next.data();
  backend->SampledAttention(list.Params(ValueEstimator::kShared, &segment, 1, out.data()));
  EXPECT_EQ(next, list.state);
}

// Biases that leave nothing of the anchor, or of the list: what can be seen is still drawn, and the
// step tells the next one nothing.
TEST(SampledAttentionTest, AnAnchorThatIsAllMaskedLeavesTheState) {
  const auto backend = Cpu();
  const std::vector<float> masked(64, -INFINITY), plain(64, 0.0f);
  for (const float level : {-80.0f, 0.0f, 80.0f}) {
    SampledCase list(600, 2, 16);
    list.SetScores([&](int g, int j) { return level + 0.01f * (j % 7) + 0.1f * g; });
    list.SetValues([](int j, int c) { return 0.01f * j + c; });
    std::vector<const float*> anchor_masked, all_masked(list.entries(), masked.data());
    for (int e = 0; e < list.entries(); ++e) {
      const bool is_anchor = e == 0 || e >= list.entries() - kAnchorLast;
      anchor_masked.push_back(is_anchor ? masked.data() : plain.data());
    }
    const auto run = [&](const std::vector<const float*>& biases, const std::vector<float>& state) {
      list.state = state;
      SampledSegment segment = list.Segment(0, 30, 5);
      segment.biases = biases.data();
      std::vector<float> out(32, NAN);
      backend->SampledAttention(list.Params(ValueEstimator::kShared, &segment, 1, out.data()));
      EXPECT_EQ(list.state, state);
      return out;
    };
    for (const std::vector<float>& state :
         {std::vector<float>(4, 0.0f), std::vector<float>{1.0f, 20.0f, 1.5f, 0.5f}}) {
      double sum = 0, mean = 0;  // over blocks 1 to 5
      for (int j = 64; j < 384; ++j) {
        const double weight = std::exp(0.01 * (j % 7));
        sum += weight;
        mean += weight * 0.01 * j;
      }
      const std::vector<float> out = run(anchor_masked, state);
      EXPECT_EQ(list.counts.distinct, 320);
      EXPECT_NEAR(out[0], mean / sum, 1e-4);
      EXPECT_NEAR(out[16 + 3], mean / sum + 3, 1e-4);
      EXPECT_EQ(run(all_masked, state), std::vector<float>(32, 0.0f));
      EXPECT_EQ(list.counts.distinct, 0);
    }
  }
}

// 1M tokens of synthetic scores: the same 64 pages over and over.
TEST(SampledAttentionTest, AMillionTokens) {
  const auto backend = Cpu(2);
  const int blocks = kSanitized ? 1024 : 16384;
  SampledCase list = RandomCase(64 * 64, 2, 16, 3, 3);
  list.SetValues([](int token, int c) { return c == 0 ? 1.0f : 0.001f * (token % 64); });
  SampledSegment segment = list.Segment(0, 256, 9);
  std::vector<const std::byte*> keys, values;
  std::vector<int32_t> ids(blocks);
  std::iota(ids.begin(), ids.end(), 0);
  for (int b = 0; b < blocks; ++b) {
    keys.push_back(segment.keys[b % 64]);
    values.push_back(segment.values[b % 64]);
  }
  const int32_t count = blocks;
  segment.keys = keys.data();
  segment.values = values.data();
  segment.blocks = ids.data();
  segment.counts = &count;
  segment.list_stride = blocks;
  segment.position = blocks * 64 - 1;
  segment.entry_rows = nullptr;
  for (const ValueEstimator estimator : kAllEstimators) {
    list.state.assign(list.state.size(), 0.0f);
    std::vector<float> out(32, NAN);
    for (int step = 0; step < 2; ++step) {
      segment.position += 1;
      backend->SampledAttention(list.Params(estimator, &segment, 1, out.data()));
      ExpectFinite(out, NameOf(estimator));
      // kShared takes its rows without knowing the normaliser; in its first step most of these.
      const double off = estimator != ValueEstimator::kShared ? 1e-4 : step == 0 ? 1e-2 : 0.5;
      ASSERT_NEAR(out[0], 1.0f, off) << NameOf(estimator);
    }
  }
}

TEST(SampledAttentionTest, SumsOfValuesDoNotDependOnChunks) {
  const int n = 150, dim = 24;
  const std::vector<float> random = RandomFloats(size_t(3) * 2 * 128 * dim, 3);
  const auto sums_by = [&](int chunk, int threads) {
    std::vector<TypedMatrix> pages;
    for (int p = 0; p < 6; ++p) {
      const auto begin = random.begin() + size_t(p) * 128 * dim;
      pages.emplace_back(DType::kBF16, std::vector<float>(begin, begin + 128 * dim));
    }
    std::vector<std::vector<float>> sums(6, std::vector<float>(dim, NAN));
    for (int first = 0; first < n; first += chunk) {
      const int rows = std::min(chunk, n - first);
      std::vector<const std::byte*> page_list;
      std::vector<float*> sum_list;
      for (int b = first / 64; b <= (first + rows - 1) / 64; ++b) {
        for (int h = 0; h < 2; ++h) {
          page_list.push_back(pages[b * 2 + h].bytes.data());
          sum_list.push_back(sums[b * 2 + h].data());
        }
      }
      const SumValuesSegment segment{{0, rows, first}, page_list.data(), sum_list.data()};
      Cpu(threads)->SumValues({&segment, 1, 2, dim, DType::kBF16});
    }
    for (int c = 0; c < dim; ++c) {
      double expected = 0;
      for (int t = 0; t < 64; ++t) expected += pages[1].values[(64 + t) * dim + c];
      EXPECT_NEAR(sums[1][c], expected, 1e-4);
    }
    return sums;
  };
  const auto whole = sums_by(n, 1);
  for (const int chunk : {1, 7, 64, 100}) EXPECT_EQ(sums_by(chunk, 2), whole);
}

// E[logit] = logit, each head of a group.
TEST(SampledQueriesTest, MeanLogitsAreTheLogits) {
  const auto backend = Cpu();
  const int heads = 4, dim = 32;
  const std::vector<float> q = RandomFloats(size_t(2) * heads * dim, 3);
  const std::vector<float> keys = RandomFloats(size_t(5) * dim, 4);
  for (const bool mean_group : {false, true}) {
    for (const int samples : {1, 4, 8}) {
      int64_t features = 0;
      const auto run = [&](int64_t offset) {
        std::vector<float> out(q.size(), 0.0f);
        const SampleQueriesSegment segment{.row = 1, .position = 9, .samples = samples, .seed = 4};
        backend->SampleQueries({.q = q.data(),
                                .out = out.data(),
                                .segments = &segment,
                                .features = &features,
                                .num_segments = 1,
                                .q_stride = heads * dim,
                                .num_q_heads = heads,
                                .num_kv_heads = 1,
                                .head_dim = dim,
                                .mean_group = mean_group,
                                .forced_offset = offset});
        return out;
      };
      const std::vector<double> mean = MeanOverOffsets(run);
      for (int g = 0; g < heads; ++g) {
        for (int k = 0; k < 5; ++k) {
          double expected = 0, found = 0;
          for (int c = 0; c < dim; ++c) {
            expected += double{q[(heads + g) * dim + c]} * keys[k * dim + c];
            found += mean[(heads + g) * dim + c] * keys[k * dim + c];
          }
          EXPECT_NEAR(found, expected, 1e-5) << mean_group << " " << samples;
        }
      }
      run(-1);
      EXPECT_GT(features, 0);
      EXPECT_LE(features, dim);
      if (samples == 1) {
        EXPECT_LT(features, dim);
      }
    }
  }
}

}  // namespace
}  // namespace augur::kernels
