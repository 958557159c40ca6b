// Embedding, RmsNorm and GatedSilu of every backend against double.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"
#include "tests/kernels/twin_tolerances.h"

namespace augur::kernels {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

struct Shape {
  int rows, width;
};

// Every size in both places, and widths beyond what a CTA of the device keeps in registers.
constexpr Shape kShapes[] = {{1, 4097}, {63, 64},  {64, 1000}, {65, 65},   {1000, 63},
                             {4097, 1}, {5, 4096}, {3, 20000}, {2, 16384}, {4097, 64}};

std::vector<float> ReadAll(DType dtype, const SharedArray<std::byte>& array) {
  std::vector<float> values(array.size() / BytesOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) values[i] = ReadAs(dtype, array.data(), i);
  return values;
}

void CheckEmbedding(Backend& backend, DType dtype, const Shape& shape, float scale) {
  const int vocab = 50;
  const size_t hidden = shape.width;
  const TypedMatrix table(dtype, RandomFloats(vocab * hidden, 1));
  const SharedArray<std::byte> shared_table(backend, table.bytes);
  SharedArray<int32_t> ids(backend, shape.rows);
  for (int i = 0; i < shape.rows; ++i) ids[i] = i * 31 % vocab;
  SharedArray<float> out(backend, shape.rows * hidden);
  backend.Embedding({.ids = ids.data(),
                     .table = shared_table.data(),
                     .table_dtype = dtype,
                     .out = out.data(),
                     .rows = shape.rows,
                     .vocab = vocab,
                     .hidden = shape.width,
                     .scale = scale});
  backend.Synchronize();
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], scale * table.values[ids[i / hidden] * hidden + i % hidden]) << i;
  }
}

TEST(TwinEmbeddingTest, GathersScaledRows) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const DType dtype : kDTypes) {
      for (const Shape& shape : kShapes) {
        for (const float scale : {1.0f, 12.0f}) {
          SCOPED_TRACE(name + " " + NameOf(dtype) + " width " + std::to_string(shape.width));
          CheckEmbedding(*backend, dtype, shape, scale);
        }
      }
    }
  }
}

// A device cannot check ids; the CPU makes a CHECK of these (elementwise_test.cc).
TEST(TwinEmbeddingTest, AnIdBeyondTheTableMakesARowOfNaN) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    SCOPED_TRACE(name);
    const SharedArray<float> table(*backend, std::vector<float>{1, 2, 3, 4});
    const SharedArray<int32_t> ids(*backend, std::vector<int32_t>{1, 2, -1, 0});
    SharedArray<float> out(*backend, 8);
    backend->Embedding({.ids = ids.data(),
                        .table = table.data(),
                        .out = out.data(),
                        .rows = 4,
                        .vocab = 2,
                        .hidden = 2});
    backend->Synchronize();
    for (int i = 0; i < 8; ++i) EXPECT_EQ(std::isnan(out[i]), i >= 2 && i < 6) << i;
    EXPECT_EQ(out[0], 3.0f);
    EXPECT_EQ(out[7], 2.0f);
  }
}

std::vector<float> Norm(Backend& backend, const std::vector<float>& x,
                        const std::vector<int32_t>& row_ids, const std::vector<float>& weight,
                        int rows, DType out_dtype) {
  const SharedArray<float> shared_x(backend, x), shared_weight(backend, weight);
  const SharedArray<int32_t> shared_ids(backend, row_ids);
  SharedArray<std::byte> out(backend, rows * weight.size() * BytesOf(out_dtype));
  backend.RmsNorm({.x = shared_x.data(),
                   .row_ids = row_ids.empty() ? nullptr : shared_ids.data(),
                   .weight = shared_weight.data(),
                   .out = out.data(),
                   .rows = rows,
                   .hidden = static_cast<int>(weight.size()),
                   .epsilon = 1e-5f,
                   .out_dtype = out_dtype});
  backend.Synchronize();
  return ReadAll(out_dtype, out);
}

void CheckNorm(Backend& backend, const Shape& shape, DType dtype) {
  const size_t hidden = shape.width;
  const std::vector<float> x = RandomFloats(shape.rows * hidden, 1, 3.0f);
  const std::vector<float> weight = RandomFloats(hidden, 2);
  const std::vector<float> out = Norm(backend, x, {}, weight, shape.rows, dtype);
  const TwinTolerance& tolerance = kRmsNormTolerances.Of(dtype);
  for (int r = 0; r < shape.rows; ++r) {
    const float* row = x.data() + r * hidden;
    double squares = 0.0;
    for (size_t c = 0; c < hidden; ++c) squares += double(row[c]) * row[c];
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(hidden) + 1e-5f);
    for (size_t c = 0; c < hidden; ++c) {
      const double expected = row[c] * factor * weight[c];
      ASSERT_NEAR(out[r * hidden + c], expected, tolerance.At(expected)) << r << " " << c;
    }
  }
  const std::vector<int32_t> row_ids{shape.rows - 1, 0, shape.rows / 2};
  const std::vector<float> picked = Norm(backend, x, row_ids, weight, 3, dtype);
  for (int i = 0; i < 3; ++i) {
    const size_t source = row_ids[i] * hidden;
    ASSERT_TRUE(SameBits(picked.data() + i * hidden, out.data() + source, hidden));
    const std::vector<float> row(x.begin() + source, x.begin() + source + hidden);
    ASSERT_TRUE(
        SameBits(Norm(backend, row, {}, weight, 1, dtype).data(), out.data() + source, hidden));
  }
}

