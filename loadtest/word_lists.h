// Documents that are one list of words, with one question about how often they come (RULER's
// aggregation families).
//
// Thread: plain functions; a draw has one owner. Ownership: values. Failure: none.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "loadtest/recall_tasks.h"
#include "loadtest/seeded_draw.h"

namespace augur::loadtest {

inline constexpr size_t kWordsOfLine = 10;

struct WordList {
  std::vector<std::string> lines;
  std::string question;              // begins with a line end
  std::vector<std::string> answers;  // in no order
};

// kCommonWords: ten words, each ten times as often as any other. kFrequentWords: made-up words, the
// n-th with a share that falls as 1 / n^2. The words that are asked for hang on the draw alone, not
// on the number of lines (at least 10).
WordList MakeWordList(RecallTask task, size_t num_lines, SeededDraw draw);

}  // namespace augur::loadtest
