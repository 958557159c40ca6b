#include "memory/kv_layout.h"

#include <gtest/gtest.h>

#include "memory/kv_pools.h"

namespace augur::memory {
namespace {

constexpr size_t kKiB = 1024, kMiB = 1024 * 1024;

// 8B shape: 32 layers, 2 kv heads of 128, bfloat16.
KvLayout Large() { return MakeKvLayout(32, 2, 128, 2); }

TEST(KvLayoutTest, SizesOfThe8BShape) {
  const KvLayout layout = Large();
  EXPECT_EQ(layout.page_bytes, 32 * kKiB);  // keys and values of 64 tokens, 256 bytes each
  EXPECT_EQ(layout.key_bytes, 1 * kKiB);    // four windows
  EXPECT_EQ(layout.num_groups(), 64);
  EXPECT_EQ(layout.frame_bytes(), 2 * kMiB);
  EXPECT_EQ(layout.host_block_bytes(), 2 * kMiB + 64 * kKiB);
}

// A byte an element and one a row: 16,512 of 32,768.
TEST(KvLayoutTest, HostPagesInFp8AreHalfAsLong) {
  KvLayout layout = Large();
  layout.fp8_of = kernels::DType::kBF16;
  EXPECT_EQ(layout.page_bytes, 32 * kKiB);
  EXPECT_EQ(layout.frame_bytes(), 2 * kMiB);
  EXPECT_EQ(layout.host_page_bytes(), 16 * kKiB + 128);
  EXPECT_EQ(layout.half_host_page_bytes(), 8 * kKiB + 64);
  EXPECT_EQ(layout.host_block_bytes(), kMiB + 64 * 128 + 64 * kKiB);
}

TEST(KvLayoutTest, ATieredSequenceOf128KTokens) {
  const KvDemand demand{.residency = Residency::kTiered, .selects = true, .num_slots = 96};
  const KvFootprint footprint = FootprintOf(Large(), demand, 128 * 1024 / 64);
  EXPECT_EQ(footprint, (KvFootprint{.block_frames = 0,
                                    .slot_frames = 96,
                                    .layer0_frames = 61,  // (2048 - 96) / 32
                                    .key_frames = 64,     // 2048 / 32
                                    .host_blocks = 2048}));
  EXPECT_EQ(footprint.frames(), 221);
}

TEST(KvLayoutTest, AResidentSequenceTakesItsBlocksAndItsKeys) {
  const KvDemand demand{.residency = Residency::kDevice, .selects = true, .num_slots = 96};
  const KvFootprint footprint = FootprintOf(Large(), demand, 33);
  EXPECT_EQ(footprint.block_frames, 33);
  EXPECT_EQ(footprint.key_frames, 2) << "the 33rd block's keys begin a frame";
  EXPECT_EQ(footprint.host_blocks, 0);
  EXPECT_EQ(footprint.frames(), 35);
}

TEST(KvLayoutTest, DenseSequencesHaveNoKeys) {
  const KvDemand resident{.residency = Residency::kDevice, .selects = false, .num_slots = 0};
  EXPECT_EQ(FootprintOf(Large(), resident, 33).frames(), 33);
  const KvDemand tiered{.residency = Residency::kTiered, .selects = false, .num_slots = 2};
  EXPECT_EQ(FootprintOf(Large(), tiered, 66).frames(), 2 + 2);
}

TEST(KvLayoutTest, AShortSequenceHasASlotForEachBlockAndNoMore) {
  const KvDemand demand{.residency = Residency::kTiered, .selects = false, .num_slots = 96};
  for (const int blocks : {1, 95, 96}) {
    const KvFootprint footprint = FootprintOf(Large(), demand, blocks);
    EXPECT_EQ(footprint.slot_frames, blocks);
    EXPECT_EQ(footprint.layer0_frames, 0);
  }
  EXPECT_EQ(FootprintOf(Large(), demand, 97).layer0_frames, 1);
  EXPECT_EQ(FootprintOf(Large(), demand, 96 + 32).layer0_frames, 1);
  EXPECT_EQ(FootprintOf(Large(), demand, 96 + 33).layer0_frames, 2);
}

TEST(KvLayoutTest, TheFormulaPrintsItself) {
  const KvDemand demand{.residency = Residency::kTiered, .selects = true, .num_slots = 96};
  EXPECT_EQ(DescribeFootprint(Large(), demand, 2048),
            "2048 blocks, 96 slots, 61 for layer 0, 64 for compressed keys = 221 frames of 2097152 "
            "bytes = 442.0 MiB on the device, 2048 blocks of 2162688 bytes = 4224.0 MiB on the "
            "host");
}

TEST(KvLayoutTest, PagesOfAPoolDoNotOverlap) {
  const KvLayout layout = MakeKvLayout(3, 2, 16, 4);
  std::byte* const base = reinterpret_cast<std::byte*>(uintptr_t{1} << 20);
  const KvPools pools{.layout = layout,
                      .num_frames = 4,
                      .num_host_blocks = 4,
                      .num_staging_pages = 4,
                      .device = base,
                      .host = base,
                      .host_keys = base,
                      .staging = base};
  size_t index = 0;
  for (int frame = 0; frame < 4; ++frame) {
    for (int layer = 0; layer < 3; ++layer) {
      for (int head = 0; head < 2; ++head, ++index) {
        EXPECT_EQ(pools.device_page(frame, layer, head), base + index * layout.page_bytes);
        EXPECT_EQ(pools.host_page(frame, layer, head), base + index * layout.page_bytes);
        EXPECT_EQ(pools.host_key(frame, layer, head), base + index * layout.key_bytes);
      }
    }
  }
  EXPECT_EQ(index * layout.page_bytes, 4 * layout.frame_bytes());
}

}  // namespace
}  // namespace augur::memory
