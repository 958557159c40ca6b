// Token ids to text one at a time: what it has returned is always valid UTF-8 and never changes,
// and all of it put together equals Tokenizer::Decode of all ids. Bytes of a character that is not
// complete yet are held back; Flush turns what is left into U+FFFD as one-shot decoding does.
//
// Some decoders drop white space where a text begins. What continues a text keeps it: the token
// after a prompt is " world" and not "world".
//
// Thread: one owner. Cost: O(bytes of the token), independent of how much came before.
#pragma once

#include <string>

#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

class IncrementalDecoder {
 public:
  enum class Place { kBeginsText, kContinuesText };
  // `tokenizer` outlives the decoder.
  IncrementalDecoder(const Tokenizer* tokenizer, bool skip_special_tokens,
                     Place place = Place::kBeginsText);

  // The text that became certain with this id; may be empty.
  std::string Push(TokenId id);
  // What is held back, repaired; the decoder is then empty and in the middle of a text.
  std::string Flush();

 private:
  void Strip(std::string* text);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  bool first_;          // no token has come yet
  LeadingStrip strip_;  // what may still be dropped
  std::string held_;    // bytes of an incomplete character, at most 3
};

}  // namespace augur::engine
