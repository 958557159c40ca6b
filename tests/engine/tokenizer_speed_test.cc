// Encoding time grows with the text, not with its square, whatever the text is made of.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <utility>
#include <vector>

#include "tests/engine/tokenizer_fixture.h"

namespace augur::engine {
namespace {

// Of this thread, so that a busy machine does not count.
double CpuSeconds() {
  timespec now = {};
  EXPECT_EQ(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now), 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double SecondsToEncode(const Tokenizer& tokenizer, const std::string& text) {
  double best = 1e9;
  for (int run = 0; run < 3; ++run) {
    const double begin = CpuSeconds();
    const std::vector<TokenId> ids = tokenizer.Encode(text, {});
    best = std::min(best, CpuSeconds() - begin);
    EXPECT_FALSE(ids.empty());
  }
  return best;
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

std::vector<std::pair<std::string, std::string>> Texts(size_t bytes) {
  return {{"one letter", std::string(bytes, 'a')},
          {"spaces", std::string(bytes, ' ')},
          {"spaces, then a letter", std::string(bytes, ' ') + "x"},
          {"line feeds", std::string(bytes, '\n')},
          {"spaces and line feeds", Repeated(" \n", bytes)},
          {"digits", Repeated("1234567890", bytes)},
          {"punctuation", std::string(bytes, '(')},
          {"one word", LongWord(bytes)},
          {"prose", Repeated("The quick brown fox can't jump over 13 lazy dogs.\n", bytes)},
          {"combining marks", "a" + Repeated("\u0301\u0323", bytes)},
          {"ideographs", Repeated("\u4E2D\u6587", bytes)},
          {"special tokens", Repeated("<|im_end|>", bytes)},
          {"almost special tokens", Repeated("<|im_en", bytes)}};
}

class Speed : public testing::TestWithParam<std::string> {};

TEST_P(Speed, TimeIsLinear) {
  const auto tokenizer =
      MustLoad(GetParam() == "demo" ? DemoTokenizerPath() : GoldenTokenizerPath(GetParam()));
  ASSERT_NE(tokenizer, nullptr);
  constexpr size_t kSmallBytes = 32 << 10;
  constexpr size_t kLargeBytes = 256 << 10;
  const auto small = Texts(kSmallBytes);
  const auto large = Texts(kLargeBytes);
  for (size_t i = 0; i < small.size(); ++i) {
    const double short_s = SecondsToEncode(*tokenizer, small[i].second);
    const double long_s = SecondsToEncode(*tokenizer, large[i].second);
    const double exponent =
        std::log(long_s / short_s) / std::log(double{kLargeBytes} / kSmallBytes);
    std::printf("%-8s %-24s %8.2f ms per MB, exponent %.2f\n", GetParam().c_str(),
                large[i].first.c_str(), long_s * 1e3 * (1 << 20) / kLargeBytes, exponent);
    // n log n and colder caches measure 1.0 to 1.3, a square 2. In a few milliseconds noise
    // decides.
    if (long_s > 0.02) {
      EXPECT_LT(exponent, 1.6) << large[i].first;
    }
    EXPECT_LT(long_s, 4.0) << large[i].first;  // 0.2 s are needed; sanitizers are slow
  }
}

INSTANTIATE_TEST_SUITE_P(Pipelines, Speed, testing::Values("demo", "qwen2"),
                         [](const auto& named) { return named.param; });

}  // namespace
}  // namespace augur::engine
