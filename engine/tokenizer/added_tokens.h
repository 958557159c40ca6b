// Added and special tokens: strings that stand for one id wherever they are spelled out, found in
// the text before anything else looks at it. Of several that begin at one place the longest counts,
// as in Hugging Face.
//
// Thread: immutable once built. Failure: Create names the token that is wrong.
// Cost of Split: O(bytes x longest token x log tokens), in practice O(bytes): most bytes begin
// none.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/regex.h"
#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

struct AddedToken {
  TokenId id = -1;
  std::string content;
  bool single_word = false;  // counts only where no word character touches it
  bool lstrip = false;       // takes the white space before it with it
  bool rstrip = false;       // and after it
  bool normalized = false;   // is looked for in the normalized text, normalized itself
  bool special = false;
};

// A stretch of text that is either one added token or text for the pipeline.
struct AddedTokenSplit {
  TokenId id;  // -1: text
  TextSpan span;
};

class AddedTokens {
 public:
  static absl::StatusOr<AddedTokens> Create(std::vector<AddedToken> tokens,
                                            const Normalizer& normalizer);

  // content: as it is looked for, which for a normalized token is normalized.
  const std::vector<AddedToken>& tokens() const { return tokens_; }

  enum class Pass { kRawText, kNormalizedText };
  // parse_special false: special tokens are text. Both passes see the whole of what they are given.
  std::vector<AddedTokenSplit> Split(std::string_view text, Pass pass, bool parse_special) const;

 private:
  // The tokens of one pass in the order of their contents: those that share a beginning stand
  // together, and each further byte of the text narrows them.
  class Finder {
   public:
    void Build(const std::vector<AddedToken>& tokens, bool normalized);
    bool any() const { return !order_.empty(); }
    // The longest token that begins at `at`, or -1.
    int64_t LongestAt(const std::vector<AddedToken>& tokens, std::string_view text, size_t at,
                      size_t* length) const;

   private:
    std::vector<uint32_t> order_;         // places in `tokens`
    std::array<uint32_t, 257> begins_{};  // where the tokens with each first byte begin in order_
  };

  AddedTokens(std::vector<AddedToken> tokens, Regex word_character);
  bool StandsAlone(std::string_view text, TextSpan match) const;

  std::vector<AddedToken> tokens_;
  Finder raw_;
  Finder normalized_;
  Regex word_character_;
};

}  // namespace augur::engine
