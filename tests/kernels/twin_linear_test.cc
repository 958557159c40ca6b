// Linear, PackWeight and ActivationDType on every backend, against double and against themselves
// among other rows.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "kernels/random_weight.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr Phase kPhases[] = {Phase::kPrefill, Phase::kDecode};

// Of the sum of magnitudes that an output adds up. Sums are float32 everywhere, whatever x and the
// weight are; a device may add in any order, the CPU has one chain.
constexpr double kCpuTolerance = 2e-6;
constexpr double kDeviceTolerance = 1e-5;

// Of a value, when it is rounded to dtype.
double RoundingOf(DType dtype) {
  if (dtype == DType::kF32) return 0.0;
  return dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11;
}

float Rounded(DType dtype, float value) {
  std::byte bytes[4];
  WriteAs(dtype, value, bytes, 0);
  return ReadAs(dtype, bytes, 0);
}

// Unit variance, within [-1.74, 1.74).
float Random(uint32_t seed, size_t index) { return 1.7320508f * RandomWeight(seed, index); }

// A weight of unit variance, packed, and what it packs.
class TestWeight {
 public:
  TestWeight(Backend& backend, DType dtype, int out, int in)
      : dtype_(dtype), in_(in), source_(backend, size_t(out) * in * BytesOf(dtype)) {
    for (size_t i = 0; i < size_t(out) * in; ++i) WriteAs(dtype, Random(1, i), source_.data(), i);
    packed_ = backend.PackWeight(
        {.data = source_.data(), .dtype = dtype, .out_features = out, .in_features = in});
  }

  const PackedWeight* packed() const { return packed_.get(); }
  DType dtype() const { return dtype_; }
  int out() const { return packed_->out_features(); }
  int in() const { return in_; }
  float At(int output, int input) const {
    return ReadAs(dtype_, source_.data(), size_t(output) * in_ + input);
  }

 private:
  DType dtype_;
  int in_;
  SharedArray<std::byte> source_;
  std::unique_ptr<PackedWeight> packed_;
};

struct LinearVariant {
  bool has_bias = false;
  bool accumulate = false;
  bool is_y_like_x = false;  // y of x's type
  bool is_half = false;      // only the first half of the outputs
  int x_pad = 0;             // NaN, behind each row
  int y_pad = 0;
};

constexpr LinearVariant kVariants[] = {
    {},
    {.has_bias = true, .accumulate = true},
    {.accumulate = true, .x_pad = 8, .y_pad = 16},
    {.has_bias = true, .is_half = true, .x_pad = 3, .y_pad = 5},
    {.has_bias = true, .is_y_like_x = true},
    {.is_y_like_x = true, .is_half = true, .x_pad = 8, .y_pad = 1}};

// x, bias and old y for some rows of a weight.
class LinearRun {
 public:
  LinearRun(Backend& backend, const TestWeight& weight, int rows, const LinearVariant& variant)
      : backend_(backend),
        weight_(weight),
        variant_(variant),
        rows_(rows),
        columns_(variant.is_half ? (weight.out() + 1) / 2 : weight.out()),
        x_dtype_(backend.ActivationDType(weight.dtype())),
        y_dtype_(variant.is_y_like_x ? x_dtype_ : DType::kF32),
        x_(backend, size_t(rows) * x_stride() * BytesOf(x_dtype_)),
        bias_(backend, weight.out()) {
    for (int r = 0; r < rows; ++r) {
      for (int k = 0; k < weight.in(); ++k) SetX(r, k, Random(2, size_t(r) * weight.in() + k));
    }
    for (int n = 0; n < weight.out(); ++n) bias_[n] = Random(3, n);
  }

  int x_stride() const { return weight_.in() + variant_.x_pad; }
  int y_stride() const { return columns_ + variant_.y_pad; }
  size_t y_row_bytes() const { return y_stride() * BytesOf(y_dtype_); }

  float X(int row, int input) const {
    return ReadAs(x_dtype_, x_.data(), size_t(row) * x_stride() + input);
  }
  void SetX(int row, int input, float value) {
    WriteAs(x_dtype_, value, x_.data(), size_t(row) * x_stride() + input);
  }
  float OldY(int row, int column) const { return Random(4, size_t(row) * weight_.out() + column); }

  // y of rows [first, first + rows), gaps among them.
  std::vector<std::byte> Run(Phase phase, int first, int rows) {
    SharedArray<std::byte> y(backend_, rows * y_row_bytes());
    for (int r = 0; variant_.accumulate && r < rows; ++r) {
      for (int n = 0; n < columns_; ++n) {
        WriteAs(y_dtype_, OldY(first + r, n), y.data(), size_t(r) * y_stride() + n);
      }
    }
    LinearParams params;
    params.x = x_.data() + size_t(first) * x_stride() * BytesOf(x_dtype_);
    params.weight = weight_.packed();
    params.bias = variant_.has_bias ? bias_.data() : nullptr;
    params.y = y.data();
    params.rows = rows;
    params.x_stride = x_stride();
    params.y_stride = y_stride();
    params.accumulate = variant_.accumulate;
    params.columns = variant_.is_half ? columns_ : 0;
    params.phase = phase;
    params.x_dtype = x_dtype_;
    params.y_dtype = y_dtype_;
    backend_.Linear(params);
    backend_.Synchronize();
    return y.ToVector();
  }
  std::vector<std::byte> Run(Phase phase) { return Run(phase, 0, rows_); }

