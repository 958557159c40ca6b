// Documents as text to train Forecast heads on (augur-train-forecast --data): what a model reads
// when it is asked, with the right answers.
//
// Thread: plain function. Ownership: values. Failure: none.
#pragma once

#include <string>

#include "loadtest/evaluation.h"

namespace augur::loadtest {

// One JSON object a line: "text", the document, then each question with its answer behind it, and
// "asked_from", at which byte of it the first question begins. Tasks alternate, so that a part of
// the lines has all of them.
std::string TrainingLines(const DocumentsOfTasks& documents);

}  // namespace augur::loadtest
