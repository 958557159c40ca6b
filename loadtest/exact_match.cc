#include "loadtest/exact_match.h"

#include "absl/strings/ascii.h"

namespace augur::loadtest {

bool IsExactMatch(std::string_view completion, std::string_view answer) {
  const size_t begin = completion.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return false;
  completion.remove_prefix(begin);
  if (completion.substr(0, answer.size()) != answer) return false;
  completion.remove_prefix(answer.size());
  return completion.empty() || !absl::ascii_isalnum(static_cast<unsigned char>(completion[0]));
}

}  // namespace augur::loadtest
