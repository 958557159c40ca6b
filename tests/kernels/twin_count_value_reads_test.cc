#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/ops/count_value_reads.h"
#include "tests/kernels/backends_under_test.h"

namespace augur::kernels {
namespace {

struct ReadsShape {
  int segments = 1;
  int kv_heads = 1;
  int stride = 1;  // of lists
  int slots = 1;   // of a group, at least as many as the stride
  int layers = 1;
};

// Some segments are left out; some entries read nothing, some on the device.
void CheckReads(Backend& backend, const ReadsShape& shape, uint32_t seed) {
  std::mt19937 random(seed);
  const size_t rows = shape.segments + 1, groups = size_t(shape.segments) * shape.layers;
  const size_t entries = rows * shape.kv_heads * shape.stride;
  SharedArray<ValueReadsSegment> segments(backend, shape.segments);
  SharedArray<int32_t> entry_rows(backend, entries), source_slots(backend, entries);
  SharedArray<int32_t> counts(backend, rows * shape.kv_heads);
  SharedArray<float> costs(backend,
                           std::vector<float>(groups * shape.kv_heads * shape.slots, 0.25f));
  SharedArray<uint64_t> source_rows(backend, std::vector<uint64_t>{8});
  constexpr float kRowCost = 1.5f, kPlaceCost = 7.0f;
  const int layer = shape.layers - 1;
  const int64_t layer_slots = int64_t{shape.kv_heads} * shape.slots;

  std::vector<float> expected_costs = costs.ToVector();
  uint64_t expected_rows = source_rows[0];
  std::vector<int32_t> slots(shape.slots);
  std::iota(slots.begin(), slots.end(), 0);
  for (int s = 0; s < shape.segments; ++s) {
    segments[s] = {.row = random() % 5 == 0 ? -1 : shape.segments - s,
                   .slot_costs = costs.data() + s * shape.layers * layer_slots,
                   .slot_stride = shape.slots};
    if (segments[s].row < 0) continue;
    for (int head = 0; head < shape.kv_heads; ++head) {
      const size_t list = size_t(segments[s].row) * shape.kv_heads + head;
      counts[list] = static_cast<int32_t>(random() % (shape.stride + 1));
      std::shuffle(slots.begin(), slots.end(), random);
      for (int entry = 0; entry < counts[list]; ++entry) {
        const size_t at = list * shape.stride + entry;
        entry_rows[at] = random() % 3 == 0 ? 0 : static_cast<int32_t>(random() % 10);
        source_slots[at] = random() % 3 == 0 ? -1 : slots[entry];
        if (source_slots[at] < 0 || entry_rows[at] == 0) continue;
        expected_rows += entry_rows[at];
        expected_costs[(s * shape.layers + layer) * layer_slots + head * shape.slots +
                       source_slots[at]] +=
            std::max(kPlaceCost, kRowCost * static_cast<float>(entry_rows[at]));
      }
    }
  }
  backend.CountValueReads({.segments = segments.data(),
                           .num_segments = shape.segments,
                           .num_kv_heads = shape.kv_heads,
                           .entry_rows = entry_rows.data(),
                           .counts = counts.data(),
                           .source_slots = source_slots.data(),
                           .selection_stride = shape.stride,
                           .row_cost = kRowCost,
                           .place_cost = kPlaceCost,
                           .slots_offset = layer * layer_slots,
                           .source_rows = source_rows.data()});
  backend.Synchronize();
  EXPECT_EQ(costs.ToVector(), expected_costs);
  EXPECT_EQ(source_rows[0], expected_rows);
}

TEST(TwinCountValueReadsTest, CostsOfSlotsAndRowsOfAll) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    uint32_t seed = 0;
    for (const ReadsShape& shape :
         {ReadsShape{}, ReadsShape{.segments = 3, .kv_heads = 2, .stride = 33, .slots = 40},
          ReadsShape{.segments = 24, .kv_heads = 2, .stride = 96, .slots = 97, .layers = 3},
          ReadsShape{.segments = 2, .kv_heads = 8, .stride = 300, .slots = 300, .layers = 2}}) {
      SCOPED_TRACE(name + " " + std::to_string(seed));
      CheckReads(*backend, shape, seed++);
    }
  }
}

}  // namespace
}  // namespace augur::kernels
