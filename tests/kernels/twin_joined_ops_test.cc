// Ops that a backend may make one pass of (backend.h): the bits of the two one after the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kv_page.h"
#include "kernels/random_weight.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

// silu(gate) * up of `rows` rows from `first` on, [rows, width] as bytes.
std::vector<std::byte> Gated(Backend& backend, const PackedWeight& weight, DType dtype, int first,
                             int rows, bool in_one) {
  const DType x_dtype = backend.ActivationDType(dtype);
  const int in = weight.in_features(), out = weight.out_features(), width = out / 2;
  constexpr int kRows = 40;
  const std::vector<float> values = RandomFloats(size_t{kRows} * in, 2);
  SharedArray<std::byte> x(backend, values.size() * BytesOf(x_dtype));
  for (size_t i = 0; i < values.size(); ++i) WriteAs(x_dtype, values[i], x.data(), i);
  SharedArray<std::byte> gate_up(backend, size_t(rows) * out * BytesOf(x_dtype));
  SharedArray<std::byte> activated(backend, size_t(rows + 1) * width * BytesOf(x_dtype));
  const LinearParams linear{.x = x.data() + size_t(first) * in * BytesOf(x_dtype),
                            .weight = &weight,
                            .y = gate_up.data(),
                            .rows = rows,
                            .x_stride = in,
                            .y_stride = out,
                            .phase = Phase::kDecode,
                            .beside_copies = rows % 2 == 0,
                            .x_dtype = x_dtype,
                            .y_dtype = x_dtype};
  const GatedSiluParams silu{.gate_up = gate_up.data(),
                             .out = activated.data(),
                             .rows = rows,
                             .width = width,
                             .dtype = x_dtype};
  if (in_one) {
    backend.GatedLinear(linear, silu);
  } else {
    backend.Linear(linear);
    backend.GatedSilu(silu);
  }
  backend.Synchronize();
  return activated.ToVector();  // with a row behind that nobody writes
}

void CheckGated(Backend& backend, const std::vector<std::array<int, 2>>& shapes) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const auto& [out, in] : shapes) {
      const auto weight = backend.PackWeight({.dtype = dtype,
                                              .out_features = out,
                                              .in_features = in,
                                              .random_seed = 7,
                                              .random_scale = 0.05f});
      for (const int rows : {1, 2, 7, 8, 9, 16, 17, 39}) {
        SCOPED_TRACE(testing::Message()
                     << NameOf(dtype) << " " << out << " x " << in << ", " << rows);
        ASSERT_TRUE(Gated(backend, *weight, dtype, 1, rows, true) ==
                    Gated(backend, *weight, dtype, 1, rows, false));
      }
    }
  }
}

TEST(TwinJoinedOpsTest, GatedLinear) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    SCOPED_TRACE(name);
    CheckGated(*backend, {{640, 512}, {142, 64}});
  }
}

// Streamed: shares of W that end within a tile, several chunks of columns, a half of odd length.
TEST(TwinJoinedOpsTest, GatedLinearOfFewRows) {
  const std::unique_ptr<Backend> backend = BackendForFewRows();
  if (backend == nullptr) GTEST_SKIP() << "no CUDA device";
  CheckGated(
      *backend,
      {{640, 512}, {3200, 512}, {496, 4096}, {1092, 4096}, {448, 4608}, {142, 512}, {8192, 4096}});
}

struct AppendShape {
  int num_kv_heads;
  int head_dim;
  DType dtype;
  bool fp8_rows;
};

constexpr int kQHeads = 4;
constexpr int kForecasts = 2;
constexpr int kBlocks = 3;  // of each sequence

