// Facts of every task: wording, different keys, different answers, the same for the same seed.
#include "loadtest/recall_tasks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "absl/strings/str_split.h"
#include "loadtest/exact_match.h"
#include "loadtest/word_lists.h"

namespace augur::loadtest {
namespace {

std::vector<Fact> Facts(RecallTask task, int count, uint64_t seed) {
  SeededDraw draw(seed);
  absl::StatusOr<std::vector<Fact>> facts = MakeFacts(task, count, &draw);
  EXPECT_TRUE(facts.ok()) << facts.status();
  return facts.ok() ? *std::move(facts) : std::vector<Fact>();
}

// The sentence with its answer taken out: what the key makes of it.
std::string Stem(const Fact& fact) {
  return fact.sentence.substr(0, fact.sentence.rfind(fact.answer));
}

// Of a needle's sentence.
std::string KeyOf(const std::string& sentence) {
  const size_t begin = std::string("One of the special magic numbers for ").size();
  return sentence.substr(begin, sentence.find(" is: ") - begin);
}

// The sentence that the wording makes of the question's own key and the answer.
std::string Reworded(RecallTask task, const Fact& fact) {
  const std::string& question = fact.question;
  switch (task) {
    case RecallTask::kNeedle:
    case RecallTask::kManyKeys: {
      const std::string lead = "\nQuestion: What is the special magic number for ";
      const std::string key =
          question.substr(lead.size(), question.find(" mentioned") - lead.size());
      EXPECT_EQ(question,
                lead + key + " mentioned in the text? The special magic number for " + key + " is");
      return "One of the special magic numbers for " + key + " is: " + fact.answer + ".";
    }
    case RecallTask::kCities: {
      const std::string lead = "\nQuestion: In which city does the keeper of the ";
      const std::string key = question.substr(lead.size(), question.find(" live?") - lead.size());
      EXPECT_EQ(question, lead + key + " live? The keeper of the " + key + " lives in");
      return "The keeper of the " + key + " lives in " + fact.answer + ".";
    }
    case RecallTask::kPairs: {
      const std::string lead = "\nQuestion: What is the code of ";
      const std::string key = question.substr(lead.size(), question.find('?') - lead.size());
      EXPECT_EQ(question, lead + key + "? The code of " + key + " is");
      return "The code of " + key + " is " + fact.answer + ".";
    }
    default:
      break;
  }
  return "";
}

// Those that the bundled model was trained on.
constexpr std::array kTrained = {RecallTask::kNeedle, RecallTask::kManyKeys, RecallTask::kCities,
                                 RecallTask::kPairs};

class RecallTasksTest : public testing::TestWithParam<RecallTask> {};

TEST_P(RecallTasksTest, AreWordedAsTrained) {
  for (const Fact& fact : Facts(GetParam(), 12, 3)) {
    EXPECT_EQ(fact.sentence, Reworded(GetParam(), fact));
  }
}

TEST_P(RecallTasksTest, KeysAndAnswersDifferUpToTheLimit) {
  const int count = std::min(MaxFacts(GetParam()), 600);
  std::set<std::string> stems;
  std::set<std::string> answers;
  for (const Fact& fact : Facts(GetParam(), count, 5)) {
    EXPECT_TRUE(stems.insert(Stem(fact)).second) << fact.sentence;
    EXPECT_TRUE(answers.insert(fact.answer).second) << fact.sentence;
  }
  EXPECT_EQ(answers.size(), static_cast<size_t>(count));
  for (const std::string& one : answers) {
    const auto next = answers.upper_bound(one);  // what begins with `one` would follow it
    if (next != answers.end()) {
      EXPECT_NE(next->substr(0, one.size()), one);
    }
  }
}

TEST_P(RecallTasksTest, ASeedFixesThem) {
  const std::vector<Fact> first = Facts(GetParam(), 10, 7);
  const std::vector<Fact> again = Facts(GetParam(), 10, 7);
  const std::vector<Fact> other = Facts(GetParam(), 10, 8);
  bool differs = false;
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].sentence, again[i].sentence);
    differs = differs || first[i].sentence != other[i].sentence;
  }
  EXPECT_TRUE(differs);
}

TEST_P(RecallTasksTest, MoreThanThereAreIsRefusedByNumber) {
  SeededDraw draw(1);
  const auto facts = MakeFacts(GetParam(), MaxFacts(GetParam()) + 1, &draw);
  ASSERT_TRUE(absl::IsInvalidArgument(facts.status()));
  EXPECT_NE(
      std::string(facts.status().message()).find("at most " + std::to_string(MaxFacts(GetParam()))),
      std::string::npos);
}

TEST_P(RecallTasksTest, NameAndTaskGoTogether) {
  EXPECT_EQ(*TaskOf(TaskName(GetParam())), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Trained, RecallTasksTest, testing::ValuesIn(kTrained));

TEST(RecallTasks, EachRowIsItsTasksOwn) {
  for (const RecallTask task : kRecallTasks) EXPECT_EQ(*TaskOf(TaskName(task)), task);
}

// All numbers of a key stand in the text with that key.
TEST(RecallTasks, MultiValueAsksForAllNumbersOfOneKey) {
  for (const Fact& fact : Facts(RecallTask::kMultiValue, 30, 4)) {
    ASSERT_EQ(fact.more_answers.size(), 3u);
    const std::string stem = Stem(fact);
    const std::string key = KeyOf(stem);
    EXPECT_NE(fact.question.find(" for " + key + " are"), std::string::npos) << fact.question;
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(fact.more_sentences[i], stem + fact.more_answers[i] + ".");
    }
  }
}

