#include "kernels/ops/rope_append.h"

#include <gtest/gtest.h>

#include <cmath>
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

void CheckStep(Backend& backend, const HeadShape& shape) {
  const int d = shape.head_dim, half = d / 2;
  const RopeTable rope(300, d);
  PagedPool pool(shape, 12);
  struct Sequence {
    int first;
    int rows;
    std::vector<int32_t> blocks;
  };
  std::vector<Sequence> sequences = {{0, 70, {}}, {63, 1, {}}, {64, 1, {}}, {130, 9, {}}};
  std::vector<Segment> segments;
  int rows = 0;
  for (Sequence& s : sequences) {
    s.blocks = pool.TakeBlocks(s.first + s.rows);
    segments.push_back({rows, s.rows, s.first, s.blocks.data()});
    rows += s.rows;
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
  const size_t element = BytesOf(shape.dtype);
  for (size_t s = 0; s < sequences.size(); ++s) {
    for (int t = 0; t < sequences[s].rows; ++t) {
      const int row = segments[s].first_row + t;
      const int position = sequences[s].first + t;
      const float* old_row = before.data() + size_t(row) * shape.row_floats();
      const float* new_row = qkv.data() + size_t(row) * shape.row_floats();
      for (int h = 0; h < shape.num_q_heads; ++h) {
        for (int i = 0; i < d; ++i) {
          ASSERT_NEAR(new_row[h * d + i], Rotated(old_row + h * d, rope, position, half, i), 1e-6);
        }
      }
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        const float* old_k = old_row + (shape.num_q_heads + h) * d;
        const float* new_k = new_row + (shape.num_q_heads + h) * d;
        const float* v = old_row + (shape.num_q_heads + shape.num_kv_heads + h) * d;
        const std::byte* page =
            pool.kv().page(sequences[s].blocks[position / kBlockTokens], shape.layer, h);
        const size_t place = size_t(position % kBlockTokens) * d;
        for (int i = 0; i < d; ++i) {
          ASSERT_NEAR(new_k[i], Rotated(old_k, rope, position, half, i), 1e-6);
          std::byte rounded[4];
          WriteAs(shape.dtype, new_k[i], rounded, 0);
          ASSERT_EQ(std::memcmp(page + (place + i) * element, rounded, element), 0);
          const size_t v_place = (place + size_t{kBlockTokens} * d + i) * element;
          WriteAs(shape.dtype, v[i], rounded, 0);
          ASSERT_EQ(std::memcmp(page + v_place, rounded, element), 0);
          for (size_t b = 0; b < element; ++b) {
            is_written[page - pool.bytes().data() + (place + i) * element + b] = true;
            is_written[page - pool.bytes().data() + v_place + b] = true;
          }
        }
      }
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
