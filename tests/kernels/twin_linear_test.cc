// Linear on every backend: close to double, a row's bits the same among any others, nothing written
// beside y.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/ops/linear.h"
#include "kernels/random_weight.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

struct Problem {
  int rows = 1;
  int out = 1;
  int in = 1;
  DType dtype = DType::kF32;
  Phase phase = Phase::kPrefill;
  bool narrow_y = false;  // y in x's type
  bool has_bias = false;
  bool accumulate = false;
  int x_pad = 0;
  int y_pad = 0;
  int columns = 0;
};

std::string Describe(const Problem& p) {
  return std::string(NameOf(p.dtype)) + (p.phase == Phase::kDecode ? " decode" : " prefill") +
         " rows " + std::to_string(p.rows) + " out " + std::to_string(p.out) + " in " +
         std::to_string(p.in) + (p.narrow_y ? " narrow y" : "") + (p.has_bias ? " bias" : "") +
         (p.accumulate ? " accumulate" : "") + " columns " + std::to_string(p.columns);
}

constexpr float kUntouched = 123.5f;  // exact in every type

// Device memory that starts as `values` in `dtype`.
class DeviceMatrix {
 public:
  DeviceMatrix(Backend& backend, DType dtype, const std::vector<float>& values)
      : backend_(backend), dtype_(dtype), staging_(backend, values.size() * BytesOf(dtype)) {
    data_ = static_cast<std::byte*>(backend.Allocate(staging_.size()));
    AUGUR_CHECK(data_ != nullptr);
    for (size_t i = 0; i < values.size(); ++i) WriteAs(dtype, values[i], staging_.data(), i);
    backend.Copy(data_, staging_.data(), staging_.size());
  }
  ~DeviceMatrix() { backend_.Free(data_); }
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;

  std::byte* at(size_t element) { return data_ + element * BytesOf(dtype_); }

  std::vector<float> Read() {
    backend_.Copy(staging_.data(), data_, staging_.size());
    backend_.Synchronize();
    std::vector<float> values(staging_.size() / BytesOf(dtype_));
    for (size_t i = 0; i < values.size(); ++i) values[i] = ReadAs(dtype_, staging_.data(), i);
    return values;
  }

 private:
  Backend& backend_;
  DType dtype_;
  SharedArray<std::byte> staging_;
  std::byte* data_ = nullptr;
};

// A problem's numbers on one backend.
class Case {
 public:
  Case(Backend& backend, const Problem& p)
      : problem(p),
        backend_(backend),
        x_dtype_(backend.ActivationDType(p.dtype)),
        weight_(p.dtype, RandomFloats(size_t(p.out) * p.in, 1)),
        x_values_(x_dtype_, RandomFloats(size_t(p.rows) * x_stride(), 2)),
        bias_values_(RandomFloats(p.out, 3)),
        old_y_(size_t(p.rows) * y_stride(), kUntouched),
        packed_(backend.PackWeight({weight_.bytes.data(), p.dtype, p.out, p.in})),
        x_(backend, x_dtype_, x_values_.values),
        bias_(backend, DType::kF32, bias_values_) {
    const std::vector<float> random = RandomFloats(old_y_.size(), 4);
    for (size_t i = 0; p.accumulate && i < old_y_.size(); ++i) {
      if (static_cast<int>(i % y_stride()) < columns()) old_y_[i] = random[i];
    }
  }

  int columns() const { return problem.columns == 0 ? problem.out : problem.columns; }
  int x_stride() const { return problem.in + problem.x_pad; }
  int y_stride() const { return columns() + problem.y_pad; }
  DType y_dtype() const { return problem.narrow_y ? x_dtype_ : DType::kF32; }

  // Rows [first, first + rows); the whole y comes back.
  std::vector<float> Run(int first, int rows, bool recorded = false, int room_rows = 0) {
    DeviceMatrix y(backend_, y_dtype(), old_y_);
    const LinearParams params{
        .x = x_.at(size_t(first) * x_stride()),
        .weight = packed_.get(),
        .bias = problem.has_bias ? reinterpret_cast<float*>(bias_.at(0)) : nullptr,
        .y = y.at(size_t(first) * y_stride()),
        .rows = rows,
        .room_rows = room_rows,
        .x_stride = x_stride(),
        .y_stride = y_stride(),
        .accumulate = problem.accumulate,
        .columns = problem.columns,
        .phase = problem.phase,
        .x_dtype = x_dtype_,
        .y_dtype = y_dtype()};
    if (recorded) {
      const auto graph = backend_.Record([&](Backend* backend) { backend->Linear(params); });
      backend_.Launch(*graph);
      return y.Read();
    }
    backend_.Linear(params);
    return y.Read();
  }
  std::vector<float> Run() { return Run(0, problem.rows); }