  // Of some outputs, in the sum of magnitudes, beyond the rounding to y's type; infinite for a NaN
  // and for gaps that were written.
  double WorstError(const std::vector<std::byte>& y) const {
    double worst = 0.0;
    for (const int row : Sampled(rows_, 7)) {
      for (const int column : Sampled(columns_, 37)) {
        const double value = ReadAs(y_dtype_, y.data(), size_t(row) * y_stride() + column);
        const double error = ErrorOf(row, column, value);
        if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
      }
    }
    for (int row = 0; row < rows_; ++row) {
      const size_t begin = row * y_row_bytes() + columns_ * BytesOf(y_dtype_);
      for (size_t i = begin; i < (row + 1) * y_row_bytes(); ++i) {
        if (y[i] != std::byte{0xff}) worst = INFINITY;
      }
    }
    return worst;
  }

 private:
  // About `most` of [0, count), the first and the last ones among them.
  static std::set<int> Sampled(int count, int most) {
    std::set<int> sampled{0, count / 2, count - 1};
    for (int i = 0; i < most; ++i) sampled.insert(static_cast<int>(int64_t{i} * count / most));
    return sampled;
  }
  double ErrorOf(int row, int column, double value) const {
    double sum = 0.0, magnitude = 1e-30;
    const auto add = [&](double term) {
      sum += term;
      magnitude += std::abs(term);
    };
    for (int k = 0; k < weight_.in(); ++k) add(double(X(row, k)) * weight_.At(column, k));
    if (variant_.has_bias) add(bias_[column]);
    if (variant_.accumulate) add(OldY(row, column));
    const double error = std::abs(value - sum);
    const double rounding = RoundingOf(y_dtype_) * std::abs(sum);
    return (error > rounding ? error - rounding : 0.0 * error) / magnitude;
  }

  Backend& backend_;
  const TestWeight& weight_;
  const LinearVariant variant_;
  const int rows_;
  const int columns_;
  const DType x_dtype_;
  const DType y_dtype_;
  SharedArray<std::byte> x_;
  SharedArray<float> bias_;
};

struct LinearShape {
  int rows;
  int out;
  int in;
};

std::vector<LinearShape> OddShapes() {
  std::vector<LinearShape> shapes = {{1, 1, 1},      {1, 33, 7},    {2, 31, 64},    {3, 64, 5},
                                     {5, 100, 65},   {12, 32, 17},  {13, 129, 300}, {25, 48, 257},
                                     {70, 40, 33},   {128, 95, 70}, {7, 320, 512},  {300, 8, 2},
                                     {1000, 64, 128}};
  if (kSanitized) return shapes;
  for (const LinearShape& shape :
       {LinearShape{1, 4097, 64}, {3, 64, 4097}, {2, 4097, 4097}, {300, 512, 896}}) {
    shapes.push_back(shape);
  }
  return shapes;
}

std::string Describe(const BackendUnderTest& under_test, const TestWeight& weight, Phase phase) {
  return under_test.name + " " + NameOf(weight.dtype()) + " out " + std::to_string(weight.out()) +
         " in " + std::to_string(weight.in()) + (phase == Phase::kDecode ? " decode" : " prefill");
}

TEST(TwinLinearTest, OddShapesMatchDouble) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    const double tolerance = under_test.on_device ? kDeviceTolerance : kCpuTolerance;
    for (const DType dtype : kDTypes) {
      for (const LinearShape& shape : OddShapes()) {
        const TestWeight weight(*under_test.backend, dtype, shape.out, shape.in);
        for (const LinearVariant& variant : kVariants) {
          LinearRun run(*under_test.backend, weight, shape.rows, variant);
          for (const Phase phase : kPhases) {
            ASSERT_LT(run.WorstError(run.Run(phase)), tolerance)
                << Describe(under_test, weight, phase) << " rows " << shape.rows << " variant "
                << &variant - kVariants;
          }
        }
      }
    }
  }
}

// Any number of rows, from anywhere among the others.
TEST(TwinLinearTest, ARowHasTheSameBitsAmongAnyOthers) {
  std::vector<int> counts{128, 300, 1000};
  for (int rows = 1; rows <= 70; ++rows) counts.push_back(rows);
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const DType dtype : kDTypes) {
      for (const auto& [out, in] : {std::pair{320, 896}, {129, 64}, {70, 333}}) {
        if (kSanitized && in > 64) continue;
        const TestWeight weight(*under_test.backend, dtype, out, in);
        for (const LinearVariant& variant : {LinearVariant{}, kVariants[1], kVariants[4]}) {
          LinearRun run(*under_test.backend, weight, 1000, variant);
          for (const Phase phase : kPhases) {
            const std::vector<std::byte> all = run.Run(phase);
            for (const int rows : counts) {
              const int first = rows * 13 % (1001 - rows);
              const std::vector<std::byte> some = run.Run(phase, first, rows);
              ASSERT_EQ(
                  std::memcmp(some.data(), all.data() + first * run.y_row_bytes(), some.size()), 0)
                  << Describe(under_test, weight, phase) << " rows " << rows;
            }
          }
        }
      }
    }
  }
}

