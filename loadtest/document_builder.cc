#include "loadtest/document_builder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace augur::loadtest {
namespace {

// Where the first sentence of `line` ends, behind its full stop; npos where none does.
size_t SentenceEnd(const std::string& line) {
  const size_t stop = line.find(". ");
  if (stop != std::string::npos) return stop + 1;
  return !line.empty() && line.back() == '.' ? line.size() : std::string::npos;
}

// At the first end of a sentence from `line` on, or before it where none follows; behind the line
// itself in text without sentences.
void PutAfterSentence(const std::string& sentence, size_t line, std::vector<std::string>* lines) {
  const std::string text = " " + sentence;
  for (size_t i = line; i < lines->size(); ++i) {
    const size_t end = SentenceEnd((*lines)[i]);
    if (end != std::string::npos) {
      (*lines)[i].insert(end, text);
      return;
    }
  }
  for (size_t i = line; i-- > 0;) {
    const size_t end = SentenceEnd((*lines)[i]);
    if (end != std::string::npos) {
      (*lines)[i].insert(end, text);
      return;
    }
  }
  (*lines)[line] += text;
}

// Everything of a document but how many lines of filler it has.
class Draft {
 public:
  Draft(const DocumentPlan& plan, const FillerText& filler, std::vector<Fact> facts,
        SeededDraw* draw)
      : facts_(std::move(facts)),
        placement_(plan.placement),
        filler_(filler, SeededDraw(draw->Next())) {
    asked_ = static_cast<size_t>(plan.questions);
    for (size_t i = 0; i < facts_.size(); ++i) {
      order_.push_back(i);
      jitter_.push_back(draw->Unit());
    }
    draw->Shuffle(&order_);
  }

  // Before anything is measured: in tokens, which bytes do not tell.
  absl::Status FindLongestQuestion(const TokenCount& count) {
    int64_t most = -1;
    for (size_t i = 0; i < asked_; ++i) {
      const absl::StatusOr<int64_t> tokens = count(facts_[i].question);
      if (!tokens.ok()) return tokens.status();
      if (*tokens > most) longest_question_ = facts_[i].question;
      most = std::max(most, *tokens);
    }
    return absl::OkStatus();
  }

  // Fewer would put two facts side by side.
  size_t MinLines() const { return facts_.size() + 1; }
  size_t NumFacts() const { return facts_.size(); }
  const std::string& longest_question() const { return longest_question_; }

  std::string Text(size_t num_lines) {
    std::vector<std::string> lines = filler_.First(num_lines);
    const auto stretch = static_cast<double>(num_lines - 1) / static_cast<double>(facts_.size());
    // From the last one, so that what is put in does not move the places before it.
    for (size_t slot = order_.size(); slot-- > 0;) {
      const std::string& sentence = facts_[order_[slot]].sentence;
      const double at = (static_cast<double>(slot) + jitter_[slot]) * stretch;
      const size_t line = 1 + static_cast<size_t>(at);  // between 1 and num_lines - 1
      if (placement_ == FactPlacement::kLine) {
        lines[line] = absl::StrCat(sentence, "\n", lines[line]);
      } else {
        PutAfterSentence(sentence, line, &lines);
      }
    }
    return absl::StrJoin(lines, "\n");
  }

  Document Finish(std::string text, int64_t tokens) const {
    Document document;
    for (size_t i = 0; i < asked_; ++i) {
      const auto at = static_cast<double>(text.find(facts_[i].sentence));
      document.questions.push_back(
          {facts_[i].question, facts_[i].answer, at / static_cast<double>(text.size())});
    }
    document.text = std::move(text);
    document.tokens = tokens;
    return document;
  }

 private:
  std::vector<Fact> facts_;  // the asked ones first
  size_t asked_ = 0;
  std::vector<size_t> order_;   // which fact stands in which stretch
  std::vector<double> jitter_;  // where in its stretch, 0 to 1
  std::string longest_question_;
  FactPlacement placement_;
  FillerStream filler_;
};

// A text of so many lines, and its tokens.
struct Sized {
  size_t lines = 0;
  std::string text;
  int64_t tokens = 0;
};

absl::StatusOr<Sized> Measure(Draft* draft, size_t lines, const TokenCount& count) {
  Sized sized{lines, draft->Text(lines), 0};
  const absl::StatusOr<int64_t> tokens = count(sized.text + draft->longest_question());
  if (!tokens.ok()) return tokens.status();
  sized.tokens = *tokens;
  return sized;
}

// The most lines that stay within `length`: guesses by the tokens of a further line until a guess
// is too long, then halves.
absl::StatusOr<Sized> Fit(Draft* draft, const Sized& least, int64_t length,
                          const TokenCount& count) {
  Sized below = least;
  size_t above = 0;  // lines that are too many; 0: not known yet
  while (above == 0 || above - below.lines > 1) {
    size_t lines = 0;
    if (above == 0) {
      const bool grown = below.tokens > least.tokens;
      const auto line_tokens =
          grown ? static_cast<double>(below.tokens - least.tokens) /
                      static_cast<double>(below.lines - least.lines)
                : static_cast<double>(below.tokens) / static_cast<double>(below.lines);
      const auto spare = static_cast<double>(length - below.tokens);
      lines = below.lines + 1 + static_cast<size_t>(spare / std::max(line_tokens, 1.0));
    } else {
      lines = below.lines + (above - below.lines) / 2;
    }
    absl::StatusOr<Sized> tried = Measure(draft, lines, count);
    if (!tried.ok()) return tried.status();
    if (tried->tokens > length) {
      above = lines;
    } else {
      below = *std::move(tried);
    }
  }
  return below;
}

}  // namespace

absl::StatusOr<FactPlacement> PlacementOf(std::string_view name) {
  if (name == "line") return FactPlacement::kLine;
  if (name == "sentence") return FactPlacement::kSentence;
  return absl::InvalidArgumentError(absl::StrCat("--placement: \"", std::string(name),
                                                 "\" is no placement; there are line, sentence"));
}

absl::StatusOr<Document> BuildDocument(const DocumentPlan& plan, const FillerText& filler,
                                       const TokenCount& count) {
  SeededDraw draw(SeedOf(plan.seed, TaskName(plan.task), static_cast<uint64_t>(plan.number)));
  const int distractors = HasDistractors(plan.task) ? plan.distractors : 0;
  absl::StatusOr<std::vector<Fact>> facts =
      MakeFacts(plan.task, plan.questions + distractors, &draw);
  if (!facts.ok()) return facts.status();
  Draft draft(plan, filler, *std::move(facts), &draw);

  const absl::Status found = draft.FindLongestQuestion(count);
  if (!found.ok()) return found;
  absl::StatusOr<Sized> least = Measure(&draft, draft.MinLines(), count);
  if (!least.ok()) return least.status();
  if (least->tokens > plan.length) {
    return absl::OutOfRangeError(
        absl::StrCat("--length: a document of ", plan.length, " tokens cannot hold the ",
                     draft.NumFacts(), " facts of task ", TaskName(plan.task), ", which need ",
                     least->tokens, " tokens; lower --questions or --distractors"));
  }
  absl::StatusOr<Sized> fitted = Fit(&draft, *least, plan.length, count);
  if (!fitted.ok()) return fitted.status();
  return draft.Finish(std::move(fitted->text), fitted->tokens);
}

}  // namespace augur::loadtest
