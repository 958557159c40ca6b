// What augur-bench counts of choices, by hand.
#include "tests/bench/block_reuse.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace augur::bench {
namespace {

constexpr kernels::SelectionBudget kBudget{.top_k = 5, .init = 1, .local = 2};

TEST(BlockReuseTest, CountsReuseDepthsAndSlots) {
  constexpr std::array<int, 3> kSpares = {0, 1, 2};
  BlockReuse reuse(kBudget, kSpares);
  ReuseCounts counts;
  int position = 64 * 11;  // blocks 0 to 11, free ones 1 to 9
  const auto step = [&](std::vector<int32_t> free, bool counted) {
    reuse.Step(position++, std::vector<int32_t>{0, free[0], free[1], 10, 11},
               counted ? &counts : nullptr);
  };
  step({3, 5}, false);
  step({3, 7}, true);  // 3 stays; nobody chose 7
  step({5, 7}, true);  // 7 stays; 5 lies below 3 and 7
  step({3, 9}, true);  // 3 lies below 7 and 5; nobody chose 9
  step({3, 9}, true);
  step({5, 7}, true);  // stack 3 9 7 5 (7 had stood above 5)
  EXPECT_EQ(counts.chosen, 10);
  EXPECT_EQ(counts.reused, 4);
  EXPECT_EQ(counts.unseen, 2);
  EXPECT_EQ(counts.depths, (std::vector<int64_t>{0, 0, 3, 1}));
  // One spare slot holds what was dropped last: 5, then 3. Two hold all of them.
  EXPECT_EQ(counts.slot_hits, (std::vector<int64_t>{4, 7, 8}));

  const kernels::StackLaw law = LawOf(counts, 2);
  EXPECT_EQ(law.ends[0], 0u);
  EXPECT_EQ(law.ends[1], static_cast<uint32_t>(3.0 / 6 * 65536));  // places below 3
  EXPECT_EQ(law.ends[3], static_cast<uint32_t>(4.0 / 6 * 65536));
  EXPECT_EQ(law.ends[31], law.ends[3]);  // the rest was never seen
}

TEST(BlockReuseTest, BlocksThatLeaveTheWindowCountAsChosenBefore) {
  constexpr std::array<int, 1> kSpares = {0};
  BlockReuse reuse(kBudget, kSpares);
  ReuseCounts counts;
  reuse.Step(64 * 12 - 1, std::vector<int32_t>{0, 3, 5, 10, 11}, nullptr);
  reuse.Step(64 * 12, std::vector<int32_t>{0, 3, 10, 11, 12}, &counts);  // 10 has left it
  EXPECT_EQ(counts.chosen, 2);
  EXPECT_EQ(counts.reused, 2);
  EXPECT_EQ(counts.slot_hits, (std::vector<int64_t>{2}));
}

}  // namespace
}  // namespace augur::bench
