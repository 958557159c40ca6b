// Embedding, RmsNorm and GatedSilu: every output depends on its row alone.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_backend.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

TEST(EmbeddingTest, GathersScaledRows) {
  for (const CpuIsa isa : IsasHere()) {
    const auto backend = MakeCpuBackend({2, isa});
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int hidden : {1, 7, 64, 321}) {
        const int vocab = 50, rows = 77;
        const TypedMatrix table(dtype, RandomFloats(size_t(vocab) * hidden, 1));
        std::vector<int32_t> ids(rows);
        for (int i = 0; i < rows; ++i) ids[i] = i * 31 % vocab;
        std::vector<float> out(size_t(rows) * hidden);
        EmbeddingParams params;
        params.ids = ids.data();
        params.table = table.bytes.data();
        params.table_dtype = dtype;
        params.out = out.data();
        params.rows = rows;
        params.vocab = vocab;
        params.hidden = hidden;
        for (const float scale : {1.0f, 12.0f}) {
          params.scale = scale;
          backend->Embedding(params);
          for (int r = 0; r < rows; ++r) {
            for (int c = 0; c < hidden; ++c) {
              ASSERT_EQ(out[size_t(r) * hidden + c],
                        scale * table.values[size_t(ids[r]) * hidden + c]);
            }
          }
        }
      }
    }
  }
}

void Norm(Backend& backend, const float* x, const std::vector<float>& weight, float* out,
          int rows) {
  RmsNormParams params;
  params.x = x;
  params.weight = weight.data();
  params.out = out;
  params.rows = rows;
  params.hidden = static_cast<int>(weight.size());
  params.epsilon = 1e-5f;
  backend.RmsNorm(params);
}

TEST(RmsNormTest, MatchesDoubleAndKeepsARowsBits) {
  for (const int hidden : {1, 5, 16, 63, 64, 65, 320, 1027}) {
    const int rows = 130;
    const std::vector<float> x = RandomFloats(size_t(rows) * hidden, 1, 3.0f);
    const std::vector<float> weight = RandomFloats(hidden, 2);
    std::vector<float> expected;
    for (const CpuIsa isa : IsasHere()) {
      for (const int threads : {1, 2}) {
        const auto backend = MakeCpuBackend({threads, isa});
        std::vector<float> out(x.size());
        Norm(*backend, x.data(), weight, out.data(), rows);
        if (expected.empty()) expected = out;
        ASSERT_TRUE(SameBits(out, expected)) << backend->Describe() << " hidden " << hidden;
        std::vector<float> in_place = x;
        Norm(*backend, in_place.data(), weight, in_place.data(), rows);
        ASSERT_TRUE(SameBits(in_place, expected));
        std::vector<float> alone(hidden);
        Norm(*backend, x.data() + size_t{77} * hidden, weight, alone.data(), 1);
        ASSERT_TRUE(SameBits(alone.data(), expected.data() + size_t{77} * hidden, hidden));
      }
    }
    for (int r = 0; r < rows; ++r) {
      double squares = 0.0;
      for (int c = 0; c < hidden; ++c) squares += double(x[r * hidden + c]) * x[r * hidden + c];
      const double factor = 1.0 / std::sqrt(squares / hidden + 1e-5);
      for (int c = 0; c < hidden; ++c) {
        const double value = x[r * hidden + c] * factor * weight[c];
        ASSERT_NEAR(expected[r * hidden + c], value, 1e-6 * std::abs(value) + 1e-12);
      }
    }
  }
}

TEST(GatedSiluTest, MatchesDoubleAndKeepsARowsBits) {
  for (const int width : {1, 7, 16, 33, 160, 897}) {
    const int rows = 67;
    std::vector<float> x = RandomFloats(size_t(rows) * 2 * width, 1, 8.0f);
    x[0] = 100.0f;
    if (width > 7) {
      x[1] = -100.0f;
      x[2] = -0.0f;
      x[3] = 88.5f;
      x[4] = -88.5f;
    }
    std::vector<float> expected;
    for (const CpuIsa isa : IsasHere()) {
      for (const int threads : {1, 2}) {
        const auto backend = MakeCpuBackend({threads, isa});
        std::vector<float> out(size_t(rows) * width);
        GatedSiluParams params;
        params.gate_up = x.data();
        params.out = out.data();
        params.rows = rows;
        params.width = width;
        backend->GatedSilu(params);
        if (expected.empty()) expected = out;
        ASSERT_TRUE(SameBits(out, expected)) << backend->Describe() << " width " << width;
      }
    }
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < width; ++c) {
        const double gate = x[size_t(r) * 2 * width + c];
        const double value = gate / (1.0 + std::exp(-gate)) * x[size_t(r) * 2 * width + width + c];
        ASSERT_NEAR(expected[size_t(r) * width + c], value, 1e-6 * std::abs(value) + 1e-30);
      }
    }
  }
}

TEST(GatedSiluTest, NaNStaysNaN) {
  const float gate_up[4] = {NAN, 1.0f, 1.0f, NAN};
  float out[2];
  GatedSiluParams params;
  params.gate_up = gate_up;
  params.out = out;
  params.rows = 1;
  params.width = 2;
  MakeCpuBackend({1})->GatedSilu(params);
  EXPECT_TRUE(std::isnan(out[0]));
  EXPECT_TRUE(std::isnan(out[1]));
}

// The claim of isa/vector.h, over the range that attention and sampling use.
TEST(ExpTest, IsWithinTwoUlp) {
  std::vector<float> x;
  for (float v = 0.0f; v > -87.0f; v -= 0.00137f) x.push_back(v);
  std::vector<float> y(x.size());
  for (const CpuIsa isa : IsasHere()) {
    KernelsFor(isa).softmax_weights(x.data(), 0.0f, 1.0f, y.data(), static_cast<int>(x.size()));
    for (size_t i = 0; i < x.size(); ++i) {
      const double exact = std::exp(double(x[i]));
      const double ulp = std::ldexp(1.0, std::ilogb(exact) - 23);
      ASSERT_LE(std::abs(y[i] - exact), 2.0 * ulp) << x[i];
    }
  }
}

}  // namespace
}  // namespace augur::kernels
