#include <gtest/gtest.h>

#include <vector>

#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

struct KeyShape {
  int num_kv_heads;
  int head_dim;
  DType dtype;

  size_t entry_bytes() const { return head_dim * BytesOf(dtype); }
  size_t page_bytes() const { return 2 * kBlockTokens * entry_bytes(); }
  size_t key_bytes() const { return kBlockWindows * entry_bytes(); }
};

// A sequence's pages [blocks][num_kv_heads], of which all but the keys of its tokens is NaN, and a
// home for its compressed keys, [num_kv_heads][key pages].
class CompressedSequence {
 public:
  CompressedSequence(Backend& backend, const KeyShape& shape, int tokens)
      : backend_(&backend),
        shape_(shape),
        blocks_((tokens + kBlockTokens - 1) / kBlockTokens),
        pages_(backend, blocks_ * shape.num_kv_heads * shape.page_bytes()),
        key_pages_(static_cast<int>(blocks_) / kKeyPageBlocks + 1),
        keys_(backend,
              size_t(key_pages_) * kKeyPageBlocks * shape.num_kv_heads * shape.key_bytes()) {
    const size_t d = shape.head_dim;
    const std::vector<float> values = RandomFloats(tokens * shape.num_kv_heads * d, 17);
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t t = i / d / shape.num_kv_heads, h = i / d % shape.num_kv_heads;
      WriteAs(shape.dtype, values[i], Page(t / kBlockTokens, h), t % kBlockTokens * d + i % d);
    }
  }

  // The tokens [first, first + count). Entry 0 is null where the header allows it.
  CompressSegment Segment(int first_row, int first, int count) {
    CompressSegment segment;
    segment.rows = {first_row, count, first};
    if (count == 0) return segment;  // whose lists are never read
    const int first_block = first / kBlockTokens,
              end_block = (first + count - 1) / kBlockTokens + 1;
    const bool reads_before = first_block > 0 && first % kBlockTokens <= 15 &&
                              first + count > first_block * kBlockTokens + 15;
    std::vector<const std::byte*> pages;
    for (int b = first_block - 1; b < end_block; ++b) {
      for (int h = 0; h < shape_.num_kv_heads; ++h) {
        pages.push_back(b >= first_block || reads_before ? Page(b, h) : nullptr);
      }
    }
    std::vector<std::byte*> keys;
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      for (int page = 0; page < key_pages_; ++page) {
        keys.push_back(keys_.data() + KeyOffset(page * kKeyPageBlocks, h));
      }
    }
    page_lists_.emplace_back(*backend_, pages);
    key_lists_.emplace_back(*backend_, keys);
    segment.pages = page_lists_.back().data();
    segment.key_pages = key_lists_.back().data();
    segment.key_page_stride = key_pages_;
    return segment;
  }

  // Only the windows that end in [first, end), by the definition, in the order of its sums.
  std::vector<std::byte> Expected(int first, int end) const {
    std::vector<std::byte> expected(keys_.size(), std::byte{0xff});
    for (int window = 0; kWindowStride * window + kWindowTokens <= end; ++window) {
      const int last = kWindowStride * window + kWindowTokens - 1;
      if (last < first) continue;
      const int block = last / kBlockTokens;
      const size_t place = window - (kBlockWindows * block - 1);
      for (int h = 0; h < shape_.num_kv_heads; ++h) {
        for (int c = 0; c < shape_.head_dim; ++c) {
          float halves[2] = {};
          for (int i = 0; i < kWindowTokens; ++i) {
            const int t = kWindowStride * window + i;
            halves[i / 16] += ReadAs(shape_.dtype, Page(t / kBlockTokens, h),
                                     size_t(t % kBlockTokens) * shape_.head_dim + c);
          }
          WriteAs(shape_.dtype, (halves[0] + halves[1]) / 32.0f,
                  expected.data() + KeyOffset(block, h), place * shape_.head_dim + c);
        }
      }
    }
    return expected;
  }

  std::vector<std::byte> keys() const { return keys_.ToVector(); }

 private:
  std::byte* Page(size_t block, size_t head) {
    return pages_.data() + (block * shape_.num_kv_heads + head) * shape_.page_bytes();
  }
  const std::byte* Page(size_t block, size_t head) const {
    return pages_.data() + (block * shape_.num_kv_heads + head) * shape_.page_bytes();
  }
  size_t KeyOffset(size_t block, size_t head) const {
    return (head * key_pages_ * kKeyPageBlocks + block) * shape_.key_bytes();
  }

  Backend* backend_;
  KeyShape shape_;
  size_t blocks_;
  SharedArray<std::byte> pages_;
  int key_pages_;
  SharedArray<std::byte> keys_;
  std::vector<SharedArray<const std::byte*>> page_lists_;
  std::vector<SharedArray<std::byte*>> key_lists_;
};

