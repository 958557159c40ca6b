// One look at a daemon's metrics page.
//
// Thread: a plain function that blocks, 10 seconds at most for each wait. Failure: Unavailable
// naming the address and what went wrong; what ParsePrometheusText fails with.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/prometheus_text.h"

namespace augur::loadtest {

// GET http://HOST:PORT/metrics. HOST is a name, an IPv4 address or an IPv6 address in brackets.
absl::StatusOr<std::vector<PrometheusSample>> ScrapeMetrics(const std::string& address);

}  // namespace augur::loadtest
