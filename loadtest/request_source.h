// Turns a planned request into the message that is sent.
//
// Thread: Make and Answers from any thread at once. Ownership: outlives the runs that use it.
// Failure: none; what could go wrong went wrong when the source was made.
#pragma once

#include <string>
#include <vector>

#include "augur/v1/completions.pb.h"
#include "loadtest/workload_plan.h"

namespace augur::loadtest {

class RequestSource {
 public:
  virtual ~RequestSource() = default;
  virtual v1::CompleteRequest Make(const StagePlan& stage, const PlannedRequest& request) const = 0;
  // What the completion should begin with, or, where there are several, what should stand in it in
  // any order (exact_match.h); null where there is no such thing.
  virtual const std::vector<std::string>* Answers(const PlannedRequest& request) const = 0;
};

}  // namespace augur::loadtest
