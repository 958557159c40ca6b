// Added and special tokens: strings that stand for one id wherever they are spelled out, found in
// the text before anything else looks at it. Of several that begin at one place the longest counts,
// as in Hugging Face.
//
// Thread: immutable once built. Failure: Create names the token that is wrong.
// Cost of Split: O(bytes x longest token).
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
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

  enum class Pass { kRawText, kNormalizedText };
  // parse_special false: special tokens are text. Both passes see the whole of what they are given.
  std::vector<AddedTokenSplit> Split(std::string_view text, Pass pass, bool parse_special) const;

 private:
  // A trie over the tokens of one pass.
  class Finder {
   public:
    Finder();
    void Add(std::string_view content, size_t token);
    bool any() const { return nodes_.size() > 1; }
    // The longest token that begins at `at`, or -1.
    int64_t LongestAt(std::string_view text, size_t at, size_t* length) const;

   private:
    std::vector<int64_t> nodes_;                    // the token that ends here, -1: none
    std::unordered_map<uint64_t, uint32_t> edges_;  // (node, byte) -> node
    std::array<bool, 256> begins_{};                // bytes that some token begins with
  };

  AddedTokens(std::vector<AddedToken> tokens, Regex word_character);
  bool StandsAlone(std::string_view text, TextSpan match) const;

  std::vector<AddedToken> tokens_;
  Finder raw_;
  Finder normalized_;
  Regex word_character_;
};

}  // namespace augur::engine
