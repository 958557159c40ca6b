// Facts of every task: wording, different keys, different answers, the same for the same seed.
#include "loadtest/recall_tasks.h"

#include <gtest/gtest.h>

#include <set>

#include "loadtest/exact_match.h"

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
  }
  return "";
}

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

INSTANTIATE_TEST_SUITE_P(All, RecallTasksTest, testing::ValuesIn(kRecallTasks));

TEST(RecallTasks, UnknownNameIsToldWithTheKnownOnes) {
  EXPECT_EQ(TaskOf("needles").status().message(),
            "--tasks: \"needles\" is no task; there are needle, many-keys, cities, pairs");
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
