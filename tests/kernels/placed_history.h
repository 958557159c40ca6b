// A history of PlaceBlocks: sequences whose tokens choose some blocks anew and keep most, with all
// that the op may write compared after every step with what a rule says. The twin test has a plain
// rule of its own; memory's test has memory/slot_group.h.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "kernels/kv_page.h"
#include "kernels/ops/place_blocks.h"
#include "tests/kernels/backends_under_test.h"

namespace augur::kernels {

// The slots of one (segment, layer, kv head).
struct SlotState {
  std::vector<int32_t> blocks;
  std::vector<int32_t> stamps;
};

struct SlotPlacement {
  std::vector<int> entry_slots;                  // of each wanted block
  std::vector<std::pair<int, int32_t>> fetches;  // slot, block
};

// Places the wanted blocks and stamps them.
using SlotRule = std::function<SlotPlacement(SlotState* slots, const std::vector<int32_t>& wanted,
                                             int position)>;

struct PlaceShape {
  std::vector<int> slots;  // of each segment; 0: resident
  int kv_heads = 1;
  int layers = 1;
  int most_chosen = 1;  // blocks
  int blocks = 1;       // of a sequence, at most
  int init = 1;
  int local = 2;
  bool halves = false;  // slots may hold keys alone
};

class PlacedHistory {
 public:
  PlacedHistory(Backend& backend, const PlaceShape& shape, uint32_t seed)
      : backend_(&backend),
        shape_(shape),
        random_(seed),
        max_slots_(*std::max_element(shape.slots.begin(), shape.slots.end())),
        slot_stride_(max_slots_ + 3),
        selection_stride_(shape.most_chosen + 1),
        pool_(backend, 64),
        sources_(backend, groups() * shape.blocks),
        slot_pages_(backend, groups() * slot_stride_),
        slot_blocks_(backend, groups() * slot_stride_),
        slot_stamps_(backend, groups() * slot_stride_),
        slot_costs_(backend, std::vector<float>(groups() * slot_stride_, 0.5f)),
        segments_(backend, shape.slots.size()),
        blocks_(backend, rows() * shape.kv_heads * selection_stride_),
        counts_(backend, rows() * shape.kv_heads),
        pages_(backend, rows() * shape.kv_heads * selection_stride_),
        values_(backend, pages_.size()),
        source_slots_(backend, pages_.size()),
        copies_(backend, 2 * segments_.size() * shape.kv_heads * selection_stride_),
        num_copies_(backend, 1),
        placement_(backend, std::vector<PlacementCounts>(shape.layers)),
        positions_(shape.slots.size()),
        expected_counts_(shape.layers),
        graphs_(shape.layers) {
    for (size_t i = 0; i < sources_.size(); ++i) sources_[i] = pool_.data() + 16 * i;
    for (size_t i = 0; i < slot_pages_.size(); ++i) {
      slot_pages_[i] = pool_.data() + 16 * (sources_.size() + i);
    }
    for (size_t s = 0; s < segments_.size(); ++s) {
      // Not all from the first token on.
      positions_[s] = static_cast<int>(random_() % (shape.blocks * kBlockTokens / 2));
      DescribeSegment(s);
    }
    expected_blocks_ = slot_blocks_.ToVector();
    expected_stamps_ = slot_stamps_.ToVector();
    expected_costs_ = slot_costs_.ToVector();
    choices_.resize(groups());
  }

  // Every sequence's next token, in every layer; through recorded calls or not.
  void Step(const SlotRule& rule, bool recorded) {
    for (size_t s = 0; s < segments_.size(); ++s) {
      positions_[s] =
          std::min(positions_[s] + (random_() % 8 == 0 ? 70 : 1), shape_.blocks * kBlockTokens - 1);
      DescribeSegment(s);
      segments_[s].rows.num_rows = random_() % 6 == 0 ? 0 : 1;
      segments_[s].keys_only = random_() % 6 != 0;
    }
    for (int layer = 0; layer < shape_.layers; ++layer) {
      Choose(layer);
      Run(layer, recorded);
      Check(layer, rule);
      if (::testing::Test::HasFatalFailure()) return;
    }
    LoseSomeSlots();
    ReadSomeValues();
  }

