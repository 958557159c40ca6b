#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/kv_page.h"
#include "kernels/ops/open_tails.h"
#include "kernels/ops/place_blocks.h"
#include "tests/kernels/backends_under_test.h"

namespace augur::kernels {
namespace {

struct TailShape {
  std::vector<int> slots;  // of each segment
  int layers = 2;
  int kv_heads = 1;
  int blocks = 100;  // of a sequence, at most
  int init = 1;
  int local = 2;
};

// Sequences whose tokens go on and open blocks; between them other blocks' slots are stamped and
// lost at random.
class TailHistory {
 public:
  TailHistory(Backend& backend, const TailShape& shape, uint32_t seed)
      : backend_(&backend),
        shape_(shape),
        random_(seed),
        slot_stride_(*std::max_element(shape.slots.begin(), shape.slots.end()) + 2),
        pool_(backend, 64),
        sources_(backend, groups() * shape.blocks),
        slot_pages_(backend, groups() * slot_stride_),
        slot_blocks_(backend, groups() * slot_stride_),
        slot_stamps_(backend, groups() * slot_stride_),
        slot_costs_(backend, std::vector<float>(groups() * slot_stride_, 0.5f)),
        segments_(backend, shape.slots.size()),
        positions_(shape.slots.size(), 0) {
    for (size_t i = 0; i < slot_pages_.size(); ++i) slot_pages_[i] = pool_.data() + 16 * i;
    std::fill_n(sources_.data(), sources_.size(), nullptr);
    expected_sources_ = sources_.ToVector();
    expected_blocks_ = slot_blocks_.ToVector();
    expected_stamps_ = slot_stamps_.ToVector();
    expected_costs_ = slot_costs_.ToVector();
  }

  bool is_over() const {
    return *std::max_element(positions_.begin(), positions_.end()) >= last_position();
  }

  void Step(bool recorded) {
    for (size_t s = 0; s < segments_.size(); ++s) {
      positions_[s] = std::min<int>(positions_[s] + 1 + random_() % 90, last_position());
      Describe(s, random_() % 6 == 0 ? 0 : 1);
      if (segments_[s].rows.num_rows == 0) continue;
      for (int layer = 1; layer < shape_.layers; ++layer) {
        for (int head = 0; head < shape_.kv_heads; ++head) Expect(s, layer, head);
      }
    }
    Run(recorded);
    Check();
    Run(recorded);  // changes nothing
    Check();
    Shuffle();
  }

 private:
  size_t groups() const { return shape_.slots.size() * shape_.layers * shape_.kv_heads; }
  int last_position() const { return shape_.blocks * kBlockTokens - 1; }

  void Describe(size_t s, int rows) {
    const size_t first = s * shape_.layers * shape_.kv_heads;
    segments_[s] = {.rows = {static_cast<int>(s), rows, positions_[s]},
                    .sources = sources_.data() + first * shape_.blocks,
                    .source_stride = shape_.blocks,
                    .slot_blocks = slot_blocks_.data() + first * slot_stride_,
                    .slot_stamps = slot_stamps_.data() + first * slot_stride_,
                    .slot_pages = slot_pages_.data() + first * slot_stride_,
                    .slot_costs = s % 3 == 2 ? nullptr : slot_costs_.data() + first * slot_stride_,
                    .num_slots = shape_.slots[s],
                    .slot_stride = slot_stride_,
                    .init = shape_.init,
                    .local = shape_.local};
  }

  void Expect(size_t s, int layer, int head) {
    const size_t group = (s * shape_.layers + layer) * shape_.kv_heads + head;
    const int32_t block = positions_[s] / kBlockTokens;
    int32_t* blocks = expected_blocks_.data() + group * slot_stride_;
    int32_t* stamps = expected_stamps_.data() + group * slot_stride_;
    const int slots = shape_.slots[s];
    const auto find = [&](int32_t held) {
      const int at = static_cast<int>(std::find(blocks, blocks + slots, held) - blocks);
      return at == slots ? -1 : at;
    };
    int slot = find(block);
    if (slot < 0) {
      slot = find(kEmptySlot);
      const bool is_full = slot < 0;
      for (int other = 0; is_full && other < slots; ++other) {
        if (blocks[other] < shape_.init) continue;
        if (blocks[other] > block - std::max(shape_.local, 1)) continue;
        if (slot < 0 || stamps[other] < stamps[slot]) slot = other;
      }
      ASSERT_GE(slot, 0) << "the test's shape leaves no victim";
      blocks[slot] = block;
      stamps[slot] = positions_[s];
      if (s % 3 != 2) expected_costs_[group * slot_stride_ + slot] = kSlotHasValues;
    }
    expected_sources_[group * shape_.blocks + block] = slot_pages_[group * slot_stride_ + slot];
  }

