#include "memory/block_key.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace augur::memory {
namespace {

std::vector<int32_t> Tokens(int count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

TEST(BlockKeyTest, OneKeyForEachFullBlock) {
  const BlockKeySecret secret = DrawBlockKeySecret();
  EXPECT_TRUE(MakeBlockKeys(secret, "", "", Tokens(0)).empty());
  EXPECT_TRUE(MakeBlockKeys(secret, "", "", Tokens(63)).empty());
  EXPECT_EQ(MakeBlockKeys(secret, "", "", Tokens(64)).size(), 1u);
  EXPECT_EQ(MakeBlockKeys(secret, "", "", Tokens(191)).size(), 2u);
}

TEST(BlockKeyTest, DependsOnEverythingThatTheContentDependsOn) {
  const BlockKeySecret secret = DrawBlockKeySecret();
  const std::vector<int32_t> tokens = Tokens(128);
  const std::vector<BlockKey> keys = MakeBlockKeys(secret, "model", "salt", tokens);
  EXPECT_EQ(MakeBlockKeys(secret, "model", "salt", tokens), keys);
  EXPECT_NE(MakeBlockKeys(secret, "model2", "salt", tokens)[0], keys[0]);
  EXPECT_NE(MakeBlockKeys(secret, "model", "salt2", tokens)[0], keys[0]);
  EXPECT_NE(MakeBlockKeys(secret, "modelsalt", "", tokens)[0], keys[0])
      << "parts do not run together";
  EXPECT_NE(MakeBlockKeys(DrawBlockKeySecret(), "model", "salt", tokens)[0], keys[0]);
  std::vector<int32_t> changed = tokens;
  changed[0] = 99;
  const std::vector<BlockKey> other = MakeBlockKeys(secret, "model", "salt", changed);
  EXPECT_NE(other[0], keys[0]);
  EXPECT_NE(other[1], keys[1]) << "a block's key covers what came before";
}

}  // namespace
}  // namespace augur::memory