 private:
  static constexpr int kHalfBytes = 4, kSourceHalfBytes = 8;  // pages lie 16 apart
  static constexpr float kMoveCost = 3.0f;

  size_t groups() const { return shape_.slots.size() * shape_.layers * shape_.kv_heads; }
  // Rows and segments are not in the same order, and some rows are nobody's.
  size_t rows() const { return 2 * shape_.slots.size() + 1; }
  int row_of(size_t s) const { return static_cast<int>(2 * (shape_.slots.size() - s) - 1); }
  size_t group_of(size_t s, int layer, int head) const {
    return (s * shape_.layers + layer) * shape_.kv_heads + head;
  }

  void DescribeSegment(size_t s) {
    const size_t first = group_of(s, 0, 0);
    PlaceSegment& segment = segments_[s];
    segment = {.rows = {row_of(s), 1, positions_[s]},
               .sources = sources_.data() + first * shape_.blocks,
               .source_stride = shape_.blocks,
               .init = shape_.init,
               .local = shape_.local};
    if (shape_.slots[s] == 0) return;
    segment.slot_blocks = slot_blocks_.data() + first * slot_stride_;
    segment.slot_stamps = slot_stamps_.data() + first * slot_stride_;
    segment.slot_pages = slot_pages_.data() + first * slot_stride_;
    if (shape_.halves) segment.slot_costs = slot_costs_.data() + first * slot_stride_;
    segment.num_slots = shape_.slots[s];
    segment.slot_stride = slot_stride_;
  }

  // Keeps most of what the token before chose; the token's own block is in it if anything is.
  std::vector<int32_t> NextChoice(size_t s, const std::vector<int32_t>& last) {
    const int last_block = positions_[s] / kBlockTokens;
    int most = std::min(shape_.most_chosen, last_block + 1);
    if (shape_.slots[s] > 0) most = std::min(most, shape_.slots[s]);
    const int count = random_() % 10 == 0 ? static_cast<int>(random_() % (most + 1)) : most;
    std::vector<bool> is_chosen(last_block + 1, false);
    int left = count;
    const auto choose = [&](int32_t block) {
      if (left == 0 || block > last_block || is_chosen[block]) return;
      is_chosen[block] = true;
      --left;
    };
    choose(last_block);
    const unsigned kept = random_() % 16;  // of 16
    for (const int32_t block : last) {
      if (random_() % 16 < kept) choose(block);
    }
    while (left > 0) choose(static_cast<int32_t>(random_() % (last_block + 1)));
    std::vector<int32_t> choice;
    for (int32_t block = 0; block <= last_block; ++block) {
      if (is_chosen[block]) choice.push_back(block);
    }
    return choice;
  }

