// The "decoder" of tokenizer.json as two small rules, so that text can be streamed: what one token
// contributes, whatever stands beside it, and what is dropped where a text begins.
//
//   ByteLevel                               the token's characters are bytes
//   Replace, Metaspace, ByteFallback, Fuse  in this order, each as often as it is written:
//   characters
//                                           replaced, then <0xE4> is a byte
//   Strip (after Fuse)                      leading characters of the whole text
//
// Thread: immutable. Failure: none.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

struct TokenDecoder {
  bool byte_level = false;
  std::vector<std::pair<std::string, std::string>> replacements = {};  // in order; no key is empty
  std::string metaspace = {};   // this character is a space; empty: no such step
  bool metaspace_drops = true;  // and is dropped in the first token of a text
  bool byte_fallback = false;
  LeadingStrip strip = {};

  // The bytes that a token spelled so contributes; `first`: it is the first of the text.
  std::string BytesOf(std::string_view spelling, bool first) const;
};

// Replaces every occurrence of `pattern` (not empty) as it stands.
std::string ReplaceAll(std::string_view text, std::string_view pattern, std::string_view content);

}  // namespace augur::engine
