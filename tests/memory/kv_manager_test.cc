#include "memory/kv_manager.h"

#include <gtest/gtest.h>

#include <vector>

namespace augur::memory {
namespace {

std::vector<BlockKey> Keys(int first, int count) {
  std::vector<BlockKey> keys;
  for (int i = 0; i < count; ++i)
    keys.push_back({.high = 7, .low = static_cast<uint64_t>(first + i)});
  return keys;
}

void PublishAll(KvManager* kv, SequenceId id, const std::vector<BlockKey>& keys) {
  for (size_t i = 0; i < keys.size(); ++i) kv->Publish(id, static_cast<int>(i), keys[i]);
}

TEST(KvManagerTest, ReleaseWithoutPublishFreesEverything) {
  KvManager kv(4);
  ASSERT_TRUE(kv.Open(1, {}, 0, 3));
  EXPECT_EQ(kv.counts().held, 3);
  kv.Release(1);
  EXPECT_EQ(kv.counts().free, 4);
  kv.CheckInvariants();
}

TEST(KvManagerTest, OpenAndExtendAreAllOrNothing) {
  KvManager kv(4);
  ASSERT_TRUE(kv.Open(1, {}, 0, 3));
  EXPECT_FALSE(kv.Open(2, {}, 0, 2));
  EXPECT_EQ(kv.num_tables(), 1);
  EXPECT_EQ(kv.available(), 1);
  EXPECT_FALSE(kv.Extend(1, 5));
  EXPECT_EQ(kv.table(1).size(), 3u);
  EXPECT_TRUE(kv.Extend(1, 4));
  EXPECT_TRUE(kv.Extend(1, 2)) << "a table never shrinks";
  EXPECT_EQ(kv.table(1).size(), 4u);
  kv.CheckInvariants();
}

TEST(KvManagerTest, AHitSharesTheBlocks) {
  KvManager kv(8);
  const std::vector<BlockKey> keys = Keys(0, 2);
  ASSERT_TRUE(kv.Open(1, {}, 0, 3));
  PublishAll(&kv, 1, keys);
  EXPECT_EQ(kv.CountCached(keys), 2);
  EXPECT_EQ(kv.CostOf(keys, 2, 4), 2);
  ASSERT_TRUE(kv.Open(2, keys, 2, 4));
  EXPECT_EQ(kv.table(2)[0], kv.table(1)[0]);
  EXPECT_EQ(kv.table(2)[1], kv.table(1)[1]);
  EXPECT_NE(kv.table(2)[2], kv.table(1)[2]);
  EXPECT_EQ(kv.CountUnshared(1), 1);
  kv.Release(1);
  EXPECT_EQ(kv.CountUnshared(2), 4);
  kv.CheckInvariants();
}

TEST(KvManagerTest, CountCachedStopsAtTheFirstGap) {
  KvManager kv(8);
  const std::vector<BlockKey> keys = Keys(0, 3);
  ASSERT_TRUE(kv.Open(1, {}, 0, 3));
  kv.Publish(1, 0, keys[0]);
  kv.Publish(1, 2, keys[2]);
  EXPECT_EQ(kv.CountCached(keys), 1);
}

TEST(KvManagerTest, CachedBlocksAreEvictedReleasedLongestAgoAndPrefixEndsFirst) {
  KvManager kv(4);
  const std::vector<BlockKey> old_keys = Keys(0, 2);
  const std::vector<BlockKey> new_keys = Keys(10, 2);
  ASSERT_TRUE(kv.Open(1, {}, 0, 2));
  PublishAll(&kv, 1, old_keys);
  ASSERT_TRUE(kv.Open(2, {}, 0, 2));
  PublishAll(&kv, 2, new_keys);
  kv.Release(1);
  kv.Release(2);
  EXPECT_EQ(kv.counts().cached, 4);
  ASSERT_TRUE(kv.Open(3, {}, 0, 1));
  EXPECT_EQ(kv.CountCached(old_keys), 1) << "the end of the older prefix goes first";
  EXPECT_EQ(kv.CountCached(new_keys), 2);
  ASSERT_TRUE(kv.Extend(3, 2));
  EXPECT_EQ(kv.CountCached(old_keys), 0);
  EXPECT_EQ(kv.CountCached(new_keys), 2);
  kv.CheckInvariants();
}

TEST(KvManagerTest, MakingRoomNeverEvictsTheHitItself) {
  KvManager kv(3);
  const std::vector<BlockKey> keys = Keys(0, 2);
  ASSERT_TRUE(kv.Open(1, {}, 0, 2));
  PublishAll(&kv, 1, keys);
  kv.Release(1);
  EXPECT_EQ(kv.CostOf(keys, 2, 3), 3) << "cached hits are taken from what is available";
  ASSERT_TRUE(kv.Open(2, keys, 2, 3));
  EXPECT_EQ(kv.available(), 0);
  kv.CheckInvariants();
}

TEST(KvManagerTest, ASecondBlockWithTheSameKeyStaysPrivate) {
  KvManager kv(4);
  const std::vector<BlockKey> keys = Keys(0, 1);
  ASSERT_TRUE(kv.Open(1, {}, 0, 1));
  ASSERT_TRUE(kv.Open(2, {}, 0, 1));
  kv.Publish(1, 0, keys[0]);
  kv.Publish(2, 0, keys[0]);
  kv.Release(2);
  EXPECT_EQ(kv.counts().free, 3);
  kv.Release(1);
  EXPECT_EQ(kv.counts().cached, 1);
  kv.ClearCache();
  EXPECT_EQ(kv.counts().free, 4);
  EXPECT_EQ(kv.CountCached(keys), 0);
  kv.CheckInvariants();
}

TEST(KvManagerDeathTest, MistakesOfOursAreFatal) {
  KvManager kv(2);
  ASSERT_TRUE(kv.Open(1, {}, 0, 1));
  EXPECT_DEATH(kv.Open(1, {}, 0, 1), "CHECK failed");
  EXPECT_DEATH(kv.Release(2), "CHECK failed");
}

}  // namespace
}  // namespace augur::memory