  void Choose(int layer) {
    for (size_t s = 0; s < segments_.size(); ++s) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        std::vector<int32_t>& choice = choices_[group_of(s, layer, head)];
        if (segments_[s].rows.num_rows > 0) choice = NextChoice(s, choice);
        const size_t row = size_t(row_of(s)) * shape_.kv_heads + head;
        counts_[row] = static_cast<int32_t>(choice.size());
        std::copy(choice.begin(), choice.end(), blocks_.data() + row * selection_stride_);
      }
    }
    std::fill_n(pages_.data(), pages_.size(), nullptr);
    std::fill_n(values_.data(), values_.size(), nullptr);
    std::fill_n(source_slots_.data(), source_slots_.size(), -2);
  }

  PlaceBlocksParams ParamsOf(int layer) {
    PlaceBlocksParams params = PlainParams(layer);
    if (!shape_.halves) return params;
    params.half_bytes = kHalfBytes;
    params.source_half_bytes = kSourceHalfBytes;
    params.move_cost = kMoveCost;
    params.values = values_.data();
    params.source_slots = source_slots_.data();
    return params;
  }

  PlaceBlocksParams PlainParams(int layer) {
    return {.segments = segments_.data(),
            .num_segments = static_cast<int>(segments_.size()),
            .num_kv_heads = shape_.kv_heads,
            .blocks = blocks_.data(),
            .counts = counts_.data(),
            .pages = pages_.data(),
            .selection_stride = selection_stride_,
            .max_slots = max_slots_,
            .copies = max_slots_ > 0 ? copies_.data() : nullptr,
            .num_copies = max_slots_ > 0 ? num_copies_.data() : nullptr,
            .placement = placement_.data() + layer,
            .sources_offset = int64_t{layer} * shape_.kv_heads * shape_.blocks,
            .slots_offset = int64_t{layer} * shape_.kv_heads * slot_stride_};
  }

  void Run(int layer, bool recorded) {
    if (recorded) {
      if (graphs_[layer] == nullptr) {
        graphs_[layer] =
            backend_->Record([&](Backend* recorder) { recorder->PlaceBlocks(ParamsOf(layer)); });
      }
      backend_->Launch(*graphs_[layer]);
    } else {
      backend_->PlaceBlocks(ParamsOf(layer));
    }
    backend_->Synchronize();
  }

  using Copies = std::vector<std::pair<const std::byte*, std::byte*>>;
  // What the op writes for each entry.
  struct Lists {
    std::vector<const std::byte*> pages, values;
    std::vector<int32_t> source_slots;
  };

  // Where the values of an entry are, and what has to be copied for it; without halves a page.
  void ExpectEntry(size_t s, int layer, const std::byte* source, size_t slot, int slot_in_group,
                   bool is_fetched, size_t entry, Lists* lists, Copies* copies) {
    std::byte* const page = slot_pages_[slot];
    PlacementCounts& counts = expected_counts_[layer];
    if (!shape_.halves) {
      if (is_fetched) copies->push_back({source, page});
      return;
    }
    float& cost = expected_costs_[slot];
    const bool keys_only = segments_[s].keys_only;
    if (is_fetched) {
      copies->push_back({source, page});
      cost = 0.0f;
      counts.keys_only += keys_only ? 1 : 0;
    }
    const bool has_values = cost < 0.0f;
    const bool moves = !has_values && (!keys_only || (!is_fetched && cost >= kMoveCost));
    if (moves) {
      copies->push_back({source + kSourceHalfBytes, page + kHalfBytes});
      counts.moved += is_fetched ? 0 : 1;
      cost = kSlotHasValues;
    }
    const bool here = has_values || moves;
    lists->values[entry] = here ? page + kHalfBytes : source + kSourceHalfBytes;
    lists->source_slots[entry] = here ? -1 : slot_in_group;
  }

  // What the rule says of one group; adds its copies to `copies`.
  void Expect(size_t s, int layer, int head, const SlotRule& rule, Lists* lists, Copies* copies) {
    const size_t group = group_of(s, layer, head);
    const std::vector<int32_t>& choice = choices_[group];
    const size_t list = (size_t(row_of(s)) * shape_.kv_heads + head) * selection_stride_;
    std::byte* const* sources = sources_.data() + group * shape_.blocks;
    if (shape_.slots[s] == 0) {
      for (size_t i = 0; i < choice.size(); ++i) {
        lists->pages[list + i] = sources[choice[i]];
        if (!shape_.halves) continue;
        lists->values[list + i] = sources[choice[i]] + kHalfBytes;
        lists->source_slots[list + i] = -1;
      }
      return;
    }
    const size_t first = group * slot_stride_;
    SlotState slots;
    slots.blocks.assign(&expected_blocks_[first], &expected_blocks_[first] + shape_.slots[s]);
    slots.stamps.assign(&expected_stamps_[first], &expected_stamps_[first] + shape_.slots[s]);
    const SlotState before = slots;
    const SlotPlacement placement = rule(&slots, choice, positions_[s]);
    std::copy(slots.blocks.begin(), slots.blocks.end(), &expected_blocks_[first]);
    std::copy(slots.stamps.begin(), slots.stamps.end(), &expected_stamps_[first]);
    PlacementCounts& counts = expected_counts_[layer];
    counts.fetched += placement.fetches.size();
    for (size_t i = 0; i < choice.size(); ++i) {
      const int slot = placement.entry_slots[i];
      lists->pages[list + i] = slot_pages_[first + slot];
      const bool is_fetched = std::any_of(placement.fetches.begin(), placement.fetches.end(),
                                          [&](const auto& fetch) { return fetch.first == slot; });
      ExpectEntry(s, layer, sources[choice[i]], first + slot, slot, is_fetched, list + i, lists,
                  copies);
      const int local_begin = positions_[s] / kBlockTokens - shape_.local + 1;
      if (choice[i] < shape_.init || choice[i] >= local_begin) continue;
      ++counts.chosen;
      if (before.blocks[slot] != choice[i]) continue;
      ++(before.stamps[slot] == positions_[s] - 1 ? counts.reused : counts.spare);
    }
  }

  void Check(int layer, const SlotRule& rule) {
    Lists lists{.pages = std::vector<const std::byte*>(pages_.size(), nullptr),
                .values = std::vector<const std::byte*>(pages_.size(), nullptr),
                .source_slots = std::vector<int32_t>(pages_.size(), -2)};
    Copies copies, found;
    for (size_t s = 0; s < segments_.size(); ++s) {
      if (segments_[s].rows.num_rows == 0) continue;
      for (int head = 0; head < shape_.kv_heads; ++head) {
        Expect(s, layer, head, rule, &lists, &copies);
      }
    }
    ASSERT_EQ(slot_blocks_.ToVector(), expected_blocks_);
    ASSERT_EQ(slot_stamps_.ToVector(), expected_stamps_);
    ASSERT_EQ(slot_costs_.ToVector(), expected_costs_);
    ASSERT_EQ(pages_.ToVector(), lists.pages);
    ASSERT_EQ(values_.ToVector(), lists.values);
    ASSERT_EQ(source_slots_.ToVector(), lists.source_slots);
    if (max_slots_ > 0) {
      ASSERT_EQ(num_copies_[0], static_cast<int32_t>(copies.size()));
      for (size_t i = 0; i < copies.size(); ++i) found.push_back({copies_[i].from, copies_[i].to});
      std::sort(copies.begin(), copies.end());
      std::sort(found.begin(), found.end());
      ASSERT_EQ(found, copies);
    }
    ASSERT_EQ(placement_[layer].chosen, expected_counts_[layer].chosen);
    ASSERT_EQ(placement_[layer].reused, expected_counts_[layer].reused);
    ASSERT_EQ(placement_[layer].spare, expected_counts_[layer].spare);
    ASSERT_EQ(placement_[layer].fetched, expected_counts_[layer].fetched);
    ASSERT_EQ(placement_[layer].keys_only, expected_counts_[layer].keys_only);
    ASSERT_EQ(placement_[layer].moved, expected_counts_[layer].moved);
  }

  // Rows of values at their sources, of slots that hold keys alone.
  void ReadSomeValues() {
    for (size_t i = 0; i < slot_costs_.size(); ++i) {
      if (expected_costs_[i] < 0.0f || random_() % 2 != 0) continue;
      slot_costs_[i] = expected_costs_[i] += static_cast<float>(random_() % 3);
    }
  }

  // Empty slots among full ones.
  void LoseSomeSlots() {
    if (random_() % 4 != 0) return;
    for (size_t i = 0; i < slot_blocks_.size(); ++i) {
      if (random_() % 5 != 0) continue;
      slot_blocks_[i] = expected_blocks_[i] = kEmptySlot;
    }
  }

  Backend* backend_;
  PlaceShape shape_;
  std::mt19937 random_;
  int max_slots_;
  int slot_stride_;
  int selection_stride_;
  SharedArray<std::byte> pool_;  // only its address is used
  // [segments][layers][kv heads][blocks or slot_stride]
  SharedArray<std::byte*> sources_, slot_pages_;
  SharedArray<int32_t> slot_blocks_, slot_stamps_;  // all empty at first
  SharedArray<float> slot_costs_;
  SharedArray<PlaceSegment> segments_;
  SharedArray<int32_t> blocks_, counts_;
  SharedArray<const std::byte*> pages_, values_;
  SharedArray<int32_t> source_slots_;
  SharedArray<PageCopy> copies_;
  SharedArray<int32_t> num_copies_;
  SharedArray<PlacementCounts> placement_;  // [layers]
  std::vector<int> positions_;
  std::vector<PlacementCounts> expected_counts_;
  std::vector<std::unique_ptr<StepGraph>> graphs_;  // [layers]
  std::vector<int32_t> expected_blocks_, expected_stamps_;
  std::vector<float> expected_costs_;
  std::vector<std::vector<int32_t>> choices_;  // [groups]
};

}  // namespace augur::kernels
