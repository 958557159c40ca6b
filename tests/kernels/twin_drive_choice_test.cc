// Choices drawn by a law of stack distances: they measure as they were asked for, on both backends
// alike, and spare slots hit as the law says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops/drive_choice.h"
#include "kernels/ops/place_blocks.h"
#include "tests/kernels/backends_under_test.h"

namespace augur::kernels {
namespace {

constexpr int kHeads = 2, kLayers = 2;
constexpr SelectionBudget kBudget{.top_k = 96, .init = 1, .local = 33};
constexpr int kPlaces = 62;

// 55 % of the others within a quarter of the choice, 90 % within two choices, 99 % within five.
StackLaw SomeLaw() {
  StackLaw law;
  for (int bin = 0; bin < StackLaw::kBins; ++bin) {
    const double reach = double(bin + 1) / StackLaw::kBinsPerChoice;
    const double share = std::min(0.99, 1 - 0.45 * std::exp(-(reach - 0.25) * 2));
    law.ends[bin] = static_cast<uint32_t>(share * 65536);
  }
  return law;
}

// Tokens that follow each other, one a call, and the slots of their lists.
class DrivenTokens {
 public:
  DrivenTokens(Backend* backend, int first_position, int num_slots)
      : backend_(backend),
        position_(first_position),
        num_slots_(num_slots),
        stride_(kStackHead + kMaxBlocks),
        segments_(*backend, std::vector<SelectSegment>(1)),
        places_(*backend, std::vector<PlaceSegment>(1)),
        blocks_(*backend, kHeads * kBudget.top_k),
        counts_(*backend, kHeads),
        stacks_(*backend, std::vector<int32_t>(kLayers * kHeads * 2 * stride_)),
        sources_(*backend, std::vector<std::byte*>(kHeads * kMaxBlocks)),
        slot_blocks_(*backend, std::vector<int32_t>(kHeads * num_slots, kEmptySlot)),
        slot_stamps_(*backend, std::vector<int32_t>(kHeads * num_slots, -1)),
        slot_pages_(*backend, std::vector<std::byte*>(kHeads * num_slots)),
        pages_(*backend, kHeads * kBudget.top_k),
        copies_(*backend, kHeads * kBudget.top_k),
        num_copies_(*backend, 1),
        placement_(*backend, std::vector<PlacementCounts>(1)) {
    for (size_t i = 0; i < size_t(kHeads) * kMaxBlocks; ++i) {
      sources_.data()[i] = reinterpret_cast<std::byte*>(64 * (i + 1));
    }
    for (int i = 0; i < kHeads * num_slots; ++i) {
      slot_pages_.data()[i] = reinterpret_cast<std::byte*>(uintptr_t{1 << 20} + 64 * i);
    }
  }

  // [kv heads]: the lists of the next token.
  std::vector<std::vector<int32_t>> Next(int layer, float reuse, const StackLaw& law) {
    segments_.data()[0] = {.rows = {0, 1, position_}, .budget = kBudget};
    backend_->DriveChoice({.segments = segments_.data(),
                           .num_segments = 1,
                           .num_kv_heads = kHeads,
                           .blocks = blocks_.data(),
                           .counts = counts_.data(),
                           .selection_stride = kBudget.top_k,
                           .layer = layer,
                           .reuse = reuse,
                           .stacks = stacks_.data() + layer * kHeads * 2 * stride_,
                           .stack_stride = stride_,
                           .law = law});
    Place();
    backend_->Synchronize();
    ++position_;
    std::vector<std::vector<int32_t>> lists;
    for (int head = 0; head < kHeads; ++head) {
      EXPECT_EQ(counts_[head], kBudget.top_k);
      const int32_t* list = blocks_.data() + head * kBudget.top_k;
      lists.emplace_back(list, list + kBudget.top_k);
    }
    return lists;
  }
  int position() const { return position_; }
  void set_position(int position) { position_ = position; }
  const PlacementCounts& placement() const { return placement_[0]; }

 private:
  static constexpr int kMaxBlocks = 2100;

  void Place() {
    places_.data()[0] = {.rows = {0, 1, position_},
                         .sources = sources_.data(),
                         .source_stride = kMaxBlocks,
                         .slot_blocks = slot_blocks_.data(),
                         .slot_stamps = slot_stamps_.data(),
                         .slot_pages = slot_pages_.data(),
                         .num_slots = num_slots_,
                         .slot_stride = num_slots_,
                         .init = kBudget.init,
                         .local = kBudget.local};
    backend_->PlaceBlocks({.segments = places_.data(),
                           .num_segments = 1,
                           .num_kv_heads = kHeads,
                           .blocks = blocks_.data(),
                           .counts = counts_.data(),
                           .pages = pages_.data(),
                           .selection_stride = kBudget.top_k,
                           .max_slots = num_slots_,
                           .copies = copies_.data(),
                           .num_copies = num_copies_.data(),
                           .placement = placement_.data()});
  }

