// Strings by token id, and ids by string: a vocabulary. One run of bytes, eight bytes an id and at
// most sixteen a token for the index, so that a tokenizer takes little more than its file.
//
// Thread: immutable once filled. Ownership: owns the strings; views of them end with the next Set.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

class TokenTable {
 public:
  // Room for `tokens` strings of `bytes` in all; a hint.
  void Reserve(size_t tokens, size_t bytes);
  // `id` >= 0. What the id had before is forgotten.
  void Set(TokenId id, std::string_view text);
  // After the last Set, for Find. Of equal strings the lowest id is found.
  void BuildIndex();

  bool Has(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < spans_.size() &&
           spans_[static_cast<size_t>(id)].size != kHole;
  }
  // Empty where there is none.
  std::string_view Text(TokenId id) const;
  // -1: none.
  TokenId Find(std::string_view text) const;
  // Highest id + 1.
  size_t size() const { return spans_.size(); }

 private:
  static constexpr uint32_t kHole = UINT32_MAX;
  struct Span {
    uint32_t begin = 0;
    uint32_t size = kHole;
  };
  size_t Locate(std::string_view text) const;

  std::string bytes_;
  std::vector<Span> spans_;     // by id
  std::vector<TokenId> slots_;  // open addressing: a power of two, at most half full; -1: free
};

}  // namespace augur::engine
