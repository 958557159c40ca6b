// Cuts text into the pieces that the model encodes one by one: a list of steps, each of which cuts
// the pieces of the step before it further and may rewrite them. A new kind of step is one more
// PreTokenizerStep.
//
// Thread: immutable once built. Failure: none at run time; a regular expression that gives up
// leaves the rest of its piece uncut.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/regex.h"

namespace augur::engine {

// Pieces of a text, in order. What lies between them has been removed. No piece is empty.
struct PieceList {
  std::string text;
  std::vector<TextSpan> spans;
  bool begins_text = false;  // the first piece is what the whole text begins with

  std::string_view at(size_t i) const {
    return std::string_view(text).substr(spans[i].begin, spans[i].end - spans[i].begin);
  }
  // Appends a copy of `piece`; an empty one is dropped. `begins`: it begins the whole text.
  void Append(std::string_view piece, bool begins);
};

class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  // Appends to `out` what becomes of one piece; where the piece begins the text and its beginning
  // is kept, that begins the text too.
  virtual void Apply(std::string_view piece, bool begins_text, PieceList* out) const = 0;
};

// What a Split step does with the matches of its pattern.
enum class SplitBehavior {
  kRemoved,             // matches are dropped
  kIsolated,            // matches are pieces
  kContiguous,          // neighbouring matches are one piece
  kMergedWithPrevious,  // a match belongs to the piece before it
  kMergedWithNext,      // a match belongs to the piece after it
};

std::unique_ptr<PreTokenizerStep> MakeDigitsStep(bool individual_digits);

// invert: what the pattern does not match counts as the match.
std::unique_ptr<PreTokenizerStep> MakeSplitStep(Regex regex, SplitBehavior behavior, bool invert);

// Spells bytes as GPT-2's characters; with use_regex cuts by GPT-2's pattern before, with
// add_prefix_space puts a space in front of every piece that lacks one.
std::unique_ptr<PreTokenizerStep> MakeByteLevelStep(bool add_prefix_space, bool use_regex);

// Where Metaspace puts its character in front of what does not begin with it.
enum class PrependScheme { kAlways, kFirst, kNever };

// Spells spaces as `replacement` (one character); with `split` a piece ends before each.
std::unique_ptr<PreTokenizerStep> MakeMetaspaceStep(std::string replacement, PrependScheme prepend,
                                                    bool split);

class PreTokenizer {
 public:
  explicit PreTokenizer(std::vector<std::unique_ptr<PreTokenizerStep>> steps);
  // begins_text: nothing stands before this text.
  PieceList Split(std::string_view text, bool begins_text) const;

 private:
  std::vector<std::unique_ptr<PreTokenizerStep>> steps_;
};

}  // namespace augur::engine
