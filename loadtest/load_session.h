// All stages of a load test, in order: warm-up, then each batch size, rate or trace, or the ones
// that a sweep comes to.
//
// Thread: one thread calls. Ownership: the caller keeps options, source, runner and report.
// Failure: Unavailable where the metrics page cannot be read before a stage; a stage itself does
// not fail. Stages that were done before stay in the report.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "loadtest/load_options.h"
#include "loadtest/load_report.h"
#include "loadtest/load_runner.h"
#include "loadtest/request_source.h"

namespace augur::loadtest {

// The stages that are known beforehand: all but those of a sweep.
std::vector<StagePlan> PlanStages(const LoadOptions& options);
// One of a sweep; `value` is its batch size or rate.
StagePlan PlanSweepStage(const LoadOptions& options, double value, uint32_t number);

// Fills report->stages and report->sweep.
absl::Status RunStages(const LoadOptions& options, const RequestSource& source, LoadRunner* runner,
                       LoadReport* report);

}  // namespace augur::loadtest
