// An evaluation as a picture: accuracy over how much of the KV a generated token reads.
//
// Thread: a plain function. Ownership: values. Failure: none.
#pragma once

#include <string>

#include "loadtest/evaluation.h"

namespace augur::loadtest {

// One plot a task, one line a policy (and length, where there are several), a point a budget. x:
// chosen blocks of the prompt's, in percent; dense reads all. Runs without a budget of their own
// but dense are left out: the daemon did not say what it chose. Whiskers are not drawn, a point's
// note has the interval.
std::string ReportSvg(const Evaluation& evaluation);

}  // namespace augur::loadtest
