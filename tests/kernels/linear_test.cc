#include "kernels/ops/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

struct Problem {
  int rows = 1;
  int out = 1;
  int in = 1;
  DType dtype = DType::kF32;
  bool has_bias = false;
  bool accumulate = false;
  int x_pad = 0;
  int y_pad = 0;
};

constexpr float kUntouched = 123.5f;

struct Data {
  explicit Data(const Problem& p)
      : problem(p),
        weight(p.dtype, RandomFloats(size_t(p.out) * p.in, 1)),
        x(RandomFloats(size_t(p.rows) * (p.in + p.x_pad), 2)),
        bias(RandomFloats(p.out, 3)),
        old_y(size_t(p.rows) * (p.out + p.y_pad), kUntouched) {
    const std::vector<float> random = RandomFloats(old_y.size(), 4);
    for (int r = 0; r < p.rows; ++r) {
      for (int n = 0; n < p.out; ++n) {
        const size_t i = size_t(r) * (p.out + p.y_pad) + n;
        old_y[i] = random[i];
      }
    }
  }

  // Rows [first, first + rows) on a backend; the whole y comes back.
  std::vector<float> Run(Backend& backend, int first, int rows) const {
    const auto packed =
        backend.PackWeight({weight.bytes.data(), weight.dtype, problem.out, problem.in});
    std::vector<float> y = old_y;
    LinearParams params;
    params.x_stride = problem.in + problem.x_pad;
    params.y_stride = problem.out + problem.y_pad;
    params.x = x.data() + size_t(first) * params.x_stride;
    params.y = y.data() + size_t(first) * params.y_stride;
    params.weight = packed.get();
    params.bias = problem.has_bias ? bias.data() : nullptr;
    params.rows = rows;
    params.accumulate = problem.accumulate;
    backend.Linear(params);
    return y;
  }
  std::vector<float> Run(Backend& backend) const { return Run(backend, 0, problem.rows); }

  // The contract, word for word: one chain of fma, then bias, then the old y.
  std::vector<float> Chain() const {
    std::vector<float> y = old_y;
    for (int r = 0; r < problem.rows; ++r) {
      for (int n = 0; n < problem.out; ++n) {
        float sum = 0.0f;
        for (int k = 0; k < problem.in; ++k) {
          sum = std::fma(weight.values[size_t(n) * problem.in + k],
                         x[size_t(r) * (problem.in + problem.x_pad) + k], sum);
        }
        float& place = y[size_t(r) * (problem.out + problem.y_pad) + n];
        if (problem.has_bias) sum += bias[n];
        place = problem.accumulate ? sum + place : sum;
      }
    }
    return y;
  }

  double WorstErrorAgainstDouble(const std::vector<float>& y) const {
    double worst = 0.0;
    for (int r = 0; r < problem.rows; ++r) {
      for (int n = 0; n < problem.out; ++n) {
        double sum = 0.0, magnitude = 1e-30;
        for (int k = 0; k < problem.in; ++k) {
          const double product = double(weight.values[size_t(n) * problem.in + k]) *
                                 x[size_t(r) * (problem.in + problem.x_pad) + k];
          sum += product;
          magnitude += std::abs(product);
        }
        const size_t i = size_t(r) * (problem.out + problem.y_pad) + n;
        if (problem.has_bias) sum += bias[n];
        if (problem.accumulate) sum += old_y[i];
        worst = std::max(worst, std::abs(y[i] - sum) / magnitude);
      }
    }
    return worst;
  }

  Problem problem;
  TypedMatrix weight;
  std::vector<float> x, bias, old_y;
};

std::vector<Problem> OddProblems() {
  std::vector<Problem> problems;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [rows, out, in] : {std::array{1, 1, 1},
                                        {1, 33, 7},
                                        {2, 31, 64},
                                        {3, 64, 5},
                                        {5, 100, 65},
                                        {12, 32, 17},
                                        {13, 129, 300},
                                        {25, 48, 257},
                                        {97, 40, 33},
                                        {130, 95, 70},
                                        {7, 320, 512}}) {
      problems.push_back({rows, out, in, dtype, false, false, 0, 0});
      problems.push_back({rows, out, in, dtype, true, true, 3, 5});
    }
  }
  return problems;
}

TEST(LinearTest, EveryIsaGivesTheBitsOfOneFmaChain) {
  for (const CpuIsa isa : IsasHere()) {
    for (const int threads : {1, 2}) {
      const auto backend = MakeCpuBackend({threads, isa});
      for (const Problem& problem : OddProblems()) {
        const Data data(problem);
        const std::vector<float> y = data.Run(*backend);
        ASSERT_TRUE(SameBits(y, data.Chain()))
            << backend->Describe() << " rows " << problem.rows << " out " << problem.out << " in "
            << problem.in << " " << NameOf(problem.dtype);
      }
    }
  }
}