  Backend* const backend_;
  int position_;
  const int num_slots_, stride_;
  SharedArray<SelectSegment> segments_;
  SharedArray<PlaceSegment> places_;
  SharedArray<int32_t> blocks_, counts_, stacks_;
  SharedArray<std::byte*> sources_;
  SharedArray<int32_t> slot_blocks_, slot_stamps_;
  SharedArray<std::byte*> slot_pages_;
  SharedArray<const std::byte*> pages_;
  SharedArray<PageCopy> copies_;
  SharedArray<int32_t> num_copies_;
  SharedArray<PlacementCounts> placement_;
};

// Free blocks by the time they were last chosen, kept by a plain list.
class PlainStack {
 public:
  // Places of what the token before did not choose; -1: never seen.
  std::vector<int> Depths(const std::vector<int32_t>& list) {
    std::vector<int32_t> free(list.begin() + kBudget.init, list.end() - kBudget.local);
    std::vector<int> depths;
    for (const int32_t block : free) {
      const auto at = std::find(stack_.begin(), stack_.end(), block);
      const int depth = at == stack_.end() ? -1 : static_cast<int>(at - stack_.begin());
      if (depth < 0 || depth >= kPlaces) depths.push_back(depth);
    }
    std::vector<int32_t> next;
    for (const int32_t block : stack_) {
      if (std::binary_search(free.begin(), free.end(), block)) next.push_back(block);
    }
    for (const int32_t block : free) {
      if (std::find(next.begin(), next.end(), block) == next.end()) next.push_back(block);
    }
    for (const int32_t block : stack_) {
      if (!std::binary_search(free.begin(), free.end(), block)) next.push_back(block);
    }
    stack_ = next;
    return depths;
  }

 private:
  std::vector<int32_t> stack_;
};

TEST(TwinDriveChoiceTest, ChoicesByALawMeasureAsItSays) {
  constexpr int kWarm = 60, kSteps = 240;
  const StackLaw law = SomeLaw();
  std::vector<std::vector<int32_t>> of_cpu;
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    DrivenTokens tokens(backend.get(), 64 * 1000 - 100, kBudget.top_k);  // over a block's end
    std::vector<PlainStack> stacks(kHeads);
    std::vector<std::vector<int32_t>> all;
    double others = 0, quarter = 0, two = 0;
    for (int step = 0; step < kWarm + kSteps; ++step) {
      const auto lists = tokens.Next(/*layer=*/1, 0.75f, law);
      for (int head = 0; head < kHeads; ++head) {
        const std::vector<int32_t>& list = lists[head];
        EXPECT_TRUE(std::is_sorted(list.begin(), list.end()));
        EXPECT_EQ(std::adjacent_find(list.begin(), list.end()), list.end());
        EXPECT_EQ(list.front(), 0);
        EXPECT_EQ(list[kPlaces + 1], (tokens.position() - 1) / 64 - 32);  // the window's first
        all.push_back(list);
        const std::vector<int> depths = stacks[head].Depths(list);
        if (step < kWarm) continue;
        others += static_cast<double>(depths.size());
        for (const int depth : depths) {
          quarter += depth >= 0 && depth < kPlaces + kPlaces / 4 ? 1 : 0;
          two += depth >= 0 && depth < 3 * kPlaces ? 1 : 0;
        }
      }
    }
    EXPECT_NEAR(others / (kSteps * kHeads * kPlaces), 0.25, 0.015) << name;
    EXPECT_NEAR(quarter / others, law.ends[0] / 65536.0, 0.03) << name;
    EXPECT_NEAR(two / others, law.ends[7] / 65536.0, 0.03) << name;
    if (of_cpu.empty()) of_cpu = all;
    EXPECT_EQ(all, of_cpu) << name;
  }
}

TEST(TwinDriveChoiceTest, SpareSlotsHitAsTheLawSays) {
  constexpr int kWarm = 60, kSteps = 200;
  const StackLaw law = SomeLaw();
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int spare : {0, kPlaces / 4, kPlaces}) {
      DrivenTokens tokens(backend.get(), 64 * 1500, kBudget.top_k + spare);
      for (int step = 0; step < kWarm; ++step) tokens.Next(0, 0.8f, law);
      const PlacementCounts before = tokens.placement();
      for (int step = 0; step < kSteps; ++step) tokens.Next(0, 0.8f, law);
      const PlacementCounts& after = tokens.placement();
      const double chosen = static_cast<double>(after.chosen - before.chosen);
      const double within =
          spare == 0
              ? 0
              : law.ends[spare * StackLaw::kBinsPerChoice / kPlaces - (spare < kPlaces ? 0 : 1)];
      EXPECT_NEAR(static_cast<double>(after.reused - before.reused) / chosen, 0.8, 0.015) << name;
      EXPECT_NEAR(static_cast<double>(after.spare - before.spare) / chosen, 0.2 * within / 65536,
                  0.02)
          << name << ", " << spare << " spare slots";
    }
  }
}

TEST(TwinDriveChoiceTest, AStackOfAnotherTokenBeginsAnew) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    DrivenTokens tokens(backend.get(), 64 * 200, kBudget.top_k);
    std::vector<std::vector<int32_t>> first = tokens.Next(0, 0.9f, SomeLaw());
    for (int step = 0; step < 9; ++step) tokens.Next(0, 0.9f, SomeLaw());
    tokens.set_position(64 * 200);
    EXPECT_EQ(tokens.Next(0, 0.9f, SomeLaw()), first) << name;
    // Few more candidates than places: what finds no free place further down takes one on top.
    tokens.set_position(64 * (kBudget.top_k + 3));
    for (int step = 0; step < 40; ++step) {
      for (const std::vector<int32_t>& list : tokens.Next(0, 0.1f, SomeLaw())) {
        EXPECT_EQ(std::adjacent_find(list.begin(), list.end()), list.end()) << name;
      }
    }
  }
}

}  // namespace
}  // namespace augur::kernels
