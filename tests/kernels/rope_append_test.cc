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

// One token: q and k turned, k and v in place.
void CheckRow(const HeadShape& shape, const PagedPool& pool, const RopeTable& rope, int position,
              int block, const float* before, const float* after, std::vector<bool>& is_written) {
  const int d = shape.head_dim;
  for (int h = 0; h < shape.num_q_heads + shape.num_kv_heads; ++h) {
    for (int i = 0; i < d; ++i) {
      ASSERT_NEAR(after[h * d + i], Rotated(before + h * d, rope, position, d / 2, i), 1e-6);
    }
  }
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    const float* k = after + (shape.num_q_heads + h) * d;
    const float* v = before + (shape.num_q_heads + shape.num_kv_heads + h) * d;
    const size_t entry_bytes = d * BytesOf(shape.dtype);
    const std::byte* entry =
        pool.kv().page(block, shape.layer, h) + position % kBlockTokens * entry_bytes;
    CheckEntry(pool, entry, k, is_written);
    CheckEntry(pool, entry + kBlockTokens * entry_bytes, v, is_written);
  }
}

void CheckStep(Backend& backend, const HeadShape& shape) {
  const RopeTable rope(300, shape.head_dim);
  PagedPool pool(shape, 12);
  std::vector<std::vector<int32_t>> tables;
  std::vector<Segment> segments;
  int rows = 0;
  for (const auto& [first, count] : {std::pair{0, 70}, {63, 1}, {64, 1}, {130, 9}}) {
    tables.push_back(pool.TakeBlocks(first + count));
    segments.push_back({rows, count, first, tables.back().data()});
    rows += count;
  }
  const std::vector<float> before = RandomFloats(size_t(rows) * shape.row_floats(), 5);
  std::vector<float> qkv = before;
  RopeAppendParams params;
  params.qkv = qkv.data();
  params.segments = segments.data();
  params.num_segments = static_cast<int>(segments.size());
  params.rows = rows;
  params.num_q_heads = shape.num_q_heads;
  params.layer = shape.layer;
  params.kv = pool.kv();
  params.cos = rope.cos.data();
  params.sin = rope.sin.data();
  backend.RopeAppend(params);

  std::vector<bool> is_written(pool.bytes().size(), false);
  for (const Segment& segment : segments) {
    for (int t = 0; t < segment.num_rows; ++t) {
      const size_t offset = size_t(segment.first_row + t) * shape.row_floats();
      const int position = segment.first_position + t;
      CheckRow(shape, pool, rope, position, segment.block_table[position / kBlockTokens],
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
          CheckStep(*backend,
                    {.num_q_heads = 4, .num_kv_heads = 2, .head_dim = head_dim, .dtype = dtype});
        }
      }
    }
  }
}

TEST(RopeAppendDeathTest, SegmentsMustCoverTheRows) {
  const HeadShape shape;
  const RopeTable rope(64, shape.head_dim);
  PagedPool pool(shape, 1);
  const std::vector<int32_t> blocks = pool.TakeBlocks(2);
  std::vector<float> qkv(size_t{2} * shape.row_floats());
  const Segment segment{0, 1, 0, blocks.data()};
  RopeAppendParams params;
  params.qkv = qkv.data();
  params.segments = &segment;
  params.num_segments = 1;
  params.rows = 2;
  params.num_q_heads = shape.num_q_heads;
  params.kv = pool.kv();
  params.cos = rope.cos.data();
  params.sin = rope.sin.data();
  const auto backend = MakeCpuBackend({1});
  EXPECT_DEATH(backend->RopeAppend(params), "CHECK failed");
}

}  // namespace
}  // namespace augur::kernels