  // Errors within what float32 sums and one rounding to y's type leave; y's gaps untouched.
  void ExpectClose(const std::vector<float>& y) const {
    const double rounding = y_dtype() == DType::kBF16  ? 0x1p-8
                            : y_dtype() == DType::kF16 ? 0x1p-11
                                                       : 0x1p-23;
    for (size_t i = 0; i < y.size(); ++i) {
      const int row = static_cast<int>(i / y_stride());
      const int column = static_cast<int>(i % y_stride());
      if (column >= columns()) {
        ASSERT_EQ(y[i], kUntouched) << Describe(problem) << " row " << row;
        continue;
      }
      double sum = 0.0, magnitude = 0.0;
      for (int k = 0; k < problem.in; ++k) {
        const double product = double(weight_.values[size_t(column) * problem.in + k]) *
                               x_values_.values[size_t(row) * x_stride() + k];
        sum += product;
        magnitude += std::abs(product);
      }
      if (problem.has_bias) sum += bias_values_[column];
      if (problem.accumulate) sum += old_y_[i];
      ASSERT_NEAR(y[i], sum, 4e-6 * magnitude + 2 * rounding * std::abs(sum) + 1e-6)
          << Describe(problem) << " row " << row << " column " << column;
    }
  }

  Problem problem;

 private:
  Backend& backend_;
  DType x_dtype_;
  TypedMatrix weight_;
  TypedMatrix x_values_;
  std::vector<float> bias_values_, old_y_;
  std::unique_ptr<PackedWeight> packed_;
  DeviceMatrix x_, bias_;
};

std::vector<Problem> Problems(const BackendUnderTest& under_test) {
  std::vector<Problem> problems;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      // The first ones are odd in every way; the last ones aligned, as real models are.
      for (const auto& [rows, out, in] : {std::array{1, 1, 1},
                                          {2, 31, 64},
                                          {3, 64, 5},
                                          {13, 129, 300},
                                          {97, 40, 33},
                                          {7, 320, 512},
                                          {64, 256, 128},
                                          {300, 136, 200}}) {
        const Problem plain{.rows = rows, .out = out, .in = in, .dtype = dtype, .phase = phase};
        problems.push_back(plain);
        Problem added = plain;
        added.has_bias = added.accumulate = true;
        problems.push_back(added);
        added.x_pad = 3;
        added.y_pad = 5;
        problems.push_back(added);
        Problem biased = plain;
        biased.has_bias = true;
        biased.columns = (out + 1) / 2;
        problems.push_back(biased);
        if (!under_test.on_device || dtype == DType::kF32) continue;
        Problem narrow = plain;
        narrow.narrow_y = true;
        problems.push_back(narrow);
        narrow.has_bias = true;
        narrow.y_pad = 1;
        problems.push_back(narrow);
      }
    }
  }
  return problems;
}

TEST(TwinLinearTest, IsCloseToDouble) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    SCOPED_TRACE(under_test.name);
    for (const Problem& problem : Problems(under_test)) {
      Case tested(*under_test.backend, problem);
      tested.ExpectClose(tested.Run());
      if (HasFatalFailure()) return;
    }
  }
}

// Aligned shapes large enough that cuBLASLt would like to split sums; the odd one goes by scratch.
TEST(TwinLinearTest, ARowHasTheSameBitsAloneAndAmongAnyOthers) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    if (kSanitized && !under_test.on_device) continue;
    SCOPED_TRACE(under_test.name);
    for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
      for (const auto& [out, in] : {std::array{256, 4096}, {1536, 1024}, {70, 333}}) {
        for (const bool narrow : {false, true}) {
          if (narrow && !under_test.on_device) continue;
          Case tested(*under_test.backend, {.rows = under_test.on_device ? 600 : 40,
                                            .out = out,
                                            .in = in,
                                            .dtype = DType::kBF16,
                                            .phase = phase,
                                            .narrow_y = narrow,
                                            .has_bias = !narrow,
                                            .accumulate = !narrow});
          const int all = tested.problem.rows;
          const std::vector<float> expected = tested.Run();
          for (const int rows : {1, 2, 3, 15, 16, 17, 33, 64, 65, 127, 256, 257, 599}) {
            for (const int first : {0, 5, all - rows}) {
              if (first < 0 || first + rows > all) continue;
              const std::vector<float> y = tested.Run(first, rows);
              const size_t begin = size_t(first) * tested.y_stride();
              ASSERT_TRUE(SameBits(y.data() + begin, expected.data() + begin,
                                   size_t(rows) * tested.y_stride()))
                  << Describe(tested.problem) << ": rows " << rows << " from " << first;
            }
          }
        }
      }
    }
  }
}