  void Run(bool recorded) {
    const OpenTailsParams params{.segments = segments_.data(),
                                 .num_segments = static_cast<int>(segments_.size()),
                                 .num_layers = shape_.layers,
                                 .num_kv_heads = shape_.kv_heads};
    if (recorded) {
      if (graph_ == nullptr) {
        graph_ = backend_->Record([&](Backend* recorder) { recorder->OpenTails(params); });
      }
      backend_->Launch(*graph_);
    } else {
      backend_->OpenTails(params);
    }
    backend_->Synchronize();
  }

  void Check() {
    ASSERT_EQ(slot_blocks_.ToVector(), expected_blocks_);
    ASSERT_EQ(slot_stamps_.ToVector(), expected_stamps_);
    ASSERT_EQ(slot_costs_.ToVector(), expected_costs_);
    ASSERT_EQ(sources_.ToVector(), expected_sources_);
  }

  // Choices stamp blocks that have slots, and may leave their keys alone in them.
  void Shuffle() {
    const bool loses = random_() % 4 == 0;
    for (size_t i = 0; i < slot_blocks_.size(); ++i) {
      if (slot_blocks_[i] == kEmptySlot) continue;
      const int now = positions_[i / slot_stride_ / shape_.layers / shape_.kv_heads];
      if (random_() % 3 == 0) slot_stamps_[i] = expected_stamps_[i] = now;
      if (random_() % 3 == 0) slot_costs_[i] = expected_costs_[i] = 0.5f;
      if (loses && random_() % 8 == 0) slot_blocks_[i] = expected_blocks_[i] = kEmptySlot;
    }
  }

  Backend* backend_;
  TailShape shape_;
  std::mt19937 random_;
  int slot_stride_;
  SharedArray<std::byte> pool_;  // only its address is used
  // [segments][layers][kv heads][blocks or slot_stride]
  SharedArray<std::byte*> sources_, slot_pages_;
  SharedArray<int32_t> slot_blocks_, slot_stamps_;  // all empty at first
  SharedArray<float> slot_costs_;
  SharedArray<TailSegment> segments_;
  std::vector<int> positions_;
  std::vector<std::byte*> expected_sources_;
  std::vector<int32_t> expected_blocks_, expected_stamps_;
  std::vector<float> expected_costs_;
  std::unique_ptr<StepGraph> graph_;
};

TEST(TwinOpenTailsTest, HistoriesOfEveryShape) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    const std::vector<TailShape> shapes = {
        // One slot, which every block takes from the last.
        {.slots = {1}, .blocks = 9, .init = 0, .local = 1},
        {.slots = {3, 4, 9}, .layers = 3, .kv_heads = 3},
        {.slots = {31, 32, 33, 64}, .layers = 5, .kv_heads = 2, .blocks = 150, .local = 8},
        {.slots = {192, 300}, .layers = 2, .kv_heads = 1, .blocks = 400, .local = 0},
        {.slots = {5}, .layers = 1, .kv_heads = 2, .blocks = 5},  // no layer has slots
    };
    for (size_t i = 0; i < shapes.size(); ++i) {
      TailHistory history(*backend, shapes[i], static_cast<uint32_t>(i));
      for (int step = 0; !history.is_over(); ++step) {
        SCOPED_TRACE(name + " shape " + std::to_string(i) + " step " + std::to_string(step));
        history.Step(/*recorded=*/step % 3 == 1);
        if (HasFatalFailure()) return;
      }
    }
  }
}

}  // namespace
}  // namespace augur::kernels
