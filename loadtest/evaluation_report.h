// An evaluation as a table for people and as JSON for programs. README.md says what each column
// means.
//
// Thread: plain functions. Ownership: values. Failure: none.
#pragma once

#include <optional>
#include <string>

#include "loadtest/accuracy_statistics.h"
#include "loadtest/evaluation.h"

namespace augur::loadtest {

// What a row of the table says about one run.
struct RunSummary {
  int64_t n = 0;
  int64_t right = 0;
  Interval interval;                          // of right / n
  std::optional<PairedDifference> to_dense;   // where dense was run too, and this is another policy
  double cold_first_token_ms = 0;             // median of the first questions of documents
  std::optional<double> warm_first_token_ms;  // median of the others
  std::optional<double> tokens_per_second;    // after the first token, of one stream
  std::optional<double> moved_bytes;
  std::optional<double> reused_share;  // of the chosen blocks, those that were resident already
};

RunSummary Summarize(const PolicyRun& run, const PolicyRun* dense);

// The rows, the counters where metrics were looked at, and the refusals.
std::string ReportText(const Evaluation& evaluation);

// All options, rows and questions; UTF-8, indented.
std::string ReportJson(const EvaluationOptions& options, const DocumentsOfLengths& documents,
                       const Evaluation& evaluation);

}  // namespace augur::loadtest
