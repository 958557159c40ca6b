// Index functions of the CUDA backend's prefill attention, which need no device.
#include "kernels/cuda/prefill_tiles.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace augur::kernels {
namespace {

TEST(PrefillTilesTest, TheBoundHoldsForAnySegments) {
  for (const int group : {1, 3, 7, 16}) {
    for (const std::vector<int>& segments :
         {std::vector<int>{1}, {0, 0, 5}, {128, 128}, {1, 1, 1, 1}, {127, 129, 1000, 43}}) {
      int rows = 0, tiles = 0;
      for (const int num_rows : segments) {
        rows += num_rows;
        tiles += PrefillTilesOf(num_rows, group, 128);
      }
      EXPECT_LE(tiles, MaxPrefillTiles(rows, group, static_cast<int>(segments.size()), 128));
    }
  }
}

TEST(PrefillTilesTest, PagesOfASpan) {
  for (const int group : {1, 3, 16}) {
    for (const int first_position : {0, 1, 62, 63, 64, 1000}) {
      for (const int begin : {0, 32, 128}) {
        for (const int count : {1, 31, 128}) {
          const PrefillSpan span{begin, begin + count, first_position, group};
          const int first = first_position + begin / group;
          const int last = first_position + (begin + count - 1) / group;
          EXPECT_EQ(span.NumPages(), last / 64 + 1);
          const int masked = span.FirstMaskedPage();
          EXPECT_GT(masked * 64 + 63, first);  // the first row does not see this page's last key
          EXPECT_TRUE(masked == 0 || masked * 64 - 1 <= first);
          EXPECT_LE(masked, span.NumPages());
        }
      }
    }
  }
  EXPECT_EQ((PrefillSpan{5, 5, 100, 4}.NumPages()), 0);
}

template <int kHeadDim>
void ExpectNoBankConflicts() {
  using Layout = SwizzledRows<kHeadDim>;
  std::set<int> offsets;
  for (int row = 0; row < 64; ++row) {
    for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
      const int offset = Layout::OffsetOf(row, chunk);
      EXPECT_EQ(offset / Layout::kRowBytes, row);
      EXPECT_EQ(offset % 16, 0);
      offsets.insert(offset);
      EXPECT_EQ(Layout::OffsetOf(row + 8, chunk), offset + 8 * Layout::kRowBytes);
      const int first = Layout::OffsetOf(row, chunk % 2);
      EXPECT_EQ(Layout::Advance(1024u + first, chunk / 2 * 2), 1024u + offset);
    }
  }
  EXPECT_EQ(offsets.size(), 64u * Layout::kChunks);
  for (int row = 0; row < 64; row += 8) {
    for (int chunk = 0; chunk < Layout::kChunks; ++chunk) {
      std::set<int> places;
      for (int i = 0; i < 8; ++i) places.insert(Layout::OffsetOf(row + i, chunk) % 128);
      EXPECT_EQ(places.size(), 8u) << kHeadDim << " row " << row << " chunk " << chunk;
    }
  }
}

TEST(PrefillTilesTest, EightRowsOfAChunkTakeAllBanks) { ExpectNoBankConflicts<96>(); }

template <int kRows>
void ExpectColumnsOfTheHardware() {
  constexpr int kColumnBytes = kSwizzledColumnBytes<kRows>;
  std::set<int> offsets;
  for (int row = 0; row < kRows; ++row) {
    for (int chunk = 0; chunk < 16; ++chunk) {
      const int plain = chunk / 8 * kColumnBytes + row * 128 + chunk % 8 * 16;
      // Swizzling over 128 bytes: address bits 4 to 6 are xored with bits 7 to 9.
      EXPECT_EQ(SwizzledColumnOffset<kRows>(row, chunk), plain ^ (plain >> 7 & 7) << 4);
      offsets.insert(SwizzledColumnOffset<kRows>(row, chunk));
    }
  }
  EXPECT_EQ(offsets.size(), kRows * 16u);
  EXPECT_EQ(*offsets.rbegin(), 2 * kColumnBytes - 16);
}

TEST(PrefillTilesTest, SwizzledColumnsAreThoseOfTheHardware) {
  ExpectColumnsOfTheHardware<kPairTokens>();
  ExpectColumnsOfTheHardware<kBlockTokens>();
}

TEST(PrefillTilesTest, ChoosingTokensFillAWarpgroupOrHalfAWord) {
  for (int group = 1; group <= 64; ++group) {
    const int tokens = ChoosingTokens(group);
    EXPECT_GE(tokens, 1);
    EXPECT_LE(tokens * group, 64);
    EXPECT_LE(tokens, 16);
    EXPECT_TRUE(tokens == 16 || (tokens + 1) * group > 64) << group;
  }
}

}  // namespace
}  // namespace augur::kernels
