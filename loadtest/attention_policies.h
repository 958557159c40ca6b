// Names of attention policies, as on the command line: `dense` is ATTENTION_POLICY_DENSE.
//
// Thread: plain functions. Failure: InvalidArgument for a name that the API does not know.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "augur/v1/completions.pb.h"

namespace augur::loadtest {

std::string PolicyName(v1::AttentionPolicy policy);
absl::StatusOr<v1::AttentionPolicy> PolicyOf(std::string_view name);

}  // namespace augur::loadtest