TEST(RecallTasks, MultiQueryNamesTheKeysOfItsNumbers) {
  for (const Fact& fact : Facts(RecallTask::kMultiQuery, 30, 4)) {
    ASSERT_EQ(fact.more_sentences.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      const std::string& sentence = fact.more_sentences[i];
      const std::string key = KeyOf(sentence);
      EXPECT_NE(fact.question.find(key), std::string::npos) << key;
      EXPECT_EQ(sentence.substr(sentence.find(" is: ") + 5), fact.more_answers[i] + ".");
    }
  }
}

TEST(RecallTasks, VariablesAreOneChainEach) {
  for (const Fact& fact : Facts(RecallTask::kVariables, 30, 4)) {
    std::string before = fact.answer;
    EXPECT_EQ(fact.sentence.find("VAR " + before + " = "), 0u);
    ASSERT_EQ(fact.more_answers.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(fact.more_sentences[i], "VAR " + fact.more_answers[i] + " = " + before + ".");
      before = fact.more_answers[i];
    }
  }
}

TEST(RecallTasks, TwoStepsGoThroughAPerson) {
  for (const Fact& fact : Facts(RecallTask::kTwoSteps, 100, 4)) {
    ASSERT_EQ(fact.more_sentences.size(), 1u);
    const std::string name = fact.sentence.substr(fact.sentence.find(" is ") + 4);
    EXPECT_EQ(fact.more_sentences[0],
              name.substr(0, name.size() - 1) + " lives in " + fact.answer + ".");
    EXPECT_EQ(fact.question.find(name.substr(0, name.size() - 1)), std::string::npos);
  }
}

TEST(RecallTasks, PeopleAreAskedAboutOneSide) {
  int trades = 0;
  for (const Fact& fact : Facts(RecallTask::kPeople, 140, 4)) {
    EXPECT_NE(fact.sentence.find(" " + fact.answer), std::string::npos);
    trades += fact.question.find("What is the trade") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(trades, 40);
  EXPECT_LT(trades, 100);
}

// The words asked for are those that a count finds, in short lists and long ones.
TEST(WordLists, TheAnswersAreTheWordsThatComeMostOften) {
  for (const RecallTask task : {RecallTask::kCommonWords, RecallTask::kFrequentWords}) {
    for (const size_t lines : {size_t{12}, size_t{77}, size_t{900}}) {
      const WordList list = MakeWordList(task, lines, SeededDraw(3));
      EXPECT_NEAR(static_cast<double>(list.lines.size()), static_cast<double>(lines),
                  0.2 * static_cast<double>(lines) + 2);
      std::map<std::string, int> counts;
      for (const std::string& line : list.lines) {
        for (const absl::string_view word : absl::StrSplit(line, ' ')) ++counts[std::string(word)];
      }
      int least = 1 << 30, most_of_others = 0;
      for (const std::string& answer : list.answers) least = std::min(least, counts[answer]);
      for (const auto& [word, count] : counts) {
        const bool asked = std::count(list.answers.begin(), list.answers.end(), word) > 0;
        if (!asked) most_of_others = std::max(most_of_others, count);
      }
      EXPECT_GT(least, most_of_others) << TaskName(task) << ", " << lines << " lines";
      const bool is_common = task == RecallTask::kCommonWords;
      EXPECT_GE(least, (is_common ? 10 : 1) * most_of_others);
      EXPECT_EQ(MakeWordList(task, 12, SeededDraw(3)).answers, list.answers);
    }
  }
}

TEST(ExactMatch, SeveralAnswersInAnyOrder) {
  EXPECT_TRUE(HasAllAnswers(" 12, 345 and 6.", {"345", "12", "6"}));
  EXPECT_FALSE(HasAllAnswers(" 12, 3456", {"345", "12"}));
  EXPECT_TRUE(HasAllAnswers("3456 345", {"345"}));
  EXPECT_FALSE(HasAllAnswers("red-barn2", {"red-barn"}));
  EXPECT_TRUE(HasAllAnswers("", {}));
}

TEST(RecallTasks, UnknownNameIsToldWithTheKnownOnes) {
  EXPECT_EQ(TaskOf("needles").status().message(),
            "--tasks: \"needles\" is no task; there are needle, many-keys, cities, pairs, "
            "half-keys, only-keys, multi-value, multi-query, variables, common-words, "
            "frequent-words, people, two-steps");
}

TEST(RecallTasks, NumbersHaveSevenDigitsThatAllDiffer) {
  for (const Fact& fact : Facts(RecallTask::kPairs, 300, 2)) {
    EXPECT_EQ(fact.answer.size(), 7u);
    EXPECT_NE(fact.answer[0], '0');
    EXPECT_EQ(std::set<char>(fact.answer.begin(), fact.answer.end()).size(), 7u) << fact.answer;
  }
}

TEST(ExactMatch, BeginsWithTheWholeAnswer) {
  EXPECT_TRUE(IsExactMatch(" 7391846.", "7391846"));
  EXPECT_TRUE(IsExactMatch("7391846", "7391846"));
  EXPECT_TRUE(IsExactMatch(" \n Oslo and Rome", "Oslo"));
  EXPECT_FALSE(IsExactMatch(" Oslove.", "Oslo"));
  EXPECT_FALSE(IsExactMatch(" 73918465.", "7391846"));
  EXPECT_FALSE(IsExactMatch(" 739184", "7391846"));
  EXPECT_FALSE(IsExactMatch(" is 7391846", "7391846"));
  EXPECT_FALSE(IsExactMatch(" oslo", "Oslo"));
  EXPECT_FALSE(IsExactMatch("", "Oslo"));
  EXPECT_FALSE(IsExactMatch("  ", "Oslo"));
}

}  // namespace
}  // namespace augur::loadtest