// Sequences with a row each, and one that has none; their pages, then their compressed keys.
std::vector<std::byte> Appended(Backend& backend, const AppendShape& shape,
                                const std::vector<int>& positions, bool in_one) {
  const int heads = shape.num_kv_heads, d = shape.head_dim;
  const int rows = static_cast<int>(positions.size());
  const int stride = (kQHeads + 2 * heads + kForecasts) * d;
  const size_t page_bytes = size_t{2} * kBlockTokens * d * BytesOf(shape.dtype);
  SharedArray<float> qkv(backend, RandomFloats(size_t(rows) * stride, 7));
  SharedArray<float> cos(backend, RandomFloats(size_t{kBlocks} * kBlockTokens * d / 2, 8));
  SharedArray<float> sin(backend, RandomFloats(size_t{kBlocks} * kBlockTokens * d / 2, 9));
  SharedArray<float> forecasts(backend, std::vector<float>(size_t(rows) * kForecasts * d));
  const size_t pages_of_row = size_t{kBlocks} * heads;
  SharedArray<std::byte> pool(backend, rows * (pages_of_row + heads) * page_bytes);
  const std::vector<float> history =
      RandomFloats(rows * pages_of_row * page_bytes / BytesOf(shape.dtype), 5);
  for (size_t i = 0; i < history.size(); ++i) WriteAs(shape.dtype, history[i], pool.data(), i);
  std::byte* const keys = pool.data() + rows * pages_of_row * page_bytes;
  SharedArray<std::byte*> pages(backend, rows * pages_of_row);
  SharedArray<std::byte*> key_pages(backend, size_t(rows) * heads);
  for (size_t i = 0; i < pages.size(); ++i) pages[i] = pool.data() + i * page_bytes;
  for (size_t i = 0; i < key_pages.size(); ++i) key_pages[i] = keys + i * page_bytes;
  SharedArray<AppendSegment> append(backend, rows);
  SharedArray<CompressSegment> compress(backend, rows);
  for (int row = 0; row < rows; ++row) {
    const Segment segment{row, positions[row] < 0 ? 0 : 1, std::max(positions[row], 0)};
    std::byte** const first = pages.data() + row * pages_of_row;
    const int block = segment.first_position / kBlockTokens;
    append[row] = {
        .rows = segment, .pages = first + block, .block_stride = 1, .head_stride = kBlocks};
    compress[row] = {.rows = segment,
                     .pages = first + block - 1,
                     .block_stride = 1,
                     .head_stride = kBlocks,
                     .key_pages = key_pages.data() + row * heads,
                     .key_page_stride = 1};
  }
  const RopeAppendParams rope{.qkv = qkv.data(),
                              .segments = append.data(),
                              .num_segments = rows,
                              .rows = rows,
                              .row_stride = stride,
                              .num_q_heads = kQHeads,
                              .num_kv_heads = heads,
                              .num_forecast_heads = kForecasts,
                              .head_dim = d,
                              .dtype = shape.dtype,
                              .cos = cos.data(),
                              .sin = sin.data(),
                              .forecasts = forecasts.data(),
                              .num_forecasts = kForecasts,
                              .fp8_rows = shape.fp8_rows};
  const CompressKeysParams windows{.segments = compress.data(),
                                   .num_segments = rows,
                                   .num_kv_heads = heads,
                                   .head_dim = d,
                                   .dtype = shape.dtype};
  if (in_one) {
    backend.AppendAndCompress(rope, windows);
  } else {
    backend.RopeAppend(rope);
    backend.CompressKeys(windows);
  }
  backend.Synchronize();
  std::vector<std::byte> all = pool.ToVector();
  const std::vector<float> turned = qkv.ToVector();
  const size_t before = all.size();
  all.resize(before + turned.size() * sizeof(float));
  std::memcpy(all.data() + before, turned.data(), turned.size() * sizeof(float));
  return all;
}

TEST(TwinJoinedOpsTest, AppendAndCompress) {
  // Ends of windows, within a block and behind its edge, and rows that end none.
  const std::vector<int> positions = {31, 5, -1, 47, 63, 64, 79, 100, 127, 128, 143, 191};
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const AppendShape& shape : {AppendShape{2, 128, DType::kBF16, false},
                                     {2, 64, DType::kBF16, true},
                                     {8, 128, DType::kF16, false},
                                     {1, 6, DType::kF32, false}}) {
      SCOPED_TRACE(name + " d " + std::to_string(shape.head_dim));
      const std::vector<std::byte> in_one = Appended(*backend, shape, positions, true);
      EXPECT_TRUE(in_one == Appended(*backend, shape, positions, false));
      EXPECT_FALSE(in_one ==
                   Appended(*backend, shape, std::vector<int>(positions.size(), -1), true));
    }
  }
}

}  // namespace
}  // namespace augur::kernels
