// When an answer is right.
//
// Thread: a plain function. Failure: none.
#pragma once

#include <string_view>

namespace augur::loadtest {

// Whether `completion` begins with `answer`, after blanks and line ends, and no letter or digit
// follows: "Cairobi" is not Cairo, and a longer number is another number.
bool IsExactMatch(std::string_view completion, std::string_view answer);

}  // namespace augur::loadtest
