// StopMatcher against a slow reference on random streams cut at random, and its promises one by
// one.
#include "engine/text/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/tokenizer/utf8.h"

namespace augur::engine {
namespace {

struct Outcome {
  std::string text;
  std::optional<size_t> matched;
};

// The definition: try every end from the left; at one end the longest stop, of equal stops the
// first.
Outcome SlowMatch(const std::string& text, const std::vector<std::string>& stops,
                  bool include_stop) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (!std::string_view(text).substr(0, end).ends_with(stops[i])) continue;
      if (!best || stops[i].size() > stops[*best].size()) best = i;
    }
    if (best) return {text.substr(0, include_stop ? end : end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

// How much of an unmatched text must be held back: its longest end that begins a stop.
size_t SlowHeld(const std::string& text, const std::vector<std::string>& stops) {
  size_t held = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size() && n <= text.size(); ++n) {
      if (std::string_view(text).ends_with(std::string_view(stop).substr(0, n)))
        held = std::max(held, n);
    }
  }
  return held;
}

// Few different characters, some of them of several bytes that share their first ones.
std::string RandomText(std::mt19937* random, size_t characters, size_t alphabet) {
  const std::string kAlphabet[] = {"a",      "b",      "\u00E9",     "\u00E8",
                                   "\u4E2D", "\u4E2E", "\U0001F600", "c"};
  std::string text;
  for (size_t i = 0; i < characters; ++i) text += kAlphabet[(*random)() % alphabet];
  return text;
}

// Pieces cut between characters.
std::vector<std::string> Cut(std::mt19937* random, const std::string& text) {
  std::vector<std::string> pieces(1);
  for (size_t at = 0; at < text.size();) {
    const size_t length = StepUtf8(std::string_view(text).substr(at)).length;
    pieces.back() += text.substr(at, length);
    at += length;
    while ((*random)() % 3 == 0) pieces.emplace_back();
  }
  return pieces;
}

TEST(StopMatcher, AgreesWithTheDefinition) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  int matches = 0;
  for (int round = 0; round < 20'000; ++round) {
    const size_t alphabet = 1 + random() % 8;
    std::vector<std::string> stops(random() % 6);
    for (std::string& stop : stops) stop = RandomText(&random, 1 + random() % 6, alphabet);
    const std::string text = RandomText(&random, random() % 40, alphabet);
    const bool include_stop = random() % 2 == 0;
    const Outcome expected = SlowMatch(text, stops, include_stop);
    StopMatcher matcher(stops);
    Outcome found;
    std::string fed;
    for (const std::string& piece : Cut(&random, text)) {
      const StopMatcher::Result result = matcher.Push(piece, include_stop);
      ASSERT_TRUE(IsValidUtf8(result.text));
      fed += piece;
      found.text += result.text;
      if (found.matched) {
        ASSERT_EQ(result.text, "");
        ASSERT_FALSE(result.matched);
      } else if (result.matched) {
        found.matched = result.matched;
      } else {
        ASSERT_EQ(found.text.size(), fed.size() - SlowHeld(fed, stops));
      }
    }
    found.text += matcher.Flush();
    ASSERT_EQ(found.text, expected.text);
    ASSERT_EQ(found.matched, expected.matched);
    matches += found.matched ? 1 : 0;
  }
  EXPECT_GT(matches, 2000);
}

TEST(StopMatcher, WithoutStopsEverythingPasses) {
  StopMatcher matcher({});
  const auto result = matcher.Push("abc", false);
  EXPECT_EQ(result.text, "abc");
  EXPECT_FALSE(result.matched);
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher({"\nQuestion:"});
  EXPECT_EQ(matcher.Push("answer\nQues", false).text, "answer");
  EXPECT_EQ(matcher.Push("t", false).text, "");
  EXPECT_EQ(matcher.Push("!\n", false).text, "\nQuest!");
  EXPECT_EQ(matcher.Flush(), "\n");
}

TEST(StopMatcher, TheMatchThatEndsFirstWins) {
  StopMatcher matcher({"abcd", "bc"});
  const auto result = matcher.Push("xabcd", false);
  EXPECT_EQ(result.text, "xa");
  EXPECT_EQ(result.matched, 1u);
}

TEST(StopMatcher, OfMatchesThatEndTogetherTheLongestWins) {
  StopMatcher matcher({"c", "abc", "bc"});
  const auto result = matcher.Push("xabc", true);
  EXPECT_EQ(result.text, "xabc");
  EXPECT_EQ(result.matched, 1u);
  EXPECT_EQ(matcher.Push("abc", true).text, "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, LongStopsOneByteAtATime) {
  std::vector<std::string> stops;
  for (int i = 0; i < 16; ++i) stops.push_back(std::string(255, 'a') + static_cast<char>('b' + i));
  StopMatcher matcher(stops);
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += matcher.Push("a", false).text;
  EXPECT_EQ(text.size(), 100'000u - 255);
  const auto result = matcher.Push("q", false);
  EXPECT_EQ(result.matched, 15u);
  EXPECT_EQ(result.text, "");
}

}  // namespace
}  // namespace augur::engine
