// The four kinds of facts that a document can hide, and the questions for them, worded as the
// bundled model was trained on them.
//
//   needle     One of the special magic numbers for amber-falcon is: 7391846.   only asked facts
//   many-keys  the same, with distractors: facts of the same kind that nobody asks for
//   cities     The keeper of the red-barn lives in Oslo.
//   pairs      The code of 1234567 is 7654321.
//
// Thread: plain functions; a draw has one owner. Ownership: values. Failure: InvalidArgument for a
// name that is no task's, or for more facts than a task has different keys and answers.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/seeded_draw.h"

namespace augur::loadtest {

enum class RecallTask { kNeedle, kManyKeys, kCities, kPairs };

inline constexpr std::array<RecallTask, 4> kRecallTasks = {
    RecallTask::kNeedle, RecallTask::kManyKeys, RecallTask::kCities, RecallTask::kPairs};

struct Fact {
  std::string sentence;  // a line of its own in the document
  std::string question;  // follows the document; begins with a line end, ends before the answer
  std::string answer;    // without the blank before it
};

const char* TaskName(RecallTask task);
absl::StatusOr<RecallTask> TaskOf(std::string_view name);

// Whether documents of the task hold facts that nobody asks for.
bool HasDistractors(RecallTask task);

// How many facts one document can hold at most: as many as there are different keys and answers.
int MaxFacts(RecallTask task);

// Facts of different keys and different answers, none of which begins another; no answer is a key.
absl::StatusOr<std::vector<Fact>> MakeFacts(RecallTask task, int count, SeededDraw* draw);

}  // namespace augur::loadtest
