// What must hold of any tokenizer that loads, whatever its file says.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/incremental_decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/utf8.h"
#include "tests/fuzz/fuzz_target.h"

namespace augur::tests {

// Streamed and at once the same, valid UTF-8 at every step.
inline void RequireDecodes(const engine::Tokenizer& tokenizer,
                           const std::vector<engine::TokenId>& ids) {
  for (const bool skip_special : {false, true}) {
    engine::IncrementalDecoder decoder(&tokenizer, skip_special);
    std::string text;
    std::string bytes;
    bool first = true;
    for (const engine::TokenId id : ids) {
      const std::string piece = decoder.Push(id);
      FUZZ_REQUIRE(engine::IsValidUtf8(piece));
      text += piece;
      if ((skip_special && tokenizer.IsSpecial(id)) || tokenizer.TokenBytes(id).empty()) continue;
      bytes += first ? tokenizer.FirstTokenBytes(id) : tokenizer.TokenBytes(id);
      first = false;
    }
    const std::string rest = decoder.Flush();
    FUZZ_REQUIRE(engine::IsValidUtf8(rest));
    text += rest;
    FUZZ_REQUIRE(text == tokenizer.Decode(ids, skip_special));
    std::string whole;
    engine::AppendRepairedUtf8(bytes, false, &whole);
    const engine::LeadingStrip strip = tokenizer.leading_strip();
    for (int i = 0; i < strip.most && whole.starts_with(strip.character); ++i) {
      whole.erase(0, strip.character.size());
    }
    FUZZ_REQUIRE(text == whole);
  }
}

// Ids of the vocabulary, the same every time.
inline std::vector<engine::TokenId> RequireEncodes(const engine::Tokenizer& tokenizer,
                                                   std::string_view text,
                                                   const engine::EncodeOptions& options) {
  const std::vector<engine::TokenId> ids = tokenizer.Encode(text, options);
  for (const engine::TokenId id : ids) FUZZ_REQUIRE(id >= 0 && id < tokenizer.vocab_size());
  FUZZ_REQUIRE(ids == tokenizer.Encode(text, options));
  return ids;
}

}  // namespace augur::tests
