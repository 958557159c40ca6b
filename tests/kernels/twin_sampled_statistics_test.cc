// Sampled attention by numbers on every backend, from queries and keys to outputs: Hotelling's test
// of the mean over thousands of draws, and how far a device's own scores move what is drawn. Seeds
// are fixed, so what has passed once on a device passes always.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/kernels/hotelling.h"
#include "tests/kernels/sampled_case.h"
#include "tests/kernels/twin_sampled.h"

namespace augur::kernels {
namespace {

constexpr int kDim = 128;
constexpr int kComponents = 16;  // sums of every 16th component: a bias of any shows in one

struct MeanCase {
  ValueEstimator estimator;
  AttentionShape shape;
  int samples;
  float score_scale;
  bool has_sums = false;
};

std::vector<double> Folded(const double* error) {
  std::vector<double> folded(kComponents, 0.0);
  for (int c = 0; c < kDim; ++c) folded[c % kComponents] += error[c];
  return folded;
}

// The largest Hotelling statistic of all query heads. A call's rows are chains of steps that each
// go on from the state of the one before; in every `biased`-th step offsets are all 0 instead of
// random (0: never).
double LargestStatistic(const BackendUnderTest& under_test, const MeanCase& c, int biased) {
  const bool is_long = under_test.on_device;
  const int tokens = is_long ? 16384 + 39 : 2048 + 39;
  const int chains = 40, steps = kSanitized ? 30 : is_long ? 150 : 40;
  const AttentionSequence sequence(*under_test.backend, c.shape,
                                   {.seed = 21, .tokens = tokens, .score_scale = c.score_scale});
  const SampledRow row{.sequence = &sequence, .samples = c.samples, .has_sums = c.has_sums};
  const std::vector<double> exact = ExactRow(c.shape, row);
  std::vector<std::vector<std::vector<double>>> errors(c.shape.num_q_heads());
  SampledBatch batch(*under_test.backend, c.shape, std::vector<SampledRow>(chains, row),
                     {.estimator = c.estimator});
  std::vector<double> error(kDim);
  for (int step = 0; step < steps; ++step) {
    const bool is_biased = biased > 0 && step % biased == 0;
    batch.SetDraws(uint64_t(step) * chains + 1, is_biased ? 0 : -1);
    const SampledResult found = batch.Run();
    for (size_t i = 0; i < size_t(chains) * exact.size(); i += kDim) {
      const size_t head = i % exact.size() / kDim;
      for (int d = 0; d < kDim; ++d) error[d] = found.Out(i + d) - exact[head * kDim + d];
      errors[head].push_back(Folded(error.data()));
    }
  }
  double largest = 0;
  for (const auto& of_head : errors) largest = std::max(largest, HotellingStatistic(of_head));
  return largest;
}

TEST(TwinSampledStatisticsTest, HotellingFindsNoBias) {
  const AttentionShape wide{16, kSanitized ? 1 : 2, kDim, DType::kBF16};
  const AttentionShape narrow{4, kSanitized ? 1 : 2, kDim, DType::kF16};
  const MeanCase cases[] = {{ValueEstimator::kProportional, wide, 128, 1.0f},
                            {ValueEstimator::kProportional, narrow, 64, 1.4f},
                            {ValueEstimator::kFlash, narrow, 512, 1.0f},
                            {ValueEstimator::kShared, narrow, 128, 1.0f},
                            {ValueEstimator::kShared, narrow, 128, 1.0f, true}};
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const MeanCase& c : cases) {
      const double statistic = LargestStatistic(under_test, c, 0);
      std::printf("%s %s %s: %.1f\n", under_test.name.c_str(), Describe(c.shape).c_str(),
                  NameOf(c.estimator), statistic);
      EXPECT_LT(statistic, kChiSquare16At1e6)
          << under_test.name << " " << Describe(c.shape) << " " << NameOf(c.estimator);
    }
  }
}

// The test sees one step in four whose offsets are not random.
TEST(TwinSampledStatisticsTest, HotellingFindsABias) {
  const AttentionShape shape{4, 1, kDim, DType::kBF16};
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const ValueEstimator estimator :
         {ValueEstimator::kProportional, ValueEstimator::kFlash, ValueEstimator::kShared}) {
      const int samples = estimator == ValueEstimator::kFlash ? 512 : 128;
      EXPECT_GT(LargestStatistic(under_test, {estimator, shape, samples, 1.0f}, 4),
                kChiSquare16At1e12)
          << under_test.name << " " << NameOf(estimator);
    }
  }
}

