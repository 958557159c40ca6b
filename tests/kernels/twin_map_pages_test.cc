#include <gtest/gtest.h>

#include <vector>

#include "kernels/ops/map_pages.h"
#include "tests/kernels/backends_under_test.h"

namespace augur::kernels {
namespace {

struct MapShape {
  int tables, layers, kv_heads, max_blocks;
};

// `count` blocks in their tables' lists, every fifth without a frame.
std::vector<MappedBlock> BlocksOf(const MapShape& shape, int count) {
  std::vector<MappedBlock> blocks;
  for (int i = 0; i < count; ++i) {
    blocks.push_back({i % shape.tables, i / shape.tables, i % 5 == 4 ? -1 : (i * 7 + 3) % 5000});
  }
  return blocks;
}

void CheckMapPages(Backend& backend, const MapShape& shape, int count) {
  const std::vector<MappedBlock> blocks = BlocksOf(shape, count);
  const SharedArray<MappedBlock> mapped(backend, blocks);
  const size_t groups = size_t(shape.layers) * shape.kv_heads;
  SharedArray<std::byte*> lists(backend, shape.tables * groups * shape.max_blocks);
  std::vector<std::byte*> expected = lists.ToVector();  // what was there stays
  SharedArray<std::byte> pool(backend, 64);                   // only its address is used
  const size_t page_bytes = 32768;
  backend.MapPages({.mapped = mapped.data(),
                    .num_mapped = count,
                    .pool = pool.data(),
                    .lists = lists.data(),
                    .page_bytes = page_bytes,
                    .num_layers = shape.layers,
                    .end_layer = shape.layers,
                    .num_kv_heads = shape.kv_heads,
                    .max_blocks = shape.max_blocks});
  backend.Synchronize();
  for (const MappedBlock& block : blocks) {
    if (block.frame < 0) continue;
    for (size_t group = 0; group < groups; ++group) {
      expected[(block.table * groups + group) * shape.max_blocks + block.block] =
          pool.data() + (block.frame * groups + group) * page_bytes;
    }
  }
  ASSERT_EQ(lists.ToVector(), expected);
}

TEST(TwinMapPagesTest, WritesEveryLayersAndHeadsEntryAndNoOther) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int count : {0, 1, 63, 64, 65, 1000, 4097}) {
      SCOPED_TRACE(name + " " + std::to_string(count));
      CheckMapPages(*backend, {3, 2, 2, 1400}, count);
      CheckMapPages(*backend, {1, 1, 1, 4100}, count);
      CheckMapPages(*backend, {16, 36, 8, 260}, count);
    }
  }
}

}  // namespace
}  // namespace augur::kernels