void Compress(Backend& backend, const KeyShape& shape,
              const std::vector<CompressSegment>& segments) {
  const SharedArray<CompressSegment> shared(backend, segments);
  backend.CompressKeys({.segments = shared.data(),
                        .num_segments = static_cast<int>(segments.size()),
                        .num_kv_heads = shape.num_kv_heads,
                        .head_dim = shape.head_dim,
                        .dtype = shape.dtype});
  backend.Synchronize();
}

std::vector<KeyShape> KeyShapes() {
  std::vector<KeyShape> shapes;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int head_dim : {6, 64, 128}) shapes.push_back({2, head_dim, dtype});
    shapes.push_back({1, 40, dtype});
  }
  return shapes;
}

struct Range {
  int first, count;
};

TEST(TwinCompressKeysTest, WritesTheWindowsThatEndInTheRowsAndNoOther) {
  const Range ranges[] = {{0, 1},    {0, 31},  {0, 32},    {0, 63},    {0, 64},  {0, 65},
                          {0, 1000}, {0, 200}, {15, 1},    {31, 1},    {30, 1},  {32, 1},
                          {63, 1},   {64, 15}, {64, 16},   {79, 1},    {80, 48}, {70, 130},
                          {127, 66}, {96, 1},  {128, 300}, {1000, 65}, {50, 0},  {1, 999}};
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const KeyShape& shape : KeyShapes()) {
      for (const auto& [first, count] : ranges) {
        CompressedSequence sequence(*backend, shape, first + count);
        Compress(*backend, shape, {sequence.Segment(0, first, count)});
        ASSERT_EQ(sequence.keys(), sequence.Expected(first, first + count))
            << name << " " << NameOf(shape.dtype) << " " << first << " " << count;
      }
    }
  }
}

TEST(TwinCompressKeysTest, ALongChunk) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int head_dim : {6, 128}) {
      const KeyShape shape{2, head_dim, DType::kBF16};
      CompressedSequence sequence(*backend, shape, 4097 + 40);
      Compress(*backend, shape, {sequence.Segment(0, 40, 4097)});
      ASSERT_EQ(sequence.keys(), sequence.Expected(40, 4097 + 40)) << name;
    }
  }
}

// A ragged batch in which most segments end no window, and some have no rows; a call in which each
// is alone leaves the same.
TEST(TwinCompressKeysTest, ABatchIsTheSameAsItsSegmentsAlone) {
  const Range ranges[] = {{500, 1}, {511, 1}, {0, 0},    {0, 100}, {47, 1},  {64, 1},
                          {79, 1},  {200, 0}, {333, 70}, {62, 1},  {95, 130}};
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const KeyShape& shape : KeyShapes()) {
      std::vector<CompressedSequence> sequences;
      sequences.reserve(std::size(ranges));
      std::vector<CompressSegment> segments;
      int rows = 0;
      for (const auto& [first, count] : ranges) {
        sequences.emplace_back(*backend, shape, first + count);
        segments.push_back(sequences.back().Segment(rows, first, count));
        rows += count;
      }
      Compress(*backend, shape, segments);
      for (size_t s = 0; s < segments.size(); ++s) {
        const auto& [first, count] = ranges[s];
        ASSERT_EQ(sequences[s].keys(), sequences[s].Expected(first, first + count)) << name << s;
      }
    }
  }
}

// Token after token, as decoding does.
TEST(TwinCompressKeysTest, OneTokenACallComesToTheSame) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    const KeyShape shape{2, 64, DType::kBF16};
    CompressedSequence sequence(*backend, shape, 200);
    for (int t = 0; t < 200; ++t) Compress(*backend, shape, {sequence.Segment(0, t, 1)});
    ASSERT_EQ(sequence.keys(), sequence.Expected(0, 200)) << name;
  }
}

}  // namespace
}  // namespace augur::kernels