// A few outputs have the bits that they have among all.
TEST(TwinLinearTest, TheFirstColumnsKeepTheirBits) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const DType dtype : kDTypes) {
      for (const auto& [out, in] : {std::pair{1024, 256}, {129, 65}}) {
        const TestWeight weight(*under_test.backend, dtype, out, in);
        for (const Phase phase : kPhases) {
          for (const int rows : {1, 20, 200}) {
            LinearRun whole(*under_test.backend, weight, rows, {.has_bias = true});
            LinearRun half(*under_test.backend, weight, rows, {.has_bias = true, .is_half = true});
            const std::vector<std::byte> all = whole.Run(phase), some = half.Run(phase);
            for (int row = 0; row < rows; ++row) {
              ASSERT_EQ(std::memcmp(some.data() + row * half.y_row_bytes(),
                                    all.data() + row * whole.y_row_bytes(), half.y_row_bytes()),
                        0)
                  << Describe(under_test, weight, phase) << " row " << row << " of " << rows;
            }
          }
        }
      }
    }
  }
}

TEST(TwinLinearTest, ANaNRowLeavesTheOthersAlone) {
  constexpr int kRows = 20, kBad = 7;
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const DType dtype : kDTypes) {
      for (const auto& [out, in] : {std::pair{40, 64}, {31, 65}}) {
        const TestWeight weight(*under_test.backend, dtype, out, in);
        for (const Phase phase : kPhases) {
          LinearRun run(*under_test.backend, weight, kRows, {});
          const std::vector<std::byte> clean = run.Run(phase);
          for (int k = 0; k < in; ++k) run.SetX(kBad, k, NAN);
          const std::vector<std::byte> dirty = run.Run(phase);
          for (int r = 0; r < kRows; ++r) {
            const size_t place = r * run.y_row_bytes();
            if (r == kBad) {
              for (int n = 0; n < out; ++n) {
                ASSERT_TRUE(std::isnan(ReadAs(DType::kF32, dirty.data() + place, n))) << n;
              }
            } else {
              ASSERT_EQ(std::memcmp(clean.data() + place, dirty.data() + place, run.y_row_bytes()),
                        0)
                  << Describe(under_test, weight, phase) << " row " << r;
            }
          }
        }
      }
    }
  }
}

TEST(TwinLinearTest, NoRowsTouchNothing) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const DType dtype : kDTypes) {
      const TestWeight weight(*under_test.backend, dtype, 16, 8);
      for (const Phase phase : kPhases) {
        LinearRun run(*under_test.backend, weight, 3, {});
        EXPECT_TRUE(run.Run(phase, 1, 0).empty());
      }
    }
  }
}

// Row i of x picks input i of every output.
TEST(TwinLinearTest, RandomWeightsAreTheSameEverywhere) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    Backend& backend = *under_test.backend;
    for (const DType dtype : kDTypes) {
      for (const auto& [out, in] : {std::pair{33, 40}, {7, 13}, {1025, 24}}) {
        const WeightSource source{.dtype = dtype,
                                  .out_features = out,
                                  .in_features = in,
                                  .random_seed = 0x1234567890abcdef,
                                  .random_scale = 0.02f};
        const auto packed = backend.PackWeight(source);
        EXPECT_EQ(packed->out_features(), out);
        EXPECT_EQ(packed->in_features(), in);
        EXPECT_GE(packed->bytes(), size_t(out) * in * BytesOf(dtype));
        const DType x_dtype = backend.ActivationDType(dtype);
        SharedArray<std::byte> x(backend, size_t(in) * in * BytesOf(x_dtype));
        for (int i = 0; i < in * in; ++i) {
          WriteAs(x_dtype, i % in == i / in ? 1.0f : 0.0f, x.data(), i);
        }
        SharedArray<float> y(backend, size_t(in) * out);
        backend.Linear({.x = x.data(),
                        .weight = packed.get(),
                        .y = y.data(),
                        .rows = in,
                        .x_stride = in,
                        .y_stride = out,
                        .x_dtype = x_dtype});
        backend.Synchronize();
        for (int i = 0; i < in; ++i) {
          for (int n = 0; n < out; ++n) {
            const float value = RandomWeight(source.random_seed, uint64_t(n) * in + i);
            ASSERT_EQ(y[size_t(i) * out + n], Rounded(dtype, value * source.random_scale))
                << under_test.name << " " << NameOf(dtype) << " output " << n << " input " << i;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace augur::kernels
