// A document of a given length in tokens with facts hidden in it, and its questions.
//
// Where the task's distractors fill a share of the document, they are as many as that takes; a list
// of words (word_lists.h) has neither filler nor facts. Else the document is cut into as many equal
// stretches as there are facts, and one stands at a random place of each, asked ones and
// distractors in random order. So questions ask for every depth.
//
// Thread: plain functions; `count` is called by the same thread. Ownership: values. Units: tokens
// as `count` counts them, whole text. Failure: InvalidArgument for more facts than the task has;
// OutOfRange for a length that cannot hold the facts; what `count` fails with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/filler_text.h"
#include "loadtest/recall_tasks.h"

namespace augur::loadtest {

// Tokens of a text, special ones around it included.
using TokenCount = std::function<absl::StatusOr<int64_t>(const std::string& text)>;

enum class FactPlacement {
  kLine,      // a line of its own between two lines of filler
  kSentence,  // within a line, behind a sentence of filler and a blank
};

// "line" or "sentence"; InvalidArgument for anything else.
absl::StatusOr<FactPlacement> PlacementOf(std::string_view name);

struct DocumentPlan {
  RecallTask task = RecallTask::kNeedle;
  int64_t length = 8000;  // of the document with its longest question, at most
  int questions = 10;
  int distractors = 0;  // facts that nobody asks for; not used where the task has none
  FactPlacement placement = FactPlacement::kSentence;
  uint64_t seed = 1;
  int number = 0;  // of the document, from 0
};

struct Question {
  std::string text;  // the prompt is the document's text and then this
  std::string answer;
  double depth = 0;  // where in the document the fact begins, 0 to 1, in bytes
  std::vector<std::string> more_answers = {};  // that must be given, too
};

struct Document {
  std::string text = {};
  std::vector<Question> questions = {};
  int64_t tokens = 0;  // of the text with its longest question: less than a line below the length
};

// The same plan, filler and tokenizer give the same document.
absl::StatusOr<Document> BuildDocument(const DocumentPlan& plan, const FillerText& filler,
                                       const TokenCount& count);

}  // namespace augur::loadtest
