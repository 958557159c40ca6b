#include "loadtest/exact_match.h"

#include <algorithm>

#include "absl/strings/ascii.h"

namespace augur::loadtest {

namespace {

bool IsWordAt(std::string_view text, size_t at) {
  return at < text.size() && absl::ascii_isalnum(static_cast<unsigned char>(text[at]));
}

bool HasWord(std::string_view text, std::string_view word) {
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + 1)) {
    const bool continues = (at > 0 && IsWordAt(text, at - 1)) || IsWordAt(text, at + word.size());
    if (!continues) return true;
  }
  return false;
}

}  // namespace

bool IsExactMatch(std::string_view completion, std::string_view answer) {
  const size_t begin = completion.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return false;
  completion.remove_prefix(begin);
  if (completion.substr(0, answer.size()) != answer) return false;
  completion.remove_prefix(answer.size());
  return completion.empty() || !absl::ascii_isalnum(static_cast<unsigned char>(completion[0]));
}

bool HasAllAnswers(std::string_view completion, const std::vector<std::string>& answers) {
  return std::all_of(answers.begin(), answers.end(),
                     [&](const std::string& answer) { return HasWord(completion, answer); });
}

}  // namespace augur::loadtest
