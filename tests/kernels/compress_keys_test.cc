#include "kernels/ops/compress_keys.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/kernels/paged_sequence.h"

namespace augur::kernels {
namespace {

// A sequence's key pages (random keys, NaN bytes behind them) and a home for its compressed keys.
class KeyedSequence {
 public:
  KeyedSequence(const HeadShape& shape, int tokens)
      : shape_(shape), tokens_(tokens), pool_(shape, (tokens + 63) / 64) {
    table_ = pool_.TakeBlocks(tokens);
    const std::vector<float> values =
        RandomFloats(size_t(tokens) * shape.num_kv_heads * shape.head_dim, 17);
    size_t next = 0;
    for (int t = 0; t < tokens; ++t) {
      for (int h = 0; h < shape.num_kv_heads; ++h) {
        for (int c = 0; c < shape.head_dim; ++c) {
          WriteAs(shape.dtype, values[next++], PageOf(t / 64, h),
                  size_t(t % 64) * shape.head_dim + c);
        }
      }
    }
    Clear();
  }

  void Clear() {
    compressed_.assign(size_t(KeyPages()) * kKeyPageBlocks * shape_.num_kv_heads * KeyBytes(),
                       std::byte{0xff});
  }

  // The segment of tokens [first, first + count); entry 0 is null where the header allows it.
  void Compress(Backend& backend, int first, int count) {
    const int first_block = first / 64, end_block = (first + count - 1) / 64 + 1;
    const bool reads_before =
        first_block > 0 && first % 64 <= 15 && first + count > first_block * 64 + 15;
    std::vector<const std::byte*> pages;
    for (int b = first_block - 1; b < end_block; ++b) {
      for (int h = 0; h < shape_.num_kv_heads; ++h) {
        const bool is_read = b >= first_block || reads_before;
        pages.push_back(is_read ? PageOf(b, h) : nullptr);
      }
    }
    std::vector<std::byte*> key_pages;
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      for (int page = 0; page < KeyPages(); ++page) {
        key_pages.push_back(compressed_.data() + OffsetOf(page * kKeyPageBlocks, h));
      }
    }
    CompressSegment segment;
    segment.rows = {0, count, first};
    segment.pages = pages.data();
    segment.key_pages = key_pages.data();
    segment.key_page_stride = KeyPages();
    CompressKeysParams params;
    params.segments = &segment;
    params.num_segments = 1;
    params.num_kv_heads = shape_.num_kv_heads;
    params.head_dim = shape_.head_dim;
    params.dtype = shape_.dtype;
    backend.CompressKeys(params);
  }

  // What compressed_ must hold for the first `tokens` tokens, by the definition, in the same order
  // of sums.
  std::vector<std::byte> Expected(int tokens) const {
    std::vector<std::byte> expected(compressed_.size(), std::byte{0xff});
    for (int window = 0; 16 * window + 32 <= tokens; ++window) {
      const int block = (16 * window + 31) / 64;
      const int place = window - (4 * block - 1);
      for (int h = 0; h < shape_.num_kv_heads; ++h) {
        for (int c = 0; c < shape_.head_dim; ++c) {
          float halves[2] = {};
          for (int i = 0; i < 32; ++i) {
            const int t = 16 * window + i;
            halves[i / 16] +=
                ReadAs(shape_.dtype, PageOf(t / 64, h), size_t(t % 64) * shape_.head_dim + c);
          }
          WriteAs(shape_.dtype, (halves[0] + halves[1]) / 32.0f,
                  expected.data() + OffsetOf(block, h), size_t(place) * shape_.head_dim + c);
        }
      }
    }
    return expected;
  }

  const std::vector<std::byte>& compressed() const { return compressed_; }
  int tokens() const { return tokens_; }

 private:
  size_t KeyBytes() const { return 4 * shape_.head_dim * BytesOf(shape_.dtype); }
  int KeyPages() const { return static_cast<int>(table_.size()) / kKeyPageBlocks + 1; }
  size_t OffsetOf(int block, int head) const {
    return (size_t(head) * KeyPages() * kKeyPageBlocks + block) * KeyBytes();
  }
  std::byte* PageOf(int block, int head) const {
    return pool_.kv().page(table_[block], shape_.layer, head);
  }

  HeadShape shape_;
  int tokens_;
  PagedPool pool_;
  std::vector<int32_t> table_;
  std::vector<std::byte> compressed_;
};

// Every length mod 64, whole: each complete window, in its place, and nothing else.
TEST(CompressKeysTest, EveryLengthMatchesTheDefinition) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int head_dim : {6, 64}) {
      for (int tokens = 1; tokens <= 200; ++tokens) {
        KeyedSequence sequence({1, 2, head_dim, dtype}, tokens);
        const std::vector<std::byte> expected = sequence.Expected(tokens);
        for (const CpuIsa isa : IsasHere()) {
          const auto backend = MakeCpuBackend({1, isa});
          sequence.Clear();
          sequence.Compress(*backend, 0, tokens);
          ASSERT_EQ(sequence.compressed(), expected) << backend->Describe() << " " << tokens;
        }
      }
    }
  }
}

// Chunks of every length, from 1 to whole, leave the same bytes after each chunk.
TEST(CompressKeysTest, ChunkedAnyhowIsTheSame) {
  for (const HeadShape& shape :
       {HeadShape{1, 2, 16, DType::kF32}, HeadShape{1, 1, 40, DType::kBF16}}) {
    KeyedSequence sequence(shape, 333);
    for (const int threads : {1, 3}) {
      const auto backend = MakeCpuBackend({threads});
      for (int chunk = 1; chunk <= 130; ++chunk) {
        sequence.Clear();
        for (int first = 0; first < sequence.tokens(); first += chunk) {
          const int end = std::min(first + chunk, sequence.tokens());
          sequence.Compress(*backend, first, end - first);
          if (chunk > 20 || end % 7 == 0 || end == sequence.tokens()) {
            ASSERT_EQ(sequence.compressed(), sequence.Expected(end)) << chunk << " to " << end;
          }
        }
      }
    }
  }
}

TEST(CompressKeysTest, CompleteWindowsCountsWholeOnes) {
  for (int position = 0; position < 300; ++position) {
    int windows = 0;
    while (16 * windows + 32 <= position + 1) ++windows;
    ASSERT_EQ(CompleteWindows(position), windows);
  }
}

}  // namespace
}  // namespace augur::kernels
