#include "kernels/ops/rope_append.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/kernels/paged_sequence.h"

namespace augur::kernels {
namespace {

// Rotation of element i of a head, in double with the table's float angles.
double Rotated(const float* head, const RopeTable& rope, int position, int half, int i) {
  const double c = rope.cos[size_t(position) * half + i % half];
  const double s = rope.sin[size_t(position) * half + i % half];
  return i < half ? head[i] * c - head[i + half] * s : head[i] * c + head[i - half] * s;
}

// One token's k or v of one head, as it lies in a pool; marks its bytes as accounted for.
void CheckEntry(const PagedPool& pool, const std::byte* entry, const float* expected,
                std::vector<bool>& is_written) {
  const size_t element = BytesOf(pool.kv().dtype);
  for (int i = 0; i < pool.kv().head_dim; ++i) {
    std::byte rounded[4];
    WriteAs(pool.kv().dtype, expected[i], rounded, 0);
    ASSERT_EQ(std::memcmp(entry + i * element, rounded, element), 0);
  }
  const size_t first = entry - pool.bytes().data();
  for (size_t b = 0; b < pool.kv().head_dim * element; ++b) is_written[first + b] = true;
}

// A shape's row with forecast heads and something behind them.
struct RowShape {
  HeadShape heads;
  int num_forecast_heads = 0;
  int rest = 0;  // floats

  int stride() const { return heads.row_floats() + num_forecast_heads * heads.head_dim + rest; }
};

// One token: q, k and forecast heads turned, the rest of the row left alone, k and v in place.
void CheckRow(const RowShape& row, const PagedPool& pool, const RopeTable& rope, int position,
              int block, const float* before, const float* after, std::vector<bool>& is_written) {
  const HeadShape& shape = row.heads;
  const int d = shape.head_dim;
  const int first_v = shape.num_q_heads + shape.num_kv_heads;
  const int first_forecast = first_v + shape.num_kv_heads;
  for (int i = 0; i < row.stride(); ++i) {
    const int h = i / d;
    const bool is_turned =
        h < first_v || (h >= first_forecast && h < first_forecast + row.num_forecast_heads);
    const double expected =
        is_turned ? Rotated(before + h * d, rope, position, d / 2, i % d) : before[i];
    ASSERT_NEAR(after[i], expected, is_turned ? 1e-6 : 0.0) << "head " << h;
  }
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    const float* k = after + (shape.num_q_heads + h) * d;
    const float* v = before + (first_v + h) * d;
    const size_t entry_bytes = d * BytesOf(shape.dtype);
    const std::byte* entry =
        pool.kv().page(block, shape.layer, h) + position % kBlockTokens * entry_bytes;
    CheckEntry(pool, entry, k, is_written);
    CheckEntry(pool, entry + kBlockTokens * entry_bytes, v, is_written);
  }
}

RopeAppendParams ParamsOf(const RowShape& row, const RopeTable& rope, std::vector<float>& qkv) {
  RopeAppendParams params;
  params.qkv = qkv.data();
  params.rows = static_cast<int>(qkv.size()) / row.stride();
  params.row_stride = row.stride();
  params.num_q_heads = row.heads.num_q_heads;
  params.num_kv_heads = row.heads.num_kv_heads;
  params.num_forecast_heads = row.num_forecast_heads;
  params.head_dim = row.heads.head_dim;
  params.dtype = row.heads.dtype;
  params.cos = rope.cos.data();
  params.sin = rope.sin.data();
  return params;
}

void CheckStep(Backend& backend, const RowShape& row) {
  const RopeTable rope(300, row.heads.head_dim);
  PagedPool pool(row.heads, 12);
  std::vector<std::vector<int32_t>> tables;
  std::vector<std::vector<std::byte*>> pages;
  std::vector<AppendSegment> segments;
  int rows = 0;
  for (const auto& [first, count] : {std::pair{0, 70}, {63, 1}, {64, 1}, {130, 9}}) {
    tables.push_back(pool.TakeBlocks(first + count));
    const Piece piece{nullptr, nullptr, first, count};
    pages.push_back(
        PagesByBlock(row.heads, pool.kv(), tables.back(), piece.first_block(), piece.end_block()));
    segments.push_back({{rows, count, first}, pages.back().data()});
    rows += count;
  }
  const std::vector<float> before = RandomFloats(size_t(rows) * row.stride(), 5);
  std::vector<float> qkv = before;
  RopeAppendParams params = ParamsOf(row, rope, qkv);
  params.segments = segments.data();
  params.num_segments = static_cast<int>(segments.size());
  backend.RopeAppend(params);

  std::vector<bool> is_written(pool.bytes().size(), false);
  for (size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s].rows;
    for (int t = 0; t < segment.num_rows; ++t) {
      const size_t offset = size_t(segment.first_row + t) * row.stride();
      const int position = segment.first_position + t;
      CheckRow(row, pool, rope, position, tables[s][position / kBlockTokens],
               before.data() + offset, qkv.data() + offset, is_written);
    }
  }
  for (size_t i = 0; i < is_written.size(); ++i) {
    if (is_written[i]) continue;
    ASSERT_EQ(pool.bytes()[i], std::byte{0xff}) << "stray write at " << i;
  }
}

TEST(RopeAppendTest, RotatesAndWritesEachTokensPlaceOnly) {
  for (const CpuIsa isa : IsasHere()) {
    for (const int threads : {1, 2}) {
      const auto backend = MakeCpuBackend({threads, isa});
      for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const int head_dim : {2, 6, 16, 40, 64}) {
          const HeadShape heads{4, 2, head_dim, dtype};
          CheckStep(*backend, {heads});
          CheckStep(*backend, {heads, 2, 5});
        }
      }
    }
  }
}

TEST(RopeAppendDeathTest, SegmentsMustLieInTheRows) {
  const RowShape row;
  const RopeTable rope(64, row.heads.head_dim);
  PagedPool pool(row.heads, 1);
  const std::vector<int32_t> blocks = pool.TakeBlocks(2);
  const std::vector<std::byte*> pages = PagesByBlock(row.heads, pool.kv(), blocks, 0, 1);
  std::vector<float> qkv(size_t{2} * row.stride());
  const AppendSegment segment{{1, 2, 0}, pages.data()};
  RopeAppendParams params = ParamsOf(row, rope, qkv);
  params.segments = &segment;
  params.num_segments = 1;
  const auto backend = MakeCpuBackend({1});
  EXPECT_DEATH(backend->RopeAppend(params), "CHECK failed");
}

}  // namespace
}  // namespace augur::kernels
