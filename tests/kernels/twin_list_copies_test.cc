// Lists of copies, and the copies themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend_array.h"
#include "kernels/ops/compress_keys.h"
#include "kernels/ops/list_page_copies.h"
#include "kernels/ops/list_spills.h"
#include "kernels/ops/page_copy.h"
#include "tests/kernels/backends_under_test.h"

namespace augur::kernels {

// For ASSERT_EQ over lists.
static bool operator==(const PageCopy& a, const PageCopy& b) {
  return a.from == b.from && a.to == b.to;
}

namespace {

struct SpillShape {
  int tables, layers, first_layer, end_layer, kv_heads, max_blocks;
};

class SpillCall {
 public:
  SpillCall(Backend& backend, const SpillShape& shape, int count)
      : backend_(&backend),
        shape_(shape),
        groups_(shape.layers * shape.kv_heads),
        max_key_pages_((shape.max_blocks - 1) / kKeyPageBlocks + 1),
        count_(count),
        entries_(size_t(count) * (shape.end_layer - shape.first_layer) * shape.kv_heads),
        pool_(backend, 64),
        lists_(backend, size_t(shape.tables) * groups_ * shape.max_blocks),
        key_lists_(backend, size_t(shape.tables) * groups_ * max_key_pages_),
        blocks_(backend, count),
        pages_(backend, entries_ + 1),
        keys_(backend, entries_ + 1) {
    std::mt19937 random(static_cast<uint32_t>(count));
    for (size_t i = 0; i < lists_.size(); ++i) lists_[i] = pool_.data() + 16 * i;
    for (size_t i = 0; i < key_lists_.size(); ++i) key_lists_[i] = pool_.data() + 1024 * i;
    for (int i = 0; i < count; ++i) {
      blocks_[i] = {static_cast<int32_t>(random() % shape.tables),
                    static_cast<int32_t>(random() % shape.max_blocks),
                    static_cast<int32_t>(random() % 70000)};
    }
  }

  void Check(bool wants_pages, bool wants_keys) {
    backend_->ListSpills({.blocks = blocks_.data(),
                          .num_blocks = count_,
                          .num_layers = shape_.layers,
                          .first_layer = shape_.first_layer,
                          .end_layer = shape_.end_layer,
                          .num_kv_heads = shape_.kv_heads,
                          .lists = lists_.data(),
                          .max_blocks = shape_.max_blocks,
                          .host = pool_.data(),
                          .page_bytes = kPageBytes,
                          .pages = wants_pages ? pages_.data() : nullptr,
                          .key_lists = key_lists_.data(),
                          .max_key_pages = max_key_pages_,
                          .host_keys = pool_.data(),
                          .key_bytes = kKeyBytes,
                          .keys = wants_keys ? keys_.data() : nullptr});
    backend_->Synchronize();
    const std::vector<PageCopy> pages = pages_.ToVector(), keys = keys_.ToVector();
    size_t entry = 0;
    for (int i = 0; i < count_; ++i) {
      for (int layer = shape_.first_layer; layer < shape_.end_layer; ++layer) {
        for (int head = 0; head < shape_.kv_heads; ++head, ++entry) {
          const PageCopy none = pages.back();  // what is not wanted is not touched
          ASSERT_EQ(pages[entry], wants_pages ? PageOf(blocks_[i], layer, head) : none);
          ASSERT_EQ(keys[entry], wants_keys ? KeysOf(blocks_[i], layer, head) : none);
        }
      }
    }
    ASSERT_EQ(entry, entries_);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(pages.back().to), ~uintptr_t{0}) << "one too many";
    ASSERT_EQ(reinterpret_cast<uintptr_t>(keys.back().to), ~uintptr_t{0}) << "one too many";
  }

 private:
  static constexpr size_t kPageBytes = 32768;
  static constexpr size_t kKeyBytes = 1024;

  PageCopy PageOf(const SpilledBlock& spilled, int layer, int head) {
    const size_t group = size_t(layer) * shape_.kv_heads + head;
    return {lists_[(size_t(spilled.table) * groups_ + group) * shape_.max_blocks + spilled.block],
            pool_.data() + (size_t(spilled.host_block) * groups_ + group) * kPageBytes};
  }
  PageCopy KeysOf(const SpilledBlock& spilled, int layer, int head) {
    const size_t group = size_t(layer) * shape_.kv_heads + head;
    return {key_lists_[(size_t(spilled.table) * groups_ + group) * max_key_pages_ +
                       spilled.block / kKeyPageBlocks] +
                spilled.block % kKeyPageBlocks * kKeyBytes,
            pool_.data() + (size_t(spilled.host_block) * groups_ + group) * kKeyBytes};
  }

