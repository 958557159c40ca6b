// Text to token ids and back, exactly as a Hugging Face tokenizer.json says.
//
// Thread: immutable once loaded; every method may be called from any thread.
// Failure: loading gives a status naming file, key, expected and found; Encode and Decode cannot
// fail (ids outside the vocabulary are the caller's to check with vocab_size(); Decode skips them).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace augur::engine {

using TokenId = int32_t;

struct EncodeOptions {
  // Run the post-processor (begin token and the like).
  bool add_special_tokens = true;
  // Special tokens spelled out in the text become their ids; false: they are plain text.
  bool parse_special = true;
};

// Characters that the decoder drops where a text begins: " Hello" of Llama 2 is "Hello" there.
struct LeadingStrip {
  std::string character = {};  // one character; empty: none
  int most = 0;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // text is valid UTF-8. Time grows linearly with its length (up to a log factor).
  virtual std::vector<TokenId> Encode(std::string_view text,
                                      const EncodeOptions& options) const = 0;

  // One-shot decoding with the tokenizer's decoder; incomplete or invalid UTF-8 becomes U+FFFD.
  virtual std::string Decode(const std::vector<TokenId>& ids, bool skip_special_tokens) const = 0;

  // The raw bytes that `id` contributes to the text (before any UTF-8 repair), the token's own
  // spelling for an added token; empty for ids that the vocabulary lacks. What IncrementalDecoder
  // builds on.
  virtual std::string TokenBytes(TokenId id) const = 0;
  // Likewise, where it is the first token of a text; and what the text then loses at its beginning.
  virtual std::string FirstTokenBytes(TokenId id) const { return TokenBytes(id); }
  virtual LeadingStrip leading_strip() const { return {}; }
  virtual bool IsSpecial(TokenId id) const = 0;

  // Highest id + 1, added tokens included.
  virtual int vocab_size() const = 0;
};

// Reads tokenizer.json. Anything in the pipeline that is not supported is an error by name.
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& tokenizer_json_path);
// The same of text in memory; `name` stands for the file in messages.
absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizer(const std::string& name,
                                                          std::string_view json);

}  // namespace augur::engine
