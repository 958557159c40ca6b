// Token ids to text one at a time: what it has returned is always valid UTF-8 and never changes,
// and all of it put together equals Tokenizer::Decode of all ids. Bytes of a character that is not
// complete yet are held back; Flush turns what is left into U+FFFD as one-shot decoding does.
//
// Thread: one owner. Cost: O(bytes of the token), independent of how much came before.
#pragma once

#include <string>

#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

class IncrementalDecoder {
 public:
  // `tokenizer` outlives the decoder.
  IncrementalDecoder(const Tokenizer* tokenizer, bool skip_special_tokens);

  // The text that became certain with this id; may be empty.
  std::string Push(TokenId id);
  // What is held back, repaired; the decoder is then empty.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::string held_;  // bytes of an incomplete character, at most 3
};

}  // namespace augur::engine