  Backend* backend_;
  SpillShape shape_;
  int groups_;
  int max_key_pages_;
  int count_;
  size_t entries_;
  SharedArray<std::byte> pool_;  // only its address is used
  SharedArray<std::byte*> lists_, key_lists_;
  SharedArray<SpilledBlock> blocks_;
  SharedArray<PageCopy> pages_, keys_;
};

TEST(TwinListSpillsTest, EveryLayerAndHeadInOrder) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int count : {0, 1, 3, 64, 200}) {
      for (const SpillShape& shape :
           {SpillShape{1, 1, 0, 1, 1, 1}, SpillShape{3, 4, 1, 4, 2, 70},
            SpillShape{2, 3, 1, 2, 3, 33}, SpillShape{2, 3, 2, 2, 2, 20}}) {
        SCOPED_TRACE(name + " " + std::to_string(count));
        SpillCall(*backend, shape, count).Check(true, false);
        SpillCall(*backend, shape, count).Check(false, true);
        SpillCall(*backend, shape, count).Check(true, true);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Segments of these many blocks, in lists of two layers.
void CheckListPageCopies(Backend& backend, const std::vector<int>& blocks, int kv_heads) {
  const int most = blocks.empty() ? 0 : *std::max_element(blocks.begin(), blocks.end());
  const int from_stride = most + 3, to_stride = most + 1;
  const int64_t from_layer = int64_t{kv_heads} * from_stride, to_layer = kv_heads * to_stride;
  SharedArray<std::byte> pool(backend, 64);  // only its address is used
  SharedArray<std::byte*> from(backend, 2 * blocks.size() * from_layer);
  SharedArray<std::byte*> to(backend, 2 * blocks.size() * to_layer);
  for (size_t i = 0; i < from.size(); ++i) from[i] = pool.data() + 16 * i;
  for (size_t i = 0; i < to.size(); ++i) to[i] = pool.data() + (size_t{1} << 30) + 16 * i;
  SharedArray<PageRange> segments(backend, blocks.size());
  int copies_of_all = 1;  // the first is nobody's
  for (size_t s = blocks.size(); s-- > 0;) {
    segments[s] = {from.data() + 2 * s * from_layer,
                   to.data() + 2 * s * to_layer,
                   from_stride,
                   to_stride,
                   blocks[s],
                   copies_of_all};
    copies_of_all += blocks[s] * kv_heads;
  }
  SharedArray<PageCopy> copies(backend, copies_of_all + 1);
  std::vector<PageCopy> expected = copies.ToVector();
  for (size_t s = 0; s < blocks.size(); ++s) {
    for (int head = 0; head < kv_heads; ++head) {
      for (int i = 0; i < blocks[s]; ++i) {
        expected[segments[s].first_copy + head * blocks[s] + i] = {
            from[(2 * s + 1) * from_layer + head * from_stride + i],
            to[(2 * s + 1) * to_layer + head * to_stride + i]};
      }
    }
  }
  backend.ListPageCopies({.segments = segments.data(),
                          .num_segments = static_cast<int>(blocks.size()),
                          .num_kv_heads = kv_heads,
                          .max_blocks = most + 5,
                          .copies = copies.data(),
                          .from_offset = from_layer,
                          .to_offset = to_layer});
  backend.Synchronize();
  ASSERT_EQ(copies.ToVector(), expected);
}

TEST(TwinListPageCopiesTest, EverySegmentsCopiesAndNoOther) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    SCOPED_TRACE(name);
    CheckListPageCopies(*backend, {}, 2);
    CheckListPageCopies(*backend, {0, 0}, 2);
    CheckListPageCopies(*backend, {1}, 1);
    CheckListPageCopies(*backend, {96, 0, 1, 500, 128, 127}, 2);
    CheckListPageCopies(*backend, std::vector<int>(70, 33), 8);
  }
}

// Pages of the host go to the device in random order, and back in another.
void CheckCopyPages(Backend& backend, int page_bytes, int count, PageCopyParams params) {
  std::mt19937 random(static_cast<uint32_t>(count));
  const size_t pages = std::max(count, 1);
  SharedArray<std::byte> host(backend, 2 * pages * page_bytes);
  for (size_t i = 0; i < pages * page_bytes; ++i) host[i] = static_cast<std::byte>(random());
  BackendArray<std::byte> device(&backend, pages * page_bytes);
  std::vector<size_t> places(count);
  std::iota(places.begin(), places.end(), size_t{0});
  SharedArray<PageCopy> there(backend, count), back(backend, count);
  std::shuffle(places.begin(), places.end(), random);
  for (int i = 0; i < count; ++i) {
    there[i] = {host.data() + i * page_bytes, device.data() + places[i] * page_bytes};
  }
  std::shuffle(places.begin(), places.end(), random);
  for (int i = 0; i < count; ++i) {
    back[i] = {device.data() + places[i] * page_bytes,
               host.data() + (pages + places[i]) * page_bytes};
  }
  params.page_bytes = page_bytes;
  params.pages = there.data();
  backend.CopyPages(params);
  params.pages = back.data();
  backend.CopyPages(params);
  backend.Synchronize();
  // Page i went to places[i], and from there to the same place of the second half.
  for (int i = 0; i < count; ++i) {
    const size_t place = (there[i].to - device.data()) / page_bytes;
    ASSERT_EQ(std::memcmp(host.data() + i * page_bytes, host.data() + (pages + place) * page_bytes,
                          page_bytes),
              0)
        << "page " << i << " of " << count << ", " << page_bytes << " bytes";
  }
}

TEST(TwinCopyPagesTest, ThereAndBack) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int page_bytes : {512, 32768}) {
      for (const int count : {0, 1, 7, 100}) {
        SCOPED_TRACE(name);
        SharedArray<int32_t> num_pages(*backend, std::vector<int32_t>{count});
        CheckCopyPages(*backend, page_bytes, count, {.num_pages = num_pages.data(), .quota = 4});
        CheckCopyPages(*backend, page_bytes, count, {.known_pages = count, .quota = 4});
        for (const int granted_ctas : {0, 1, 3, 9}) {
          SharedArray<int32_t> granted(*backend, std::vector<int32_t>{granted_ctas});
          CheckCopyPages(*backend, page_bytes, count,
                         {.known_pages = count, .quota = 4, .granted = granted.data()});
        }
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace augur::kernels
