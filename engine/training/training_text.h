// Text for training: files and folders to sequences of one length.
//
// *.jsonl is one document a line, its key "text"; any other file is one document. A folder stands
// for the *.txt, *.md and *.jsonl files below it, in the order of their paths. Documents follow
// each other with the model's end-of-sequence id between them, as sequences of `length` tokens:
// packed, cut wherever one ends, or whole, so that a question stands behind the facts that it asks
// for. What is left at the end is not used. A line of *.jsonl may say where its questions begin:
// "asked_from", in bytes of its text.
//
// Thread: any. Ownership: holds 4 bytes a token. Failure: one line that names the file and what was
// expected; a text too short names what is there and what is asked for.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/tokenizer.h"

namespace augur::engine {

enum class DocumentCut {
  kPacked,  // every token once
  // A sequence begins where the one before ended, or with the document that was cut there, if that
  // did not fill the sequence by itself.
  kWhole,
};

// [begin, end) of a sequence.
struct TokenRange {
  int begin = 0;
  int end = 0;
};

class TrainingText {
 public:
  // separator: between documents; negative: none.
  static absl::StatusOr<TrainingText> Read(const std::vector<std::string>& paths,
                                           const Tokenizer& tokenizer, TokenId separator,
                                           int length, DocumentCut cut = DocumentCut::kPacked);

  int num_sequences() const { return static_cast<int>(starts_.size()); }
  std::span<const TokenId> sequence(int index) const {
    return std::span(tokens_).subspan(starts_[index], length_);
  }
  // What stands there from the first question of a document to its end, ascending.
  std::vector<TokenRange> asked(int index) const;
  int64_t num_tokens() const { return static_cast<int64_t>(tokens_.size()); }
  // Names the tokens, so that a resumed run is known to see the same ones.
  uint64_t Fingerprint() const;

 private:
  struct Asked {
    size_t begin = 0, end = 0;  // of tokens_
  };

  TrainingText() = default;

  std::vector<TokenId> tokens_;
  std::vector<Asked> asked_;    // ascending
  std::vector<size_t> starts_;  // of sequences
  int length_ = 0;
};

// The sequence of [0, count) that comes as number `at` of a run: each once in every round of
// `count`, in an order of its own each round.
class SequenceOrder {
 public:
  SequenceOrder(int count, uint64_t seed) : count_(count), seed_(seed) {}
  int At(int64_t at);

 private:
  const int count_;
  const uint64_t seed_;
  int64_t round_ = -1;
  std::vector<int> order_;
};

}  // namespace augur::engine
