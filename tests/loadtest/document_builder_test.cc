// Documents: of the length asked for, every fact once, the same for the same seed.
#include "loadtest/document_builder.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "loadtest/training_text.h"

namespace augur::loadtest {
namespace {

// A token for the beginning and one for every byte that is no vowel: the longest text in bytes need
// not be the longest in tokens.
absl::StatusOr<int64_t> FakeCount(const std::string& text) {
  return 1 + std::count_if(text.begin(), text.end(), [](char c) {
           return std::string_view("aeiou").find(c) == std::string_view::npos;
         });
}

constexpr int64_t kLineTokens = 60;  // of filler, at most

FillerText Prose() {
  std::string text = "A Heading\n\n";
  for (int paragraph = 0; paragraph < 12; ++paragraph) {
    for (int line = 0; line < 5; ++line) {
      text += "Line " + std::to_string(line) + " of paragraph " + std::to_string(paragraph) +
              (line % 2 == 0 ? " ends here. The next one" : " goes on with");
      text += line == 4 ? " ends.\n" : "\n";
    }
    text += "\n";
  }
  return *FillerText::FromText(text);
}

size_t CountOf(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// What the task's facts begin with.
std::string Opening(RecallTask task) {
  switch (task) {
    case RecallTask::kCities:
      return "The keeper of the ";
    case RecallTask::kPairs:
      return "The code of ";
    default:
      return "One of the special magic numbers for ";
  }
}

class DocumentBuilderTest : public testing::TestWithParam<std::tuple<RecallTask, FactPlacement>> {
 protected:
  DocumentPlan Plan() const {
    return {.task = std::get<0>(GetParam()),
            .length = 8000,
            .questions = 6,
            .distractors = 9,
            .placement = std::get<1>(GetParam()),
            .seed = 11,
            .number = 2};
  }
};

TEST_P(DocumentBuilderTest, HoldsEveryFactOnce) {
  const DocumentPlan plan = Plan();
  const absl::StatusOr<Document> document = BuildDocument(plan, Prose(), FakeCount);
  ASSERT_TRUE(document.ok()) << document.status();
  const bool distractors = HasDistractors(plan.task);
  EXPECT_EQ(CountOf(document->text, Opening(plan.task)), distractors ? 15u : 6u);
  ASSERT_EQ(document->questions.size(), 6u);
  for (const Question& question : document->questions) {
    EXPECT_EQ(CountOf(document->text, " " + question.answer + "."), 1u) << question.answer;
    EXPECT_GE(question.depth, 0);
    EXPECT_LT(question.depth, 1);
  }
  EXPECT_EQ(document->text.find("A Heading"), std::string::npos);
}

TEST_P(DocumentBuilderTest, PutsFactsWhereTold) {
  const DocumentPlan plan = Plan();
  const absl::StatusOr<Document> document = BuildDocument(plan, Prose(), FakeCount);
  ASSERT_TRUE(document.ok()) << document.status();
  const std::string fact = Opening(plan.task);
  const size_t on_lines = CountOf(document->text, "\n" + fact);
  const size_t behind = CountOf(document->text, ". " + fact);
  EXPECT_EQ(plan.placement == FactPlacement::kLine ? behind : on_lines, 0u);
  EXPECT_EQ(on_lines + behind, CountOf(document->text, fact));
}

TEST_P(DocumentBuilderTest, IsLessThanALineShorterThanAskedFor) {
  for (int number = 0; number < 12; ++number) {
    DocumentPlan plan = Plan();
    plan.number = number;
    plan.length = 2800 + 701 * number * number;
    const absl::StatusOr<Document> document = BuildDocument(plan, Prose(), FakeCount);
    ASSERT_TRUE(document.ok()) << document.status();
    int64_t longest = 0;
    for (const Question& question : document->questions) {
      longest = std::max(longest, *FakeCount(document->text + question.text));
    }
    EXPECT_EQ(longest, document->tokens);
    EXPECT_LE(longest, plan.length);
    EXPECT_GE(longest, plan.length - kLineTokens);
  }
}

TEST_P(DocumentBuilderTest, ASeedAndANumberFixIt) {
  DocumentPlan plan = Plan();
  const std::string text = BuildDocument(plan, Prose(), FakeCount)->text;
  EXPECT_EQ(BuildDocument(plan, Prose(), FakeCount)->text, text);
  plan.number = 3;
  EXPECT_NE(BuildDocument(plan, Prose(), FakeCount)->text, text);
  plan.number = 2;
  plan.seed = 12;
  EXPECT_NE(BuildDocument(plan, Prose(), FakeCount)->text, text);
}

TEST_P(DocumentBuilderTest, TooShortForItsFactsIsToldWithNumbers) {
  DocumentPlan plan = Plan();
  plan.length = 100;
  const absl::Status status = BuildDocument(plan, Prose(), FakeCount).status();
  ASSERT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_EQ(status.message().find("--length: a document of 100 tokens cannot hold the "), 0u)
      << status;
}

TEST_P(DocumentBuilderTest, AFailedCountIsPassedOn) {
  const auto fail = [](const std::string&) -> absl::StatusOr<int64_t> {
    return absl::UnavailableError("gone");
  };
  EXPECT_EQ(BuildDocument(Plan(), Prose(), fail).status(), absl::UnavailableError("gone"));
}

INSTANTIATE_TEST_SUITE_P(
    All, DocumentBuilderTest,
    testing::Combine(testing::Values(RecallTask::kNeedle, RecallTask::kManyKeys,
                                     RecallTask::kCities, RecallTask::kPairs),
                     testing::Values(FactPlacement::kLine, FactPlacement::kSentence)));

TEST(DocumentBuilder, FactsSpreadOverTheDocument) {
  const DocumentPlan plan = {.length = 24000, .questions = 10};
  const absl::StatusOr<Document> document = BuildDocument(plan, Prose(), FakeCount);
  ASSERT_TRUE(document.ok()) << document.status();
  std::vector<double> depths;
  for (const Question& question : document->questions) depths.push_back(question.depth);
  EXPECT_FALSE(std::is_sorted(depths.begin(), depths.end()));
  std::sort(depths.begin(), depths.end());
  for (size_t i = 0; i < depths.size(); ++i) {
    EXPECT_NEAR(depths[i], (static_cast<double>(i) + 0.5) / 10, 0.08);
  }
}

// Every task: within the length and near it, and all that its questions need is there.
TEST(DocumentBuilder, EveryTaskFillsTheLengthWithWhatIsAsked) {
  for (const RecallTask task : kRecallTasks) {
    const DocumentPlan plan = {.task = task, .length = 12'000, .questions = 5, .distractors = 6};
    const absl::StatusOr<Document> document = BuildDocument(plan, Prose(), FakeCount);
    ASSERT_TRUE(document.ok()) << TaskName(task) << ": " << document.status();
    EXPECT_LE(document->tokens, plan.length) << TaskName(task);
    EXPECT_GE(document->tokens, plan.length - 12 * kLineTokens) << TaskName(task);
    ASSERT_EQ(document->questions.size(), IsWordList(task) ? 1u : 5u);
    for (const Question& question : document->questions) {
      std::vector<std::string> answers = question.more_answers;
      answers.push_back(question.answer);
      EXPECT_EQ(static_cast<int64_t>(answers.size()), MostAnswers(task));
      for (const std::string& answer : answers) EXPECT_GE(CountOf(document->text, answer), 1u);
    }
  }
}

// A chain's assignments stand in its order.
TEST(DocumentBuilder, SentencesOfAFactKeepTheirOrder) {
  const DocumentPlan plan = {
      .task = RecallTask::kVariables, .length = 12'000, .questions = 4, .distractors = 2};
  const absl::StatusOr<Document> document = BuildDocument(plan, Prose(), FakeCount);
  ASSERT_TRUE(document.ok()) << document.status();
  for (const Question& question : document->questions) {
    size_t before = document->text.find("VAR " + question.answer + " = ");
    for (const std::string& name : question.more_answers) {
      const size_t at = document->text.find("VAR " + name + " = ");
      EXPECT_GT(at, before);
      before = at;
    }
  }
}

TEST(DocumentBuilder, DensitiesAreShares) {
  for (const auto& [task, low, high] : {std::tuple{RecallTask::kHalfKeys, 0.4, 0.6},
                                        std::tuple{RecallTask::kOnlyKeys, 0.97, 1.0}}) {
    const DocumentPlan plan = {.task = task, .length = 20'000, .questions = 5};
    const absl::StatusOr<Document> document = BuildDocument(plan, Prose(), FakeCount);
    ASSERT_TRUE(document.ok()) << document.status();
    const std::string sentence = Opening(task) + "amber-falcon is: 1234567.";
    const auto facts = static_cast<double>(CountOf(document->text, Opening(task)));
    const double share = facts * static_cast<double>(sentence.size() + 1) /
                         static_cast<double>(document->text.size());
    EXPECT_GT(share, low) << TaskName(task);
    EXPECT_LT(share, high + 0.03) << TaskName(task);
  }
}

TEST(DocumentBuilder, TextWithoutSentencesHoldsFactsToo) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += "words and no end of them " + std::to_string(i) + "\n";
  const DocumentPlan plan = {.length = 3600, .questions = 5};
  const absl::StatusOr<Document> document =
      BuildDocument(plan, *FillerText::FromText(text), FakeCount);
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(CountOf(document->text, Opening(plan.task)), 5u);
}

TEST(TrainingLines, ADocumentIsReadAndAnsweredInOneLine) {
  DocumentsOfTasks documents;
  documents[RecallTask::kCities] = {
      {.text = "a \"b\"", .questions = {{"\nq1", "x"}, {"\nq2", "y"}}}, {.text = "c"}};
  documents[RecallTask::kNeedle] = {{.text = "d", .questions = {{"\nq", "1"}}}};
  EXPECT_EQ(TrainingLines(documents),
            "{\"asked_from\":1,\"text\":\"d\\nq 1\"}\n"
            "{\"asked_from\":5,\"text\":\"a \\\"b\\\"\\nq1 x\\nq2 y\"}\n"
            "{\"asked_from\":1,\"text\":\"c\"}\n");
}

TEST(FillerText, LeavesOutHeadingsAndWhatLooksLikeAFact) {
  const absl::StatusOr<FillerText> filler = FillerText::FromText(
      "Title\n\none\r\ntwo\nThe code of 12 is 34.\n \t\nthree\nfour\n\nThe keeper of the inn\n");
  ASSERT_TRUE(filler.ok()) << filler.status();
  EXPECT_EQ(filler->paragraphs(), (std::vector<Paragraph>{{"one", "two"}, {"three", "four"}}));
}

TEST(FillerText, NothingToFillWithIsRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(FillerText::FromText("").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FillerText::FromText("Title\n\nTitle\n").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FillerText::Read({"/nowhere/at/all"}).status()));
}

}  // namespace
}  // namespace augur::loadtest
