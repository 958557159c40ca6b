// One sequence through the calls of a step, with copies that run only while the test lets time pass
// or something waits for them.
#include "memory/layer_residency.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <set>
#include <vector>

#include "tests/support/simulated_transfers.h"
#include "tests/support/test_pools.h"

namespace augur::memory {
namespace {

constexpr KvLayout kLayout{.num_layers = 4, .num_kv_heads = 2, .page_bytes = 256, .key_bytes = 8};
constexpr ResidencyLimits kLimits{.max_rows = 256, .max_segments = 2, .fetch_blocks = 3};
constexpr ResidencyLimits kRowsOnly{
    .max_rows = 256, .max_segments = 2, .fetch_blocks = 3, .value_fetch = ValueFetch::kRows};
constexpr KvDemand kTiered{.residency = Residency::kTiered, .selects = false, .num_slots = 4};
constexpr int kMostBlocks = 12;

class LayerResidencyTest : public testing::Test {
 protected:
  void SetUp() override {
    pools_.emplace(kLayout, 60, 60, StagingPages(kLayout, kLimits));
    transfers_.emplace(tests::SimulatedTransfersOptions{.units = 1, .queue_copies = 1000}, 1,
                       &clock_);
    store_.emplace(pools_->pools(), &*transfers_, 1);
    residency_.emplace(&*store_, kLimits, &stats_, &clock_);
    ASSERT_TRUE(store_->Open({.id = 1,
                              .demand = kTiered,
                              .keys = {},
                              .hits = 0,
                              .blocks = 1,
                              .most_blocks = kMostBlocks}));
    kv_ = &store_->sequence(1);
  }

  static std::byte Mark(int layer, int head, int block) {
    return static_cast<std::byte>(1 + block * 8 + layer * 2 + head);
  }
  static void Fill(std::byte* page, std::byte mark) {
    std::memset(page, static_cast<int>(mark), kLayout.page_bytes);
  }
  static bool Holds(const std::byte* page, std::byte mark, size_t bytes = kLayout.page_bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      if (page[i] != mark) return false;
    }
    return true;
  }
  void LetCopiesEnd() {
    clock_.Advance(kNsPerSecond);
    EXPECT_TRUE(transfers_->Done(kNoTicket));  // sees the time
    store_->Poll();
  }
  void AppendChunk(int layer, int first, int end) {
    for (int block = first; block < end; ++block) {
      for (int head = 0; head < kLayout.num_kv_heads; ++head) {
        Fill(residency_->AppendPage(kv_, layer, head, block, layer == 0 ? -1 : block - first),
             Mark(layer, head, block));
      }
    }
  }
  // All layers of a chunk of whole blocks whose last `kept` stay in slots.
  void RunChunk(int first, int end, int kept = 2) {
    std::vector<int32_t> last;
    for (int block = end - kept; block < end; ++block) last.push_back(block);
    for (int layer = 0; layer < kLayout.num_layers; ++layer) {
      residency_->BeginLayer(layer, layer == 0 ? 0 : end - first);
      AppendChunk(layer, first, end);
      if (layer > 0) {
        residency_->BeginChunk(kv_, layer, first, end, 0);
        residency_->EndChunk(std::vector(kLayout.num_kv_heads, last), end * 64 - 1);
      }
      residency_->QueueWrites(kv_, layer, end, first, layer == 0 ? -1 : 0);
      residency_->SubmitWrites(layer);
    }
  }

  // A decode row's request for the same blocks in both heads.
  std::vector<const std::byte*> Request(int layer, TransferKind kind, int position,
                                        std::vector<int32_t> blocks,
                                        std::vector<const std::byte*>* values = nullptr) {
    std::vector<const std::byte*> pages(kLayout.num_kv_heads * blocks.size());
    const std::vector<int32_t> counts(kLayout.num_kv_heads, static_cast<int>(blocks.size()));
    std::vector<int32_t> lists = blocks;
    lists.insert(lists.end(), blocks.begin(), blocks.end());
    if (values != nullptr) values->assign(pages.size(), nullptr);
    const BlockRequest row{.kv = kv_,
                           .position = position,
                           .forced = {.init = 0, .local = 1},
                           .blocks = lists.data(),
                           .counts = counts.data(),
                           .pages = pages.data(),
                           .values = values == nullptr ? nullptr : values->data(),
                           .stride = static_cast<int>(blocks.size())};
    residency_->Request(layer, kind, {&row, 1});
    return pages;
  }

