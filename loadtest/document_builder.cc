#include "loadtest/document_builder.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loadtest/word_lists.h"

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

// Everything of a document but how many lines it has.
class Draft {
 public:
  virtual ~Draft() = default;
  virtual size_t MinLines() const = 0;
  virtual size_t MaxLines() const { return size_t{1} << 40; }
  virtual std::string Text(size_t num_lines) = 0;
  // What is asked; the depths are those in `text`, which Text has given last.
  virtual std::vector<Question> Questions(const std::string& text) const = 0;
  virtual std::string Needs() const = 0;  // what has to fit, for a message

  // Before anything is measured: in tokens, which bytes do not tell.
  absl::Status FindLongestQuestion(const TokenCount& count) {
    int64_t most = -1;
    for (const Question& question : Questions("")) {
      const absl::StatusOr<int64_t> tokens = count(question.text);
      if (!tokens.ok()) return tokens.status();
      if (*tokens > most) longest_question_ = question.text;
      most = std::max(most, *tokens);
    }
    return absl::OkStatus();
  }
  const std::string& longest_question() const { return longest_question_; }

 private:
  std::string longest_question_;
};

std::vector<Question> QuestionsAbout(const std::vector<Fact>& facts, size_t asked,
                                     const std::string& text) {
  std::vector<Question> questions;
  for (size_t i = 0; i < asked; ++i) {
    const size_t at = text.find(facts[i].sentence);
    const double depth =
        at == std::string::npos ? 0 : static_cast<double>(at) / static_cast<double>(text.size());
    questions.push_back({facts[i].question, facts[i].answer, depth, facts[i].more_answers});
  }
  return questions;
}

// Sentences of facts in filler.
class FactDraft final : public Draft {
 public:
  // The asked facts come first.
  FactDraft(const DocumentPlan& plan, const FillerText& filler, std::vector<Fact> facts,
            SeededDraw* draw)
      : facts_(std::move(facts)),
        asked_(static_cast<size_t>(plan.questions)),
        placement_(plan.placement),
        filler_(filler, SeededDraw(draw->Next())) {
    std::vector<size_t> owners;
    for (size_t fact = 0; fact < facts_.size(); ++fact) {
      owners.insert(owners.end(), 1 + facts_[fact].more_sentences.size(), fact);
    }
    for (size_t i = 0; i < owners.size(); ++i) jitter_.push_back(draw->Unit());
    draw->Shuffle(&owners);
    std::vector<size_t> given(facts_.size(), 0);
    for (const size_t fact : owners) {  // a fact's sentences keep their order
      const size_t number = given[fact]++;
      sentences_.push_back(number == 0 ? facts_[fact].sentence
                                       : facts_[fact].more_sentences[number - 1]);
    }
  }

  // Fewer would put two sentences side by side.
  size_t MinLines() const override { return sentences_.size() + 1; }

  std::string Text(size_t num_lines) override {
    std::vector<std::string> lines = filler_.First(num_lines);
    const auto stretch =
        static_cast<double>(num_lines - 1) / static_cast<double>(sentences_.size());
    // From the last one, so that what is put in does not move the places before it.
    for (size_t slot = sentences_.size(); slot-- > 0;) {
      const double at = (static_cast<double>(slot) + jitter_[slot]) * stretch;
      const size_t line = 1 + static_cast<size_t>(at);  // between 1 and num_lines - 1
      if (placement_ == FactPlacement::kLine) {
        lines[line] = absl::StrCat(sentences_[slot], "\n", lines[line]);
      } else {
        PutAfterSentence(sentences_[slot], line, &lines);
      }
    }
    return absl::StrJoin(lines, "\n");
  }

  std::vector<Question> Questions(const std::string& text) const override {
    return QuestionsAbout(facts_, asked_, text);
  }
  std::string Needs() const override { return absl::StrCat(sentences_.size(), " facts"); }

 private:
  const std::vector<Fact> facts_;
  const size_t asked_;
  std::vector<std::string> sentences_;  // in which stretch each stands
  std::vector<double> jitter_;          // where in its stretch, 0 to 1
  const FactPlacement placement_;
  FillerStream filler_;
};

// Facts alone, a line each.
class OnlyFactsDraft final : public Draft {
 public:
  OnlyFactsDraft(const DocumentPlan& plan, std::vector<Fact> facts, SeededDraw* draw)
      : facts_(std::move(facts)),
        asked_(static_cast<size_t>(plan.questions)),
        order_draw_(draw->Next()) {}

  size_t MinLines() const override { return asked_; }
  size_t MaxLines() const override { return facts_.size(); }

