// When an answer is right.
//
// Thread: plain functions. Failure: none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace augur::loadtest {

// Whether `completion` begins with `answer`, after blanks and line ends, and no letter or digit
// follows: "Cairobi" is not Cairo, and a longer number is another number.
bool IsExactMatch(std::string_view completion, std::string_view answer);

// Whether all of `answers` stand in `completion`, each as a word of its own, in any order.
bool HasAllAnswers(std::string_view completion, const std::vector<std::string>& answers);

}  // namespace augur::loadtest