  FakeClock clock_;
  ResidencyStats stats_{kLayout.num_layers};
  std::optional<tests::TestPools> pools_;
  std::optional<tests::SimulatedTransfers> transfers_;
  std::optional<KvStore> store_;
  std::optional<LayerResidency> residency_;
  SequenceKv* kv_ = nullptr;
};

TEST_F(LayerResidencyTest, ATailHasASlotInEveryGroupAndItsOwnPage) {
  residency_->PrepareTail(kv_, 0, {.init = 1, .local = 2});
  std::set<std::byte*> pages;
  for (int layer = 0; layer < kLayout.num_layers; ++layer) {
    for (int head = 0; head < kLayout.num_kv_heads; ++head) {
      pages.insert(residency_->AppendPage(kv_, layer, head, 0, -1));
    }
  }
  EXPECT_EQ(pages.size(), size_t(kLayout.num_groups()));
  residency_->PrepareTail(kv_, 1, {.init = 1, .local = 2});
  EXPECT_TRUE(pages.contains(residency_->AppendPage(kv_, 3, 1, 0, -1))) << "it stays";
}

TEST_F(LayerResidencyTest, ATailWaitsForTheWriteOfTheBlockWhoseSlotItTakes) {
  RunChunk(0, 4, 4);
  ASSERT_EQ(kv_->landed_everywhere(), 0);
  residency_->PrepareTail(kv_, 4 * 64, {.init = 1, .local = 2});
  for (int layer = 1; layer < kLayout.num_layers; ++layer) {
    const SlotGroup group = kv_->group(kLayout, layer, 0);
    EXPECT_GE(FindSlot(group, 4), 0);
    EXPECT_GE(FindSlot(group, 0), 0) << "the first block stays";
    EXPECT_LT(FindSlot(group, 1), 0);
    EXPECT_GE(FindSlot(group, 3), 0) << "and the one before the tail";
    EXPECT_GT(kv_->landed_blocks[layer], 1);
  }
}

TEST_F(LayerResidencyTest, AChunkIsWrittenBehindAndKeepsItsWorkingSet) {
  RunChunk(0, 3);
  EXPECT_EQ(kv_->submitted_blocks, (std::vector<int>{3, 3, 3, 3}));
  LetCopiesEnd();
  EXPECT_EQ(kv_->landed_blocks, (std::vector<int>{3, 3, 3, 3}));
  for (int layer = 0; layer < kLayout.num_layers; ++layer) {
    for (int head = 0; head < kLayout.num_kv_heads; ++head) {
      for (int block = 0; block < 3; ++block) {
        EXPECT_TRUE(Holds(store_->pools().host_page(kv_->host_blocks[block], layer, head),
                          Mark(layer, head, block)));
        if (layer == 0) continue;
        const int slot = FindSlot(kv_->group(kLayout, layer, head), block);
        EXPECT_EQ(slot >= 0, block >= 1);
        if (slot < 0) continue;
        EXPECT_TRUE(
            Holds(kv_->slot_page(store_->pools(), layer, head, slot), Mark(layer, head, block)));
      }
    }
  }
  EXPECT_EQ(transfers_->fault(), "");
}

TEST_F(LayerResidencyTest, StagedPagesAreUsedAgainTwoLayersLaterAfterTheirWrites) {
  residency_->BeginLayer(1, 2);
  AppendChunk(1, 0, 2);
  residency_->QueueWrites(kv_, 1, 2, 0, 0);
  residency_->SubmitWrites(1);
  residency_->BeginLayer(2, 2);
  EXPECT_EQ(clock_.NowNs(), 0) << "the other half is free";
  EXPECT_NE(residency_->AppendPage(kv_, 2, 0, 0, 0), residency_->AppendPage(kv_, 1, 0, 0, 0));
  residency_->BeginLayer(3, 2);
  EXPECT_EQ(residency_->AppendPage(kv_, 3, 0, 0, 0), residency_->AppendPage(kv_, 1, 0, 0, 0));
  store_->Poll();
  EXPECT_EQ(kv_->landed_blocks[1], 2);
  EXPECT_GT(clock_.NowNs(), 0);
}

TEST_F(LayerResidencyTest, MissingBlocksAreThereAfterTheWait) {
  RunChunk(0, 4);
  LetCopiesEnd();
  const auto pages = Request(1, TransferKind::kPrefetch, 4 * 64 - 1, {0, 1, 3});
  EXPECT_FALSE(Holds(pages[0], Mark(1, 0, 0))) << "on its way";
  EXPECT_TRUE(Holds(pages[2], Mark(1, 0, 3))) << "in a slot since the chunk";
  residency_->WaitForLayer(1);
  for (int head = 0; head < kLayout.num_kv_heads; ++head) {
    EXPECT_TRUE(Holds(pages[head * 3], Mark(1, head, 0)));
    EXPECT_TRUE(Holds(pages[head * 3 + 1], Mark(1, head, 1)));
    EXPECT_TRUE(Holds(pages[head * 3 + 2], Mark(1, head, 3)));
  }
  EXPECT_EQ(stats_.prefetch_late.load(), 4u);
  EXPECT_EQ(stats_.layers[1].fetched_blocks.load(), 4u);
  EXPECT_EQ(stats_.checked_pages.load(), 4u);
  Request(2, TransferKind::kPrefetch, 4 * 64 - 1, {0, 3});
  LetCopiesEnd();
  residency_->WaitForLayer(2);
  EXPECT_EQ(stats_.prefetch_hit.load(), 2u);
  Request(3, TransferKind::kFetch, 4 * 64 - 1, {1, 3});
  residency_->WaitForLayer(3);
  EXPECT_EQ(stats_.prefetch_miss.load(), 2u);
}

// A sampled token's block moves its keys; rows of its values are read in the host page and counted,
// until the values move too.
TEST_F(LayerResidencyTest, KeysAloneThenRowsThenValues) {
  constexpr size_t kHalf = kLayout.page_bytes / 2;
  for (const bool moves : {false, true}) {
    SCOPED_TRACE(moves);
    store_->Release(1);
    SetUp();
    if (!moves) residency_.emplace(&*store_, kRowsOnly, &stats_, &clock_);
    RunChunk(0, 4);
    LetCopiesEnd();
    const uint64_t key_bytes = stats_.key_bytes, row_bytes = stats_.row_bytes;
    std::vector<const std::byte*> values;
    const auto pages = Request(1, TransferKind::kFetch, 4 * 64 - 1, {0, 3}, &values);
    residency_->WaitForLayer(1);
    EXPECT_TRUE(Holds(pages[0], Mark(1, 0, 0), kHalf));
    EXPECT_FALSE(Holds(pages[0] + kHalf, Mark(1, 0, 0), kHalf)) << "keys alone";
    const std::byte* host = store_->pools().host_page(kv_->host_blocks[0], 1, 0) + kHalf;
    EXPECT_EQ(values[0], host);
    EXPECT_EQ(values[1], pages[1] + kHalf) << "whole since the chunk";
    EXPECT_EQ(stats_.key_bytes - key_bytes, 2 * kHalf);
    const std::vector<int32_t> blocks = {0, 3, 0, 3}, counts = {2, 2}, rows = {3, 5, 0, 7};
    residency_->NoteValueRows(kv_, 1, blocks.data(), counts.data(), rows.data(), 2);
    EXPECT_EQ(stats_.row_bytes - row_bytes, 3 * kLayout.host_row_bytes());
    EXPECT_EQ(kv_->value_moves.size(), moves ? 1u : 0u);
    residency_->PrepareTail(kv_, 4 * 64 - 1, {.init = 0, .local = 1});
    EXPECT_TRUE(kv_->value_moves.empty()) << "waited for before slots may change";
    Request(1, TransferKind::kFetch, 4 * 64 - 1, {0, 3}, &values);
    residency_->WaitForLayer(1);
    EXPECT_EQ(values[0] == host, !moves);
    EXPECT_TRUE(Holds(values[0], Mark(1, 0, 0), kHalf));
    EXPECT_NE(values[2], pages[2] + kHalf) << "nothing was read of the other head's block";
    EXPECT_EQ(transfers_->fault(), "");
  }
  // An H200's link: values of 64 rows of 256 bytes cost as much as rows of them in twelve steps.
  EXPECT_NEAR(LinkNs(64 * 256) / LinkNs(4 * 256), 11.5, 0.1);
  EXPECT_NEAR(LinkNs(64 * 256) / LinkNs(16 * 256), 4.0, 0.01);
}

// Whoever asks for whole blocks after a sample of them would read keys beside old values.
TEST_F(LayerResidencyTest, WholeBlocksAreNotTakenFromSlotsOfKeys) {
  RunChunk(0, 4);
  LetCopiesEnd();
  std::vector<const std::byte*> values;
  Request(1, TransferKind::kFetch, 4 * 64 - 1, {0, 3}, &values);
  residency_->WaitForLayer(1);
  EXPECT_DEATH(Request(1, TransferKind::kFetch, 4 * 64, {0, 3}), "slot_has_values");
}

TEST_F(LayerResidencyTest, ABlockThatHasNotLandedIsWaitedForBeforeItsFetch) {
  RunChunk(0, 4);
  ASSERT_EQ(kv_->landed_blocks[3], 0);
  const auto pages = Request(3, TransferKind::kFetch, 4 * 64 - 1, {0, 3});
  residency_->WaitForLayer(3);
  EXPECT_TRUE(Holds(pages[0], Mark(3, 0, 0)));
  EXPECT_TRUE(Holds(pages[1], Mark(3, 0, 3)));
  EXPECT_EQ(transfers_->fault(), "");
}

TEST_F(LayerResidencyTest, APageOnItsWayIsReadFromTheHost) {
  RunChunk(0, 4);
  ASSERT_EQ(kv_->landed_blocks[3], 0);
  EXPECT_TRUE(Holds(residency_->ReadablePage(kv_, 3, 0, 0), Mark(3, 0, 0)))
      << "in no slot and not landed: it waits";
  LetCopiesEnd();
  const auto pages = Request(1, TransferKind::kPrefetch, 4 * 64 - 1, {0, 3});
  const std::byte* readable = residency_->ReadablePage(kv_, 1, 0, 0);
  EXPECT_NE(readable, pages[0]);
  EXPECT_TRUE(Holds(readable, Mark(1, 0, 0)));
  residency_->WaitForLayer(1);
  EXPECT_EQ(residency_->ReadablePage(kv_, 1, 0, 0), pages[0]);
}

TEST_F(LayerResidencyTest, TilesComeFromTheChunkTheSlotsAndTheHost) {
  RunChunk(0, 4);  // 2 and 3 stay in slots
  residency_->BeginLayer(1, 2);
  AppendChunk(1, 4, 6);
  residency_->BeginChunk(kv_, 1, 4, 6, 0);
  EXPECT_EQ(residency_->fetch_blocks(), 3);
  EXPECT_EQ(residency_->CountMissing(0, std::vector<int32_t>{0, 1, 2, 4, 5}), 2);
  for (const std::vector<int32_t>& tile :
       std::vector<std::vector<int32_t>>{{0, 1, 2, 3, 4, 5}, {1, 2, 5}, {0, 3}}) {
    residency_->FetchTile(std::vector(kLayout.num_kv_heads, tile));
    for (int head = 0; head < kLayout.num_kv_heads; ++head) {
      for (const int32_t block : tile) {
        EXPECT_TRUE(Holds(residency_->TilePage(head, block), Mark(1, head, block)));
      }
    }
  }
  EXPECT_EQ(stats_.layers[1].fetched_blocks.load(), 4u) << "tiles share what they fetched";
  residency_->FetchTile(std::vector<std::vector<int32_t>>(2, {0, 4, 5}));
  residency_->EndChunk(std::vector<std::vector<int32_t>>(2, {0, 4, 5}), 6 * 64 - 1);
  const SlotGroup group = kv_->group(kLayout, 1, 1);
  for (const int32_t block : {0, 4, 5}) {
    const int slot = FindSlot(group, block);
    ASSERT_GE(slot, 0);
    EXPECT_EQ(group.stamps[slot], 6 * 64 - 1);
    EXPECT_TRUE(Holds(kv_->slot_page(store_->pools(), 1, 1, slot), Mark(1, 1, block)));
  }
}

TEST_F(LayerResidencyTest, AResidentSequenceIsWrittenBehindOnlyWhenMirrored) {
  ASSERT_TRUE(store_->Open({.id = 2,
                            .demand = {.residency = Residency::kDevice},
                            .keys = {},
                            .hits = 0,
                            .blocks = 2,
                            .most_blocks = 2}));
  SequenceKv* kv = &store_->sequence(2);
  const auto run = [&] {
    for (int layer = 0; layer < kLayout.num_layers; ++layer) {
      for (int head = 0; head < kLayout.num_kv_heads; ++head) {
        Fill(residency_->AppendPage(kv, layer, head, 0, -1), Mark(layer, head, 0));
      }
      residency_->QueueWrites(kv, layer, 1, 0, -1);
      residency_->SubmitWrites(layer);
    }
  };
  run();
  EXPECT_TRUE(transfers_->quiet());
  ASSERT_TRUE(store_->BeginMirror(2, 2));
  run();
  LetCopiesEnd();
  EXPECT_EQ(kv->landed_everywhere(), 1);
  EXPECT_TRUE(Holds(store_->pools().host_page(kv->host_blocks[0], 3, 1), Mark(3, 1, 0)));
}

TEST_F(LayerResidencyTest, AReleasedSequenceDoesNotDropItsNeighboursWrites) {
  for (const SequenceId released : {2, 4}) {
    const SequenceId ids[] = {released == 2 ? SequenceId{2} : SequenceId{3},
                              released == 2 ? SequenceId{3} : SequenceId{4}};
    for (const SequenceId id : ids) {
      ASSERT_TRUE(store_->Open(
          {.id = id, .demand = kTiered, .keys = {}, .hits = 0, .blocks = 1, .most_blocks = 2}));
    }
    for (int layer = 0; layer < kLayout.num_layers; ++layer) {
      residency_->BeginLayer(layer, layer == 0 ? 0 : 2);
      for (int place = 0; place < 2; ++place) {
        SequenceKv* kv = &store_->sequence(ids[place]);
        for (int head = 0; head < kLayout.num_kv_heads; ++head) {
          Fill(residency_->AppendPage(kv, layer, head, 0, layer == 0 ? -1 : place),
               Mark(layer, head, 3 + place));
        }
        residency_->QueueWrites(kv, layer, 1, 0, layer == 0 ? -1 : place);
      }
      residency_->SubmitWrites(layer);
    }
    store_->Release(released);
    LetCopiesEnd();
    const int kept = released == ids[0] ? 1 : 0;
    SequenceKv* kv = &store_->sequence(ids[kept]);
    EXPECT_EQ(kv->landed_everywhere(), 1);
    for (int layer = 0; layer < kLayout.num_layers; ++layer) {
      EXPECT_TRUE(
          Holds(store_->pools().host_page(kv->host_blocks[0], layer, 1), Mark(layer, 1, 3 + kept)));
    }
    store_->Release(ids[kept]);
  }
}

TEST_F(LayerResidencyTest, APageThatComesBackDifferentEndsTheProcess) {
  RunChunk(0, 4);
  LetCopiesEnd();
  *store_->pools().host_page(kv_->host_blocks[0], 1, 0) ^= std::byte{1};
  Request(1, TransferKind::kFetch, 4 * 64 - 1, {0, 3});
  EXPECT_DEATH(residency_->WaitForLayer(1), "PageCheck::Result::kDiffers");
}

}  // namespace
}  // namespace augur::memory
