#include "loadtest/word_lists.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace augur::loadtest {
namespace {

constexpr size_t kCommon = 10;
constexpr size_t kCommonTimes = 10;  // as often as another word
constexpr size_t kFrequent = 3;

// Different words of consonants and vowels in turn, none of another's letters plus more.
std::vector<std::string> MadeUpWords(size_t count, SeededDraw* draw) {
  constexpr std::string_view kConsonants = "bdfgklmnprstvz", kVowels = "aeiou";
  std::set<std::string> given;
  std::vector<std::string> words;
  while (words.size() < count) {
    std::string word;
    for (int i = 0; i < 3; ++i) {
      word += kConsonants[static_cast<size_t>(draw->Below(kConsonants.size()))];
      word += kVowels[static_cast<size_t>(draw->Below(kVowels.size()))];
    }
    if (given.insert(word).second) words.push_back(word);
  }
  return words;
}

std::vector<std::string> ToLines(const std::vector<std::string>& words) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < words.size(); at += kWordsOfLine) {
    const auto begin = words.begin() + static_cast<std::ptrdiff_t>(at);
    const size_t count = std::min(kWordsOfLine, words.size() - at);
    lines.push_back(absl::StrJoin(begin, begin + static_cast<std::ptrdiff_t>(count), " "));
  }
  return lines;
}

// Each common word 10 n times, as many others n times as fill the rest; n grows with the list.
WordList CommonWords(size_t num_words, SeededDraw draw) {
  WordList list;
  const size_t times = std::max<size_t>(1, num_words / (kCommon * kCommonTimes * 4));
  const size_t common = kCommon * kCommonTimes * times;
  const size_t others = num_words > common ? (num_words - common) / times : 0;
  // The asked ones first, so that they are the same for any length.
  const std::vector<std::string> words = MadeUpWords(kCommon + others, &draw);
  list.answers.assign(words.begin(), words.begin() + kCommon);
  std::vector<std::string> text;
  for (size_t i = 0; i < words.size(); ++i) {
    text.insert(text.end(), i < kCommon ? kCommonTimes * times : times, words[i]);
  }
  draw.Shuffle(&text);
  list.lines = ToLines(text);
  list.question = absl::StrCat("\nQuestion: What are the ", kCommon,
                               " most common words in the list above? The words are");
  return list;
}

// The n-th word as often as 1 / n^2 of the first, until a share comes to less than one.
WordList FrequentWords(size_t num_words, SeededDraw draw) {
  WordList list;
  constexpr double kSumOfShares = 1.6449;  // of 1 / n^2
  const auto most = static_cast<double>(num_words) / kSumOfShares;
  const auto different = static_cast<size_t>(std::sqrt(most)) + kFrequent;
  const std::vector<std::string> words = MadeUpWords(different, &draw);
  list.answers.assign(words.begin(), words.begin() + kFrequent);
  std::vector<std::string> text;
  for (size_t i = 0; i < words.size(); ++i) {
    const auto rank = static_cast<double>(i + 1);
    const auto times = static_cast<size_t>(std::max(1.0, most / (rank * rank)));
    text.insert(text.end(), times, words[i]);
  }
  draw.Shuffle(&text);
  list.lines = ToLines(text);
  list.question = absl::StrCat("\nQuestion: What are the ", kFrequent,
                               " most frequent words in the text above? The words are");
  return list;
}

}  // namespace

WordList MakeWordList(RecallTask task, size_t num_lines, SeededDraw draw) {
  const size_t num_words = num_lines * kWordsOfLine;
  return task == RecallTask::kCommonWords ? CommonWords(num_words, draw)
                                          : FrequentWords(num_words, draw);
}

}  // namespace augur::loadtest
