// Encoding time grows with the text, not with its square, whatever the text is made of.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <random>
#include <utility>
#include <vector>

#include "engine/tokenizer/utf8.h"
#include "tests/engine/tokenizer_fixture.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::engine {
namespace {

// Of this thread, so that a busy machine does not count.
double CpuSeconds() {
  timespec now = {};
  EXPECT_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// With cold caches, whatever the size: a text that stays in the cache from run to run would make
// the longer one look worse than it is.
double SecondsToEncode(const Tokenizer& tokenizer, const std::string& text) {
  static std::vector<char> other(16 << 20);
  for (char& byte : other) ++byte;
  const double begin = CpuSeconds();
  const std::vector<TokenId> ids = tokenizer.Encode(text, {});
  const double seconds = CpuSeconds() - begin;
  EXPECT_FALSE(ids.empty());
  return seconds;
}

std::string Repeated(const std::string& unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

// A word without spaces that the merges work on everywhere.
std::string LongWord(size_t bytes) {
  std::string text;
  uint32_t state = 1;
  while (text.size() < bytes) {
    state = state * 1664525u + 1013904223u;
    text.push_back("etaoinshrdlu"[(state >> 16) % 12]);
  }
  return text;
}

// Any characters: of one to four bytes, most of them in no vocabulary.
std::string RandomUtf8(size_t bytes) {
  constexpr char32_t kEnds[] = {0x80, 0x800, 0xD800, 0x20000};
  std::mt19937 random(7);
  std::string text;
  while (text.size() < bytes) AppendUtf8(random() % kEnds[random() % std::size(kEnds)], &text);
  return text;
}

std::vector<std::pair<std::string, std::string>> Texts(size_t bytes) {
  return {{"one letter", std::string(bytes, 'a')},
          {"spaces", std::string(bytes, ' ')},
          {"spaces, then a letter", std::string(bytes, ' ') + "x"},
          {"spaces and line feeds", Repeated(" \n", bytes)},
          {"digits", Repeated("1234567890", bytes)},
          {"one word", LongWord(bytes)},
          {"random UTF-8", RandomUtf8(bytes)},
          {"emoji", Repeated("\U0001F642\U0001F469\u200D\U0001F469\U0001F1E9\U0001F1EA", bytes)},
          {"combining marks", "a" + Repeated("\u0301\u0323", bytes)},
          {"almost special tokens", Repeated("<|im_en", bytes)}};
}

// "golden_qwen2", "trained_llama2" and the like; '_' in a trained one's name stands for '-'.
class Speed : public testing::TestWithParam<std::string> {
 protected:
  static std::unique_ptr<Tokenizer> Load() {
    const std::string& name = GetParam();
    if (name.starts_with("trained_")) return LoadTrained(name.substr(8));
    return MustLoad(GoldenTokenizerPath(name.substr(7)));
  }
};

TEST_P(Speed, TimeIsLinear) {
  const auto tokenizer = Load();
  ASSERT_NE(tokenizer, nullptr);
  constexpr size_t kSmallBytes = kernels::kSanitized ? 16 << 10 : 64 << 10;
  // A sanitizer takes ten times as long, and its shadow memory grows with everything.
  constexpr size_t kLargeBytes = kernels::kSanitized ? 128 << 10 : 1 << 20;
  constexpr double kMostExponent = kernels::kSanitized ? 1.7 : 1.2;
  const auto small = Texts(kSmallBytes);
  const auto large = Texts(kLargeBytes);
  SecondsToEncode(*tokenizer, large[0].second);  // the heap grows once
  for (size_t i = 0; i < small.size(); ++i) {
    // A turn compares one long text with as many bytes in short ones, a moment apart, so that a
    // machine that is busy for a while slows both. What slows one of them alone is there once and
    // not twenty times.
    double long_s = 1e9;
    double exponent = 9;
    for (int turn = 0; turn < 20 && exponent > kMostExponent; ++turn) {
      double short_s = 0;
      for (size_t k = 0; k < kLargeBytes / kSmallBytes; ++k) {
        short_s += SecondsToEncode(*tokenizer, small[i].second);
      }
      const double seconds = SecondsToEncode(*tokenizer, large[i].second);
      constexpr double kRatio = double{kLargeBytes} / kSmallBytes;
      exponent = std::min(exponent, 1 + std::log(seconds / short_s) / std::log(kRatio));
      long_s = std::min(long_s, seconds);
    }
    std::printf("%-24s %-24s %6.0f ms, exponent %.2f\n", GetParam().c_str(), large[i].first.c_str(),
                long_s * 1e3, exponent);
    EXPECT_LE(exponent, kMostExponent) << large[i].first;
    EXPECT_LT(long_s, kernels::kSanitized ? 10.0 : 2.0) << large[i].first;
  }
}

// Byte-level with a published expression; whole texts as one word; words of Metaspace.
INSTANTIATE_TEST_SUITE_P(Pipelines, Speed,
                         testing::Values("golden_qwen2", "golden_llama2", "trained_o200k",
                                         "trained_metaspace_first"),
                         [](const auto& named) { return named.param; });

}  // namespace
}  // namespace augur::engine
