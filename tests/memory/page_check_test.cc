#include "memory/page_check.h"

#include <gtest/gtest.h>

#include <string_view>
#include <vector>

namespace augur::memory {
namespace {

using Result = PageCheck::Result;
using Page = std::vector<std::byte>;

Page MakePage(uint64_t seed, size_t bytes = 4096) {
  Page page(bytes);
  for (size_t i = 0; i < bytes; ++i) page[i] = std::byte(seed * 131 + i * 7 + (i >> 8));
  return page;
}

uint64_t HashText(std::string_view text) { return HashBytes(std::as_bytes(std::span(text))); }

TEST(PageCheckTest, HashIsXxh64) {
  EXPECT_EQ(HashText(""), 0xEF46DB3751D8E999);
  EXPECT_EQ(HashText("a"), 0xD24EC4F1A98C6E5B);
  EXPECT_EQ(HashText("abc"), 0x44BC2CF5AD770999);
  EXPECT_EQ(HashText("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1);
}

TEST(PageCheckTest, EveryBitOfAPageMatters) {
  Page page = MakePage(1, 101);  // the lanes and each tail of the hash
  const uint64_t hash = HashBytes(page);
  for (size_t bit = 0; bit < 8 * page.size(); ++bit) {
    page[bit / 8] ^= std::byte(1 << bit % 8);
    EXPECT_NE(HashBytes(page), hash) << bit;
    page[bit / 8] ^= std::byte(1 << bit % 8);
  }
  EXPECT_EQ(HashBytes(page), hash);
}

TEST(PageCheckTest, FindsAFlippedBitAndAnotherLength) {
  PageCheck check({.one_in = 1, .capacity = 16});
  Page page = MakePage(1);
  check.Record(3, page);
  EXPECT_EQ(check.Verify(3, page), Result::kEqual);
  page[4095] ^= std::byte{0x80};
  EXPECT_EQ(check.Verify(3, page), Result::kDiffers);
  page[4095] ^= std::byte{0x80};
  EXPECT_EQ(check.Verify(3, std::span(page).first(4088)), Result::kDiffers);
  EXPECT_EQ(check.Verify(3, page), Result::kEqual);
  EXPECT_EQ(check.Verify(4, page), Result::kNotSampled);
  EXPECT_EQ(check.counts().recorded, 1u);
  EXPECT_EQ(check.counts().checked, 4u);
  EXPECT_EQ(check.counts().failed, 2u);
}

TEST(PageCheckTest, OffDoesNothing) {
  PageCheck check({.one_in = 0});
  const Page page = MakePage(1);
  check.Record(3, page);
  EXPECT_EQ(check.Verify(3, MakePage(2)), Result::kNotSampled);
  EXPECT_EQ(check.counts().recorded + check.counts().checked, 0u);
}

TEST(PageCheckTest, ASpillThatIsNotSampledForgetsWhatThePageHeld) {
  PageCheck check({.one_in = 5, .capacity = 16});
  uint64_t sampled = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    const Page page = MakePage(i, 64);
    check.Record(i % 3, page);
    const Result result = check.Verify(i % 3, page);
    ASSERT_NE(result, Result::kDiffers) << i;
    sampled += result == Result::kEqual;
  }
  EXPECT_EQ(sampled, check.counts().recorded);
}

TEST(PageCheckTest, SamplesOneInNWithoutFallingInStep) {
  constexpr uint64_t kPages = 36'000;
  constexpr uint64_t kLayers = 36;
  PageCheck check({.one_in = 36, .capacity = kPages});
  const Page page = MakePage(1, 64);
  std::vector<int> by_layer(kLayers);
  for (uint64_t i = 0; i < kPages; ++i) {
    check.Record(i, page);
    by_layer[i % kLayers] += check.Verify(i, page) == Result::kEqual;
  }
  EXPECT_NEAR(static_cast<double>(check.counts().recorded), kPages / 36.0, 0.1 * kPages / 36.0);
  for (const int sampled : by_layer) EXPECT_GT(sampled, 5);
  EXPECT_EQ(check.counts().displaced, 0u);
}

TEST(PageCheckTest, MemoryIsBoundedTheNewerPageDisplacesTheOlder) {
  PageCheck check({.one_in = 1, .capacity = 4});
  for (uint64_t i = 0; i < 8; ++i) check.Record(i, MakePage(i));
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(check.Verify(i, MakePage(i)), Result::kNotSampled);
  for (uint64_t i = 4; i < 8; ++i) EXPECT_EQ(check.Verify(i, MakePage(i)), Result::kEqual);
  EXPECT_EQ(check.counts().displaced, 4u);
}

}  // namespace
}  // namespace augur::memory
