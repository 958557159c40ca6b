// What a daemon says on its metrics port.
//
// Thread: plain functions. Failure: an empty page when nothing answers; -1 for a sample that is not
// there.
#pragma once

#include <string>

namespace augur::tests {

// The body of GET http://ADDRESS/metrics.
std::string FetchMetrics(const std::string& address);

// Sum of the samples on `page` that have the name and all labels of `sample`, e.g. `name` or
// `name{state="free"}`.
double SumSamples(const std::string& page, const std::string& sample);

}  // namespace augur::tests
