// tokenizer.json: refused in one line, or a tokenizer that encodes and decodes.
#include "tests/fuzz/tokenizer_checks.h"

namespace augur::tests {

bool RunTarget(std::string_view input) {
  const auto tokenizer = engine::ParseTokenizer("tokenizer.json", input);
  if (!tokenizer.ok()) {
    FUZZ_REQUIRE(!tokenizer.status().message().empty());
    FUZZ_REQUIRE(tokenizer.status().message().find('\n') == std::string_view::npos);
    FUZZ_REQUIRE(tokenizer.status().message().size() < 1000);
    return false;
  }
  const std::string texts[] = {
      "", " a  b\n<s>ab <x>",
      "The magic 123 I'll e\u0301\uFB01\u00BD\U0001F642 \u2581x word, words",
      // Of the file itself: its own tokens and patterns.
      std::string(input.substr(0, 200)), std::string(input.substr(input.size() / 2, 100))};
  for (const std::string& text : texts) {
    for (const bool parse_special : {false, true}) {
      RequireDecodes(**tokenizer, RequireEncodes(**tokenizer, text, {true, parse_special}));
    }
  }
  std::vector<engine::TokenId> ids = {-1, (*tokenizer)->vocab_size(), INT32_MAX, INT32_MIN};
  for (size_t i = 0; i < 40; ++i) {
    ids.push_back(static_cast<engine::TokenId>((i * i * 7 + 3 * i) %
                                               static_cast<size_t>((*tokenizer)->vocab_size())));
  }
  RequireDecodes(**tokenizer, ids);
  return true;
}

}  // namespace augur::tests
