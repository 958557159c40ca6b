// Sequences through their states, with copies that run only while the test lets time pass.
#include "memory/kv_store.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "tests/support/simulated_transfers.h"
#include "tests/support/test_pools.h"

namespace augur::memory {
namespace {

constexpr KvLayout kLayout{.num_layers = 3, .num_kv_heads = 2, .page_bytes = 256, .key_bytes = 8};
constexpr KvDemand kResident{.residency = Residency::kDevice, .selects = false, .num_slots = 0};
constexpr KvDemand kSelecting{.residency = Residency::kDevice, .selects = true, .num_slots = 4};
constexpr KvDemand kTiered{.residency = Residency::kTiered, .selects = true, .num_slots = 4};

class KvStoreTest : public testing::Test {
 protected:
  void SetUp() override { Make(40, 40); }

  void Make(int num_frames, int num_host_blocks) {
    store_.reset();
    pools_.emplace(kLayout, num_frames, num_host_blocks, 0);
    transfers_.emplace(tests::SimulatedTransfersOptions{.units = 1, .queue_copies = 1000}, 1,
                       &clock_);
    store_.emplace(pools_->pools(), &*transfers_);
  }

  static std::vector<BlockKey> Keys(int count, uint64_t salt = 1) {
    std::vector<BlockKey> keys;
    for (int i = 0; i < count; ++i) keys.push_back({salt, static_cast<uint64_t>(i)});
    return keys;
  }

  bool Open(SequenceId id, const KvDemand& demand, int blocks, int most_blocks,
            std::span<const BlockKey> keys = {}) {
    return store_->Open({.id = id,
                         .demand = demand,
                         .keys = keys,
                         .hits = static_cast<int>(keys.size()),
                         .blocks = blocks,
                         .most_blocks = most_blocks});
  }

  static std::byte Mark(int layer, int head, int block) {
    return static_cast<std::byte>(1 + block * 6 + layer * 2 + head);
  }
  static void Fill(std::byte* at, size_t bytes, std::byte value) {
    std::memset(at, static_cast<int>(value), bytes);
  }
  static bool Holds(const std::byte* at, size_t bytes, std::byte value) {
    for (size_t i = 0; i < bytes; ++i) {
      if (at[i] != value) return false;
    }
    return true;
  }

  // Computes blocks [first, end) of a sequence: marks where they lie on the device. Tiered ones
  // take slot `block % num_slots`.
  void Compute(SequenceId id, int first, int end) {
    SequenceKv& kv = store_->sequence(id);
    for (int block = first; block < end; ++block) {
      ForEachGroup([&](int layer, int head) {
        Fill(PageOf(&kv, layer, head, block), kLayout.page_bytes, Mark(layer, head, block));
        if (!kv.demand.selects) return;
        Fill(kv.block_keys(store_->pools(), layer, head, block), kLayout.key_bytes,
             Mark(layer, head, block));
      });
    }
  }

  // Hands the writes of blocks below `end` to the transfer engine.
  void WriteBehind(SequenceId id, int end) {
    SequenceKv& kv = store_->sequence(id);
    for (int layer = 0; layer < kLayout.num_layers; ++layer) {
      std::vector<PageCopy> copies;
      store_->AppendWrites(
          kv, layer, kv.submitted_blocks[layer], end,
          [&](int head, int block) -> const std::byte* { return PageOf(&kv, layer, head, block); },
          &copies);
      std::vector<Ticket> tickets;
      store_->Submit(TransferKind::kSpill, copies, &tickets);
      store_->NoteWrite(&kv, tickets, layer, end);
    }
  }

  std::byte* PageOf(SequenceKv* kv, int layer, int head, int block) {
    if (!kv->tiered() || layer == 0) return kv->resident_page(store_->pools(), layer, head, block);
    SlotGroup group = kv->group(kLayout, layer, head);
    int slot = FindSlot(group, block);
    if (slot < 0) {
      slot = block % kv->num_slots;
      group.blocks[slot] = block;
      group.stamps[slot] = block;
    }
    return kv->slot_page(store_->pools(), layer, head, slot);
  }

  template <class Body>
  static void ForEachGroup(const Body& body) {
    for (int layer = 0; layer < kLayout.num_layers; ++layer) {
      for (int head = 0; head < kLayout.num_kv_heads; ++head) body(layer, head);
    }
  }

  void LetCopiesEnd() {
    clock_.Advance(kNsPerSecond);
    EXPECT_TRUE(transfers_->Done(kNoTicket));  // sees the time
    store_->Poll();
  }

  // All pieces of a cold sequence.
  void HandOver(SequenceId id) {
    EXPECT_TRUE(store_->IsCold(id));
    EXPECT_GT(store_->WarmUp(id, int64_t{1} << 40), 0);
    EXPECT_FALSE(store_->IsCold(id));
  }