// How often each token of the sequence is drawn by each query head, [group][tokens]. Values of two
// blocks at a time are one-hot and all others 0, so that the output is these blocks' coefficients;
// what is drawn does not hang on values.
std::vector<std::vector<int>> DrawnTokens(const BackendUnderTest& under_test,
                                          const AttentionShape& shape,
                                          const AttentionSequence& sequence,
                                          ValueEstimator estimator, int samples, uint64_t seed) {
  const size_t half = shape.page_bytes() / 2;
  std::vector<std::byte> bytes(3 * half, std::byte{0});
  for (int t = 0; t < kDim; ++t) WriteAs(shape.dtype, 1.0f, bytes.data() + half, t * kDim + t);
  const DeviceBytes values(*under_test.backend, bytes);
  const int blocks = sequence.num_blocks();
  std::vector<std::vector<double>> weights(shape.group);
  for (int first = 0; first < blocks; first += 2) {
    SampledRow row{.sequence = &sequence, .samples = samples, .seed = seed};
    row.values.assign(blocks, values.data());
    for (int b = first; b < std::min(blocks, first + 2); ++b) {
      row.values[b] = values.data() + (1 + b - first) * half;
    }
    const SampledResult found = Sample(under_test, shape, {row}, {.estimator = estimator});
    for (int g = 0; g < shape.group; ++g) {
      for (int c = 0; c < kDim; ++c) weights[g].push_back(found.Out(g * kDim + c));
    }
  }
  const int of_tile = std::max(1, samples / blocks);  // kFlash's
  std::vector<std::vector<int>> counts(shape.group);
  for (int g = 0; g < shape.group; ++g) {
    for (int t = 0; t < sequence.tokens(); ++t) {
      if (estimator == ValueEstimator::kShared) {  // each row once for all heads
        counts[g].push_back(weights[g][t] > 0 ? 1 : 0);
        continue;
      }
      double one = 1.0 / samples;
      if (estimator == ValueEstimator::kFlash) {
        const auto tile = weights[g].begin() + t / kBlockTokens * kBlockTokens;
        one = std::accumulate(tile, tile + kBlockTokens, 0.0) / of_tile;
      }
      counts[g].push_back(static_cast<int>(std::lround(weights[g][t] / one)));
    }
  }
  return counts;
}

// With scores of its own a device may draw a neighbour: of at most one draw in a hundred.
TEST(TwinSampledStatisticsTest, ScoresOfItsOwnMoveFewDraws) {
  const std::vector<BackendUnderTest> backends = BackendsUnderTest();
  struct Lists {
    int tokens, samples, seeds;
    ValueEstimator estimator;
  };
  const Lists lists[] = {{128, 64, 20, ValueEstimator::kProportional},
                         {kSanitized ? 700 : 8192, 128, 3, ValueEstimator::kProportional},
                         {kSanitized ? 700 : 4000, 128, 3, ValueEstimator::kFlash},
                         {kSanitized ? 700 : 4000, 32, 3, ValueEstimator::kShared}};
  for (const AttentionShape& shape :
       {AttentionShape{16, 1, kDim, DType::kBF16}, AttentionShape{4, 1, kDim, DType::kF16}}) {
    for (const Lists& list : lists) {
      int64_t draws = 0, moved = 0;
      for (int seed = 1; seed <= list.seeds; ++seed) {
        std::vector<std::vector<std::vector<int>>> counts;
        for (const BackendUnderTest& under_test : backends) {
          const AttentionSequence sequence(
              *under_test.backend, shape,
              {.seed = uint32_t(seed), .tokens = list.tokens, .score_scale = 1.3f});
          counts.push_back(DrawnTokens(under_test, shape, sequence, list.estimator, list.samples,
                                       uint64_t(seed) << 27));
        }
        for (int g = 0; g < shape.group; ++g) {
          int ahead = 0;
          for (int t = 0; t < list.tokens; ++t) {
            const int a = counts.front()[g][t], b = counts.back()[g][t];
            draws += a;
            if (list.estimator == ValueEstimator::kShared) {
              moved += std::abs(a - b);
              continue;
            }
            ahead += a - b;
            moved += std::abs(ahead);
            ASSERT_LE(std::abs(ahead), 1) << "draws before a row differ by more than a neighbour's";
          }
          ASSERT_EQ(ahead, 0);
        }
      }
      std::printf("%s %s of %d tokens: %lld of %lld draws moved\n", Describe(shape).c_str(),
                  NameOf(list.estimator), list.tokens, static_cast<long long>(moved),
                  static_cast<long long>(draws));
      EXPECT_GE(draws, int64_t{list.samples} / 2 * shape.group * list.seeds);
      EXPECT_LE(moved, draws / 100);
    }
  }
}

}  // namespace
}  // namespace augur::kernels