TEST(LinearTest, IsCloseToDouble) {
  const auto backend = MakeCpuBackend({2});
  for (const Problem& problem : OddProblems()) {
    const Data data(problem);
    EXPECT_LT(data.WorstErrorAgainstDouble(data.Run(*backend)), 2e-6);
  }
}

TEST(LinearTest, ARowHasTheSameBitsAloneAndAmongAnyOthers) {
  Problem problem{130, 70, 333, DType::kBF16, true, true, 0, 0};
  if (kSanitized) problem.in = 40;
  for (const CpuIsa isa : IsasHere()) {
    if (isa == CpuIsa::kGeneric) problem.in = 40;  // a call for each of its fma
    if (isa != CpuIsa::kGeneric && !kSanitized) problem.in = 333;
    const Data data(problem);
    const auto one = MakeCpuBackend({1, isa});
    const auto two = MakeCpuBackend({2, isa});
    const std::vector<float> expected = data.Run(*one);
    for (int rows = 1; rows <= problem.rows; ++rows) {
      for (const auto& backend : {one.get(), two.get()}) {
        const int first = problem.rows - rows;
        const std::vector<float> y = data.Run(*backend, first, rows);
        ASSERT_TRUE(SameBits(y.data() + size_t(first) * problem.out,
                             expected.data() + size_t(first) * problem.out,
                             size_t(rows) * problem.out))
            << backend->Describe() << " rows " << rows;
      }
    }
  }
}

TEST(LinearTest, LargeShapesKeepTheirBits) {
  const auto one = MakeCpuBackend({1});
  const auto two = MakeCpuBackend({2});
  for (const auto& [rows, out, in] : {std::array{1, 4096, 320}, {600, 320, 896}, {4, 320, 4096}}) {
    const Problem problem{
        kSanitized ? rows / 4 + 1 : rows, out, in, DType::kBF16, false, false, 0, 0};
    const Data data(problem);
    const std::vector<float> all = data.Run(*one);
    EXPECT_TRUE(SameBits(all, data.Run(*two)));
    const int last = problem.rows - 1;
    const std::vector<float> alone = data.Run(*one, last, 1);
    EXPECT_TRUE(SameBits(all.data() + size_t(last) * out, alone.data() + size_t(last) * out, out));
  }
}

TEST(LinearTest, ZeroRowsTouchNothing) {
  const Data data({1, 5, 5, DType::kF32, false, false, 0, 0});
  EXPECT_TRUE(SameBits(data.Run(*MakeCpuBackend({2}), 0, 0), data.old_y));
}

TEST(LinearTest, ANaNRowLeavesTheOthersAlone) {
  Data data({20, 40, 64, DType::kBF16, false, false, 0, 0});
  const auto backend = MakeCpuBackend({2});
  const std::vector<float> clean = data.Run(*backend);
  for (int k = 0; k < 64; ++k) data.x[7 * 64 + k] = NAN;
  const std::vector<float> dirty = data.Run(*backend);
  for (int r = 0; r < 20; ++r) {
    if (r == 7) {
      EXPECT_TRUE(std::isnan(dirty[7 * 40]));
    } else {
      EXPECT_TRUE(SameBits(clean.data() + r * 40, dirty.data() + r * 40, 40)) << r;
    }
  }
}

TEST(LinearTest, PackedWeightsSayTheirShape) {
  const Data data({1, 33, 7, DType::kBF16, false, false, 0, 0});
  const auto backend = MakeCpuBackend({1});
  const auto packed = backend->PackWeight({data.weight.bytes.data(), DType::kBF16, 33, 7});
  EXPECT_EQ(packed->out_features(), 33);
  EXPECT_EQ(packed->in_features(), 7);
  EXPECT_GE(packed->bytes(), size_t{33 * 7 * 2});
}

TEST(LinearDeathTest, AShapeErrorIsACheck) {
  const Data data({2, 4, 8, DType::kF32, false, false, 0, 0});
  const auto backend = MakeCpuBackend({1});
  const auto packed = backend->PackWeight({data.weight.bytes.data(), DType::kF32, 4, 8});
  LinearParams params;
  params.x = data.x.data();
  params.weight = packed.get();
  params.rows = 2;
  params.x_stride = 7;
  params.y_stride = 4;
  EXPECT_DEATH(backend->Linear(params), "CHECK failed");
}

}  // namespace
}  // namespace augur::kernels