  std::string Text(size_t num_lines) override {
    std::vector<std::string> lines;
    for (size_t i = 0; i < num_lines; ++i) lines.push_back(facts_[i].sentence);
    SeededDraw draw = order_draw_;
    draw.Shuffle(&lines);
    return absl::StrJoin(lines, "\n");
  }

  std::vector<Question> Questions(const std::string& text) const override {
    return QuestionsAbout(facts_, asked_, text);
  }
  std::string Needs() const override { return absl::StrCat(asked_, " facts"); }

 private:
  const std::vector<Fact> facts_;  // as many as any text of the length can hold
  const size_t asked_;
  const SeededDraw order_draw_;
};

class WordListDraft final : public Draft {
 public:
  WordListDraft(RecallTask task, SeededDraw* draw) : task_(task), draw_(draw->Next()) {}

  size_t MinLines() const override { return 12; }
  std::string Text(size_t num_lines) override {
    return absl::StrJoin(MakeWordList(task_, num_lines, draw_).lines, "\n");
  }
  std::vector<Question> Questions(const std::string&) const override {
    WordList list = MakeWordList(task_, MinLines(), draw_);
    Question question{list.question, list.answers.front()};
    question.more_answers.assign(list.answers.begin() + 1, list.answers.end());
    return {std::move(question)};
  }
  std::string Needs() const override { return absl::StrCat(MinLines(), " lines"); }

 private:
  const RecallTask task_;
  const SeededDraw draw_;
};

// How many facts that nobody asks for: as the plan says, or as many as fill the task's share.
absl::StatusOr<int> DistractorsOf(const DocumentPlan& plan, const TokenCount& count) {
  if (!HasDistractors(plan.task)) return 0;
  const double share = DistractorShare(plan.task);
  if (share == 0) return plan.distractors;
  SeededDraw draw(1);  // any fact: all are of about the same size
  const absl::StatusOr<std::vector<Fact>> sample = MakeFacts(plan.task, 1, &draw);
  if (!sample.ok()) return sample.status();
  const std::string lines = absl::StrCat(sample->front().sentence, "\n", sample->front().sentence);
  const absl::StatusOr<int64_t> tokens = count(lines);
  if (!tokens.ok()) return tokens.status();
  const double each = std::max(static_cast<double>(*tokens) / 2, 1.0);
  const double room = share < 1 ? 1.0 : 1.5;  // where the length decides, more than it can hold
  const double wanted = static_cast<double>(plan.length) * share * room / each;
  return std::clamp(static_cast<int>(wanted), 0, MaxFacts(plan.task) - plan.questions);
}

absl::StatusOr<std::unique_ptr<Draft>> MakeDraft(const DocumentPlan& plan, const FillerText& filler,
                                                 const TokenCount& count, SeededDraw* draw) {
  if (IsWordList(plan.task)) return std::make_unique<WordListDraft>(plan.task, draw);
  const absl::StatusOr<int> distractors = DistractorsOf(plan, count);
  if (!distractors.ok()) return distractors.status();
  absl::StatusOr<std::vector<Fact>> facts =
      MakeFacts(plan.task, plan.questions + *distractors, draw);
  if (!facts.ok()) return facts.status();
  if (DistractorShare(plan.task) >= 1) {
    return std::make_unique<OnlyFactsDraft>(plan, *std::move(facts), draw);
  }
  return std::make_unique<FactDraft>(plan, filler, *std::move(facts), draw);
}

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
    lines = std::min(lines, draft->MaxLines());
    if (lines == below.lines) break;  // there is no more to add
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
  const absl::StatusOr<std::unique_ptr<Draft>> made = MakeDraft(plan, filler, count, &draw);
  if (!made.ok()) return made.status();
  Draft* const draft = made->get();

  const absl::Status found = draft->FindLongestQuestion(count);
  if (!found.ok()) return found;
  absl::StatusOr<Sized> least = Measure(draft, draft->MinLines(), count);
  if (!least.ok()) return least.status();
  if (least->tokens > plan.length) {
    return absl::OutOfRangeError(
        absl::StrCat("--length: a document of ", plan.length, " tokens cannot hold the ",
                     draft->Needs(), " of task ", TaskName(plan.task), ", which need ",
                     least->tokens, " tokens; lower --questions or --distractors"));
  }
  absl::StatusOr<Sized> fitted = Fit(draft, *least, plan.length, count);
  if (!fitted.ok()) return fitted.status();
  Document document;
  document.questions = draft->Questions(fitted->text);
  document.text = std::move(fitted->text);
  document.tokens = fitted->tokens;
  return document;
}

}  // namespace augur::loadtest