TEST(TwinRmsNormTest, MatchesDoubleAndKeepsARowsBits) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const DType dtype : kDTypes) {
      if (backend->ActivationDType(dtype) != dtype) continue;
      for (const Shape& shape : kShapes) {
        SCOPED_TRACE(name + " " + NameOf(dtype) + " width " + std::to_string(shape.width));
        CheckNorm(*backend, shape, dtype);
      }
    }
  }
}

TEST(TwinRmsNormTest, InPlaceIsTheSame) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int hidden : {65, 4096, 20000}) {
      const std::vector<float> x = RandomFloats(size_t{7} * hidden, 3);
      const std::vector<float> weight = RandomFloats(hidden, 4);
      SharedArray<float> rows(*backend, x);
      const SharedArray<float> shared_weight(*backend, weight);
      backend->RmsNorm({.x = rows.data(),
                        .weight = shared_weight.data(),
                        .out = rows.data(),
                        .rows = 7,
                        .hidden = hidden});
      backend->Synchronize();
      EXPECT_TRUE(SameBits(rows.ToVector(), Norm(*backend, x, {}, weight, 7, DType::kF32)))
          << name << " " << hidden;
    }
  }
}

std::vector<float> Gate(Backend& backend, const TypedMatrix& gate_up, int rows) {
  const SharedArray<std::byte> shared(backend, gate_up.bytes);
  SharedArray<std::byte> out(backend, gate_up.bytes.size() / 2);
  backend.GatedSilu({.gate_up = shared.data(),
                     .out = out.data(),
                     .rows = rows,
                     .width = static_cast<int>(gate_up.values.size()) / (2 * rows),
                     .dtype = gate_up.dtype});
  backend.Synchronize();
  return ReadAll(gate_up.dtype, out);
}

void CheckGate(Backend& backend, const Shape& shape, DType dtype) {
  const size_t width = shape.width;
  std::vector<float> x = RandomFloats(shape.rows * 2 * width, 1, 8.0f);
  const float extremes[] = {100.0f, -100.0f, -0.0f, 88.5f, -88.5f};
  for (size_t i = 0; i < 5 && i < width; ++i) x[i] = extremes[i];
  const TypedMatrix gate_up(dtype, x);
  const std::vector<float> out = Gate(backend, gate_up, shape.rows);
  const TwinTolerance& tolerance = kGatedSiluTolerances.Of(dtype);
  for (int r = 0; r < shape.rows; ++r) {
    const float* row = gate_up.values.data() + r * 2 * width;
    for (size_t c = 0; c < width; ++c) {
      const double gate = row[c];
      const double expected = gate / (1.0 + std::exp(-gate)) * row[width + c];
      ASSERT_NEAR(out[r * width + c], expected, tolerance.At(expected)) << r << " " << c;
    }
  }
  const size_t middle = shape.rows / 2;
  const auto begin = gate_up.values.begin() + middle * 2 * width;
  const TypedMatrix alone(dtype, std::vector<float>(begin, begin + 2 * width));
  ASSERT_TRUE(SameBits(Gate(backend, alone, 1).data(), out.data() + middle * width, width));
}

TEST(TwinGatedSiluTest, MatchesDoubleAndKeepsARowsBits) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const DType dtype : kDTypes) {
      if (backend->ActivationDType(dtype) != dtype) continue;
      for (const Shape& shape : kShapes) {
        SCOPED_TRACE(name + " " + NameOf(dtype) + " width " + std::to_string(shape.width));
        CheckGate(*backend, shape, dtype);
      }
    }
  }
}

TEST(TwinGatedSiluTest, NaNStaysNaN) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const DType dtype : kDTypes) {
      if (backend->ActivationDType(dtype) != dtype) continue;
      const std::vector<float> out = Gate(*backend, {dtype, {NAN, 1.0f, 1.0f, NAN}}, 1);
      EXPECT_TRUE(std::isnan(out[0])) << name;
      EXPECT_TRUE(std::isnan(out[1])) << name;
    }
  }
}

}  // namespace
}  // namespace augur::kernels
