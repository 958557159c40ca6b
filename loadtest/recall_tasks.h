// What documents can hide and what is asked about it: the families of RULER (Hsieh et al. 2024)
// with words and generators of our own, and two kinds more. The first four are worded as the
// bundled model was trained on them.
//
//   needle          One of the special magic numbers for amber-falcon is: 7391846.  asked facts
//   only many-keys       the same, with distractors: facts of the same kind that nobody asks for
//   cities          The keeper of the red-barn lives in Oslo.
//   pairs           The code of 1234567 is 7654321.
//   half-keys       needles, with so many distractors that they fill half of the document
//   only-keys       needles, and nothing else in the document
//   multi-value     four numbers for each key, all asked for at once
//   multi-query     one question for the numbers of four keys
//   variables       VAR amber = 7391846, VAR river = amber, ...: every name of a chain of five
//   common-words    a list of words; the ten that come ten times as often as the others
//   frequent-words  made-up words by falling frequency; the three most frequent
//   people          Mira Holt works as a baker in Lima.   generated facts, one asked for
//   two-steps       who has something, and then where that person lives: two facts an answer
//
// Thread: plain functions; a draw has one owner. Ownership: values. Failure: InvalidArgument for a
// name that is no task's, or for more facts than a task has different keys and answers.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/seeded_draw.h"

namespace augur::loadtest {

enum class RecallTask {
  kNeedle,
  kManyKeys,
  kCities,
  kPairs,
  kHalfKeys,
  kOnlyKeys,
  kMultiValue,
  kMultiQuery,
  kVariables,
  kCommonWords,
  kFrequentWords,
  kPeople,
  kTwoSteps,
};

inline constexpr std::array<RecallTask, 13> kRecallTasks = {
    RecallTask::kNeedle,      RecallTask::kManyKeys,      RecallTask::kCities,
    RecallTask::kPairs,       RecallTask::kHalfKeys,      RecallTask::kOnlyKeys,
    RecallTask::kMultiValue,  RecallTask::kMultiQuery,    RecallTask::kVariables,
    RecallTask::kCommonWords, RecallTask::kFrequentWords, RecallTask::kPeople,
    RecallTask::kTwoSteps};

// Sentences that belong to one question. Most tasks have one and ask for its end.
struct Fact {
  std::string sentence;  // a line of its own in the document
  std::string question;  // follows the document; begins with a line end, ends before the answer
  std::string answer;    // without the blank before it
  std::vector<std::string> more_sentences = {};
  std::vector<std::string> more_answers = {};  // that must be given, too, in any order
};

const char* TaskName(RecallTask task);
absl::StatusOr<RecallTask> TaskOf(std::string_view name);

// Whether documents of the task hold facts that nobody asks for.
bool HasDistractors(RecallTask task);
// Their share of the document, where the task says it: kHalfKeys 0.5, kOnlyKeys 1; else 0.
double DistractorShare(RecallTask task);
// Whether a document is one list of words and has one question (word_lists.h).
bool IsWordList(RecallTask task);
// Of one question.
int64_t MostAnswers(RecallTask task);

// How many facts one document can hold at most: as many as there are different keys and answers.
int MaxFacts(RecallTask task);

// Facts of different keys and different answers, none of which begins another; no answer is a key.
absl::StatusOr<std::vector<Fact>> MakeFacts(RecallTask task, int count, SeededDraw* draw);

}  // namespace augur::loadtest
