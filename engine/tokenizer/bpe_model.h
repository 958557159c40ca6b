// Byte-pair encoding: a piece of text becomes vocabulary entries by joining neighbours in the order
// of their merge rank. The text is what the pre-tokenizer made of it (for byte-level pipelines,
// printable characters).
//
// Thread: immutable once built. Ownership: owns vocabulary and merges.
// Failure: Create names the entry that is wrong; Encode cannot fail: characters that the vocabulary
// lacks become byte tokens, then the unknown token, then nothing, as far as the model has them.
// Cost: O(n log n) in the length of the piece, no recursion.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tokenizer/merge_heap.h"
#include "engine/tokenizer/token_table.h"
#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

// (left id, right id) -> rank and result. Open addressing: the merge loop lives on this look-up.
class MergeTable {
 public:
  struct Merge {
    int32_t rank = -1;  // -1: no such merge
    TokenId result = -1;
  };

  MergeTable();
  // A pair given twice keeps the later one. Grows with the pairs that differ.
  void Insert(TokenId left, TokenId right, Merge merge);
  Merge Find(TokenId left, TokenId right) const;

 private:
  struct Slot {
    uint64_t pair = kFree;
    Merge merge;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};
  size_t Locate(uint64_t pair) const;

  void Grow();

  std::vector<Slot> slots_;  // a power of two, at most half full
  size_t taken_ = 0;
  int shift_;
};

struct BpeOptions {
  std::string unknown_token;   // empty: none
  bool fuse_unknown = false;   // neighbouring unknown characters are one token
  bool byte_fallback = false;  // unknown characters become tokens <0x00> to <0xFF>
  bool ignore_merges = false;  // a piece that is a vocabulary entry is taken whole
};

class BpeModel {
 public:
  // The vocabulary has its index. Errors name the token, without the file.
  static absl::StatusOr<BpeModel> Create(TokenTable vocabulary, BpeOptions options);
  // The merge of the next rank; an error says which token of the three the vocabulary lacks.
  absl::Status AddMerge(std::string_view left, std::string_view right);

  const TokenTable& vocabulary() const { return vocabulary_; }

  // Work space of Encode, to be reused from piece to piece by one thread.
  struct Scratch {
    struct Symbol {
      TokenId id;  // -1: merged into its left neighbour
      int32_t previous;
      int32_t next;
    };
    std::vector<Symbol> symbols;
    MergeHeap heap;  // (rank << 32 | place of the left symbol)
  };

  // Appends the ids of one piece (valid UTF-8, less than 2 GiB).
  void Encode(std::string_view piece, Scratch* scratch, std::vector<TokenId>* ids) const;

 private:
  BpeModel(TokenTable vocabulary, BpeOptions options);

  void IndexSingleCharacters();
  TokenId FindCharacter(std::string_view character, char32_t code_point) const;
  void SplitIntoSymbols(std::string_view piece, Scratch* scratch) const;
  bool AppendByteTokens(std::string_view character, Scratch* scratch) const;
  // The merge of the symbol at `at` with its right neighbour; false: there is none.
  bool FindMerge(int32_t at, const Scratch& scratch, uint64_t* offer) const;
  void OfferMerge(int32_t at, Scratch* scratch) const;
  void MergeSymbols(Scratch* scratch) const;

  TokenTable vocabulary_;
  MergeTable merges_;
  std::vector<TokenId> results_;  // by rank
  BpeOptions options_;
  TokenId unknown_id_ = -1;
  std::array<TokenId, 0x800> short_characters_;  // ids of one- and two-byte characters, -1: none
  std::array<TokenId, 256> byte_tokens_;
};

}  // namespace augur::engine