// With room behind its rows a call may compute more of them, up to the room's end, and its own rows
// keep their bits. Weights large enough to be timed.
TEST(TwinLinearTest, RoomBehindTheRowsChangesNoneOfThem) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    SCOPED_TRACE(under_test.name);
    for (const bool accumulate : {false, true}) {
      Case tested(*under_test.backend, {.rows = 80,
                                        .out = 1536,
                                        .in = 1024,
                                        .dtype = DType::kBF16,
                                        .phase = Phase::kDecode,
                                        .accumulate = accumulate});
      const std::vector<float> expected = tested.Run();
      const size_t begin = tested.y_stride();
      for (const int rows : {1, 4, 5, 16, 33, 64}) {
        for (const int room : {rows, rows + 1, 79}) {
          const std::vector<float> y = tested.Run(1, rows, /*recorded=*/false, room);
          const std::vector<float> without = tested.Run(1, rows);
          ASSERT_TRUE(SameBits(y.data() + begin, expected.data() + begin,
                               size_t(rows) * tested.y_stride()));
          const size_t end = begin + size_t(room) * tested.y_stride();
          ASSERT_TRUE(SameBits(y.data(), without.data(), begin));
          ASSERT_TRUE(SameBits(y.data() + end, without.data() + end, y.size() - end));
        }
      }
    }
  }
}

// Beside copies: a weight large enough that the trial holds SMs while it times (linear_plans.h).
TEST(TwinLinearTest, WithFewerSmsProductsAreCloseAndARowKeepsItsBits) {
  const std::unique_ptr<Backend> backend = BackendLeavingSms(8);
  if (backend == nullptr) GTEST_SKIP() << "no CUDA device";
  for (const bool narrow : {false, true}) {
    Case tested(*backend, {.rows = 64,
                           .out = 1536,
                           .in = 1024,
                           .dtype = DType::kBF16,
                           .phase = Phase::kDecode,
                           .narrow_y = narrow});
    const std::vector<float> expected = tested.Run();
    tested.ExpectClose(expected);
    if (HasFatalFailure()) return;
    for (const int rows : {1, 4, 17, 63}) {
      const std::vector<float> y = tested.Run(1, rows);
      const size_t begin = tested.y_stride();
      ASSERT_TRUE(
          SameBits(y.data() + begin, expected.data() + begin, size_t(rows) * tested.y_stride()));
    }
  }
}

// Shapes of which some are not timed, so that weights are streamed there (streamed_linear.h): one
// and several chunks of columns, shares of W that end within a tile.
TEST(TwinLinearTest, ProductsOfFewRowsAreCloseAndARowKeepsItsBits) {
  const std::unique_ptr<Backend> backend = BackendForFewRows();
  if (backend == nullptr) GTEST_SKIP() << "no CUDA device";
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [out, in] : {std::array{320, 512},
                                  {1600, 512},
                                  {248, 4096},
                                  {224, 4608},
                                  {71, 512},
                                  {4096, 4096}}) {
      for (const bool narrow : {false, true}) {
        Case tested(*backend, {.rows = 40,
                               .out = out,
                               .in = in,
                               .dtype = dtype,
                               .phase = Phase::kDecode,
                               .narrow_y = narrow,
                               .has_bias = out % 16 == 0,
                               .accumulate = !narrow});
        const std::vector<float> expected = tested.Run();
        if (out < 4096) tested.ExpectClose(expected);
        if (HasFatalFailure()) return;
        for (const int rows : {1, 2, 7, 8, 9, 16, 17, 39}) {
          const std::vector<float> y = tested.Run(1, rows);
          const size_t begin = tested.y_stride();
          ASSERT_TRUE(
              SameBits(y.data() + begin, expected.data() + begin, size_t(rows) * tested.y_stride()))
              << Describe(tested.problem) << ": " << rows;
        }
      }
    }
  }
}