  void ExpectEmpty() {
    store_->CheckInvariants();
    EXPECT_EQ(store_->frame_counts().held, 0);
    EXPECT_EQ(store_->host_counts().held, 0);
    EXPECT_EQ(store_->num_closing(), 0);
  }

  FakeClock clock_;
  std::optional<tests::TestPools> pools_;
  std::optional<tests::SimulatedTransfers> transfers_;
  std::optional<KvStore> store_;
};

TEST_F(KvStoreTest, AResidentSequenceGrowsBlockByBlock) {
  ASSERT_TRUE(Open(1, kSelecting, 3, 10));
  EXPECT_EQ(store_->frame_counts().held, 4) << "three blocks and one frame of keys";
  EXPECT_EQ(store_->MissingFrames(1, 5), 2);
  EXPECT_EQ(store_->MissingFrames(1, 33), 31) << "the 33rd block needs a second frame of keys";
  ASSERT_TRUE(store_->Extend(1, 5));
  EXPECT_EQ(store_->sequence(1).frames.size(), 5u);
  EXPECT_EQ(store_->frame_counts().held, 6);
  store_->CheckInvariants();
  EXPECT_EQ(store_->ReclaimableFrames(1), 6);
  store_->Release(1);
  ExpectEmpty();
}

TEST_F(KvStoreTest, OpenAndExtendTakeAllOrNothing) {
  Make(10, 10);
  EXPECT_FALSE(Open(1, kSelecting, 10, 10)) << "ten blocks and their keys";
  EXPECT_EQ(store_->frame_counts().free, 10);
  ASSERT_TRUE(Open(1, kSelecting, 9, 9)) << "the last free frame is for the keys";
  EXPECT_EQ(store_->available_frames(), 0);
  EXPECT_FALSE(store_->Extend(1, 10));
  EXPECT_EQ(store_->sequence(1).frames.size(), 9u);
  store_->CheckInvariants();
  store_->Release(1);
  EXPECT_FALSE(Open(2, kTiered, 1, 11)) << "11 host blocks";
  EXPECT_EQ(store_->available_host_blocks(), 10);
  EXPECT_EQ(store_->available_frames(), 10);
  ExpectEmpty();
}

TEST_F(KvStoreTest, ATieredSequenceTakesItsWholeLifeAtOnce) {
  const KvFootprint footprint = FootprintOf(kLayout, kTiered, 12);
  ASSERT_TRUE(Open(1, kTiered, 2, 12));
  EXPECT_EQ(store_->frame_counts().held, footprint.frames());
  EXPECT_EQ(store_->host_counts().held, 12);
  EXPECT_EQ(store_->MissingFrames(1, 12), 0);
  EXPECT_TRUE(store_->Extend(1, 12));
  EXPECT_EQ(store_->frame_counts().held, footprint.frames());
  store_->CheckInvariants();
  store_->Release(1);
  ExpectEmpty();
}

TEST_F(KvStoreTest, ABlockIsPublishedWhenAllItsLayersHaveLanded) {
  const std::vector<BlockKey> keys = Keys(2);
  ASSERT_TRUE(Open(1, kTiered, 2, 4));
  Compute(1, 0, 2);
  EXPECT_FALSE(store_->Publish(1, 0, keys[0])) << "nothing is written";
  WriteBehind(1, 2);
  EXPECT_FALSE(store_->Publish(1, 0, keys[0])) << "nothing has landed";
  LetCopiesEnd();
  EXPECT_TRUE(store_->Publish(1, 0, keys[0]));
  EXPECT_TRUE(store_->Publish(1, 1, keys[1]));
  EXPECT_EQ(store_->CountCached(Residency::kTiered, keys), 2);
  EXPECT_EQ(store_->CountCached(Residency::kDevice, keys), 0);
  store_->Release(1);
  ExpectEmpty();
  EXPECT_EQ(store_->host_counts().cached, 2);
  store_->ClearCache();
  EXPECT_EQ(store_->host_counts().cached, 0);
}

TEST_F(KvStoreTest, AClosingSequenceKeepsWhatItsCopiesTouchAndPublishesLate) {
  const std::vector<BlockKey> keys = Keys(2);
  ASSERT_TRUE(Open(1, kTiered, 2, 4));
  Compute(1, 0, 2);
  WriteBehind(1, 2);
  store_->Release(1, 0, keys);
  EXPECT_EQ(store_->num_closing(), 1);
  EXPECT_EQ(store_->host_counts().held, 4);
  EXPECT_GT(store_->frame_counts().held, 0);
  EXPECT_EQ(store_->CountCached(Residency::kTiered, keys), 0);
  EXPECT_NE(store_->OldestPending(), kNoTicket);
  store_->CheckInvariants();
  store_->WaitForClosing();
  ExpectEmpty();
  EXPECT_EQ(store_->CountCached(Residency::kTiered, keys), 2);
  EXPECT_TRUE(transfers_->quiet());
}

TEST_F(KvStoreTest, AnAbandonedSequenceDropsCopiesThatHaveNotBegunAndPublishesNothing) {
  ASSERT_TRUE(Open(1, kTiered, 2, 4));
  Compute(1, 0, 2);
  WriteBehind(1, 2);
  store_->Release(1);
  EXPECT_EQ(store_->num_closing(), 1) << "one copy has begun";
  LetCopiesEnd();
  ExpectEmpty();
  EXPECT_LE(transfers_->finished_copies(), 1);
  EXPECT_EQ(store_->host_counts().cached, 0);
}

TEST_F(KvStoreTest, AHitRestoresLayer0AndCompressedKeys) {
  const std::vector<BlockKey> keys = Keys(3);
  ASSERT_TRUE(Open(1, kTiered, 3, 4));
  Compute(1, 0, 3);
  WriteBehind(1, 3);
  LetCopiesEnd();
  for (int block = 0; block < 3; ++block) ASSERT_TRUE(store_->Publish(1, block, keys[block]));
  store_->Release(1);
  ASSERT_TRUE(Open(2, kTiered, 4, 6, keys));
  EXPECT_FALSE(store_->Ready(2));
  HandOver(2);
  EXPECT_FALSE(store_->Ready(2));
  LetCopiesEnd();
  EXPECT_TRUE(store_->Ready(2));
  SequenceKv& kv = store_->sequence(2);
  EXPECT_EQ(kv.keyed_blocks, 3);
  EXPECT_EQ(kv.landed_blocks, (std::vector<int>{3, 3, 3}));
  for (int block = 0; block < 3; ++block) {
    ForEachGroup([&](int layer, int head) {
      const std::byte mark = Mark(layer, head, block);
      EXPECT_TRUE(
          Holds(kv.block_keys(store_->pools(), layer, head, block), kLayout.key_bytes, mark));
      EXPECT_TRUE(Holds(store_->pools().host_page(kv.host_blocks[block], layer, head),
                        kLayout.page_bytes, mark));
      if (layer > 0) return;
      EXPECT_TRUE(
          Holds(kv.resident_page(store_->pools(), 0, head, block), kLayout.page_bytes, mark));
    });
  }
  store_->Release(2);
  LetCopiesEnd();
  ExpectEmpty();
}

TEST_F(KvStoreTest, ASavedSequenceComesBackWithItsTailSlotsAndStamps) {
  ASSERT_TRUE(Open(1, kTiered, 3, 8));
  Compute(1, 0, 3);
  WriteBehind(1, 2);
  store_->Save(1, 2 * 64 + 10);
  EXPECT_TRUE(store_->is_saved(1));
  EXPECT_EQ(store_->frame_counts().held, 0);
  EXPECT_EQ(store_->host_counts().held, 8);
  store_->CheckInvariants();
  // Somebody else has used the frames meanwhile.
  ASSERT_TRUE(Open(2, kResident, 40, 40));
  Compute(2, 0, 40);
  EXPECT_FALSE(store_->Resume(1, 4)) << "no frames";
  EXPECT_TRUE(store_->is_saved(1));
  store_->Release(2);
  ASSERT_TRUE(store_->Resume(1, 4));
  HandOver(1);
  EXPECT_FALSE(store_->Ready(1));
  LetCopiesEnd();
  ASSERT_TRUE(store_->Ready(1));
  SequenceKv& kv = store_->sequence(1);
  for (int block = 0; block < 3; ++block) {
    ForEachGroup([&](int layer, int head) {
      if (layer > 0) {
        const SlotGroup group = kv.group(kLayout, layer, head);
        ASSERT_GE(FindSlot(group, block), 0);
        EXPECT_EQ(group.stamps[FindSlot(group, block)], block);
      }
      EXPECT_TRUE(
          Holds(PageOf(&kv, layer, head, block), kLayout.page_bytes, Mark(layer, head, block)));
    });
  }
  EXPECT_EQ(kv.landed_blocks, (std::vector<int>{2, 2, 2})) << "the tail will be written again";
  EXPECT_EQ(kv.submitted_blocks, (std::vector<int>{2, 2, 2}));
  store_->Release(1);
  LetCopiesEnd();
  ExpectEmpty();
}

TEST_F(KvStoreTest, SavedAgainBeforeItIsRestoredItLosesNothing) {
  ASSERT_TRUE(Open(1, kTiered, 2, 4));
  Compute(1, 0, 2);
  WriteBehind(1, 1);
  store_->Save(1, 64 + 10);
  ASSERT_TRUE(store_->Resume(1, 4));
  store_->Save(1, 64 + 10);  // before anything is on its way
  ASSERT_TRUE(store_->Resume(1, 4));
  HandOver(1);
  store_->Save(1, 64 + 10);
  ASSERT_TRUE(store_->Resume(1, 4));
  HandOver(1);
  LetCopiesEnd();
  SequenceKv& kv = store_->sequence(1);
  ForEachGroup([&](int layer, int head) {
    EXPECT_TRUE(Holds(PageOf(&kv, layer, head, 1), kLayout.page_bytes, Mark(layer, head, 1)));
  });
  EXPECT_EQ(transfers_->fault(), "");
  store_->Release(1);
  LetCopiesEnd();
  ExpectEmpty();
}

TEST_F(KvStoreTest, AMirroredResidentSequenceIsSavedAndResumesTiered) {
  ASSERT_TRUE(Open(1, kSelecting, 7, 9));
  Compute(1, 0, 7);
  EXPECT_FALSE(store_->BeginMirror(1, 41)) << "the host pool has 40";
  EXPECT_FALSE(store_->sequence(1).writes_behind());
  ASSERT_TRUE(store_->BeginMirror(1, 9));
  WriteBehind(1, 4);
  store_->CheckInvariants();
  store_->Save(1, 6 * 64 + 1);
  EXPECT_EQ(store_->frame_counts().held, 0);
  ASSERT_TRUE(store_->Resume(1, 4));
  HandOver(1);
  LetCopiesEnd();
  SequenceKv& kv = store_->sequence(1);
  EXPECT_TRUE(kv.tiered());
  for (int block = 0; block < 7; ++block) {
    ForEachGroup([&](int layer, int head) {
      const std::byte mark = Mark(layer, head, block);
      EXPECT_TRUE(Holds(store_->pools().host_page(kv.host_blocks[block], layer, head),
                        kLayout.page_bytes, mark));
      EXPECT_TRUE(
          Holds(kv.block_keys(store_->pools(), layer, head, block), kLayout.key_bytes, mark));
      if (layer > 0) {
        EXPECT_EQ(FindSlot(kv.group(kLayout, layer, head), block) >= 0, block == 0 || block >= 4)
            << "the first and the last three are in the slots";
      }
    });
  }
  store_->Release(1);
  LetCopiesEnd();
  ExpectEmpty();
}

TEST_F(KvStoreTest, AMirroredSequenceThatEndsGivesBothSidesBack) {
  ASSERT_TRUE(Open(1, kSelecting, 3, 9));
  Compute(1, 0, 3);
  ASSERT_TRUE(store_->BeginMirror(1, 9));
  WriteBehind(1, 2);
  store_->Release(1);
  LetCopiesEnd();
  ExpectEmpty();
}

TEST_F(KvStoreTest, AReleasedSequenceLeavesItsNeighboursWritesAlone) {
  for (const SequenceId id : {1, 2}) {
    ASSERT_TRUE(Open(id, kTiered, 1, 2));
    Compute(id, 0, 1);
    WriteBehind(id, 1);
  }
  store_->Release(1);
  LetCopiesEnd();
  SequenceKv& kv = store_->sequence(2);
  EXPECT_EQ(kv.landed_blocks, (std::vector<int>{1, 1, 1}));
  ForEachGroup([&](int layer, int head) {
    EXPECT_TRUE(Holds(store_->pools().host_page(kv.host_blocks[0], layer, head), kLayout.page_bytes,
                      Mark(layer, head, 0)));
  });
  store_->Release(2);
  ExpectEmpty();
}

// The newest ticket may be done while older, less urgent ones fill the queue.
TEST_F(KvStoreTest, AFullQueueIsWaitedForOldestFirst) {
  transfers_.emplace(tests::SimulatedTransfersOptions{.units = 1, .queue_copies = 12}, 1, &clock_);
  store_.emplace(pools_->pools(), &*transfers_);
  ASSERT_TRUE(Open(1, kTiered, 2, 4));
  Compute(1, 0, 2);
  WriteBehind(1, 1);
  std::vector<Ticket> tickets;
  std::vector<std::byte> target(kLayout.page_bytes);
  const PageCopy copy{pools_->pools().host, target.data(), target.size()};
  store_->Submit(TransferKind::kFetch, {&copy, 1}, &tickets);
  transfers_->Wait(tickets.back());
  WriteBehind(1, 2);
  LetCopiesEnd();
  EXPECT_EQ(store_->sequence(1).landed_blocks, (std::vector<int>{2, 2, 2}));
  store_->Release(1);
  ExpectEmpty();
}

}  // namespace
}  // namespace augur::memory