TEST(TwinLinearTest, FewerColumnsHaveTheBitsThatTheyHaveAmongAll) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    SCOPED_TRACE(under_test.name);
    for (const int columns : {1, 64, 100}) {
      Problem problem{.rows = 20, .out = 192, .in = 256, .dtype = DType::kBF16, .has_bias = true};
      Case all(*under_test.backend, problem);
      problem.columns = columns;
      Case some(*under_test.backend, problem);
      const std::vector<float> expected = all.Run();
      const std::vector<float> y = some.Run();
      for (int row = 0; row < problem.rows; ++row) {
        ASSERT_TRUE(SameBits(y.data() + row * columns, expected.data() + row * 192, columns));
      }
    }
  }
}

TEST(TwinLinearTest, ARecordedCallGivesTheSameBits) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    SCOPED_TRACE(under_test.name);
    for (const Problem& problem : Problems(under_test)) {
      if (problem.rows != 64 && problem.rows != 13) continue;
      Case tested(*under_test.backend, problem);
      const std::vector<float> expected = tested.Run();
      ASSERT_TRUE(SameBits(tested.Run(0, problem.rows, /*recorded=*/true), expected))
          << Describe(problem);
    }
  }
}

TEST(TwinLinearTest, ANaNRowLeavesTheOthersAlone) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    SCOPED_TRACE(under_test.name);
    Backend& backend = *under_test.backend;
    constexpr int kRows = 20, kOut = 40, kIn = 64;
    const DType x_dtype = backend.ActivationDType(DType::kBF16);
    const TypedMatrix weight(DType::kBF16, RandomFloats(kOut * kIn, 1));
    const auto packed = backend.PackWeight({weight.bytes.data(), weight.dtype, kOut, kIn});
    const auto run = [&](const std::vector<float>& x_values) {
      DeviceMatrix x(backend, x_dtype, x_values);
      DeviceMatrix y(backend, DType::kF32, std::vector<float>(kRows * kOut, NAN));
      backend.Linear({.x = x.at(0),
                      .weight = packed.get(),
                      .y = y.at(0),
                      .rows = kRows,
                      .x_stride = kIn,
                      .y_stride = kOut,
                      .x_dtype = x_dtype});
      return y.Read();
    };
    std::vector<float> x = RandomFloats(kRows * kIn, 2);
    const std::vector<float> clean = run(x);
    std::fill_n(x.begin() + 7 * kIn, kIn, NAN);
    const std::vector<float> dirty = run(x);
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < kOut; ++column) {
        const int i = row * kOut + column;
        EXPECT_EQ(std::isnan(dirty[i]), row == 7);
        if (row == 7) continue;
        EXPECT_EQ(dirty[i], clean[i]);
      }
    }
  }
}

// The rows of the unit matrix read a weight out, exactly.
TEST(TwinLinearTest, RandomWeightsAreTheSameOnEveryBackend) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    SCOPED_TRACE(under_test.name);
    Backend& backend = *under_test.backend;
    constexpr int kOut = 37, kIn = 70;
    constexpr uint64_t kSeed = 11;
    constexpr float kScale = 0.02f;
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      const DType x_dtype = backend.ActivationDType(dtype);
      const auto packed = backend.PackWeight({.dtype = dtype,
                                              .out_features = kOut,
                                              .in_features = kIn,
                                              .random_seed = kSeed,
                                              .random_scale = kScale});
      std::vector<float> unit(kIn * kIn, 0.0f);
      for (int i = 0; i < kIn; ++i) unit[i * kIn + i] = 1.0f;
      DeviceMatrix x(backend, x_dtype, unit);
      DeviceMatrix y(backend, DType::kF32, std::vector<float>(kIn * kOut, kUntouched));
      backend.Linear({.x = x.at(0),
                      .weight = packed.get(),
                      .y = y.at(0),
                      .rows = kIn,
                      .x_stride = kIn,
                      .y_stride = kOut,
                      .x_dtype = x_dtype});
      const std::vector<float> read = y.Read();
      for (int out = 0; out < kOut; ++out) {
        for (int in = 0; in < kIn; ++in) {
          const TypedMatrix expected(dtype, {RandomWeight(kSeed, out * kIn + in) * kScale});
          ASSERT_EQ(read[in * kOut + out], expected.values[0]) << NameOf(dtype);
        }
      }
    }
  }
}

}  // namespace
}  // namespace augur::kernels
