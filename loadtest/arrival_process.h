// When requests of an open loop are sent: times that do not depend on what the daemon does.
//
//   poisson    exponential gaps
//   gamma      gaps of a gamma distribution with shape `burstiness`: below 1 in bursts, above 1
//   more
//              even; 1 is poisson; the squared coefficient of variation is 1 / burstiness
//   constant   equal gaps
//   trace      the times of a file
//
// A ramp changes the rate from `ramp_from` to `rate` over `ramp_s`: gaps are drawn at rate 1 and
// mapped through the inverse of the integral of the rate (time rescaling), so that the process is
// exact at every moment of the ramp.
//
// Thread: plain functions. Ownership: values. Units: seconds from the stage's start, requests a
// second. Failure: InvalidArgument naming the file and line of a trace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace augur::loadtest {

enum class ArrivalKind { kPoisson, kGamma, kConstant, kTrace };
enum class RampKind { kNone, kLinear, kExponential };

// One line of a trace.
struct TraceEntry {
  double at_s = 0;
  std::optional<int64_t> input_tokens;
  std::optional<int64_t> output_tokens;
};

struct ArrivalSpec {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate = 1;
  double burstiness = 1;
  RampKind ramp = RampKind::kNone;
  double ramp_from = 1;
  double ramp_s = 0;
  double duration_s = 0;  // no arrival at or after it; 0: no limit
  int64_t requests = 0;   // at most; 0: no limit. One of the two is given
};

// At most this many, whatever is asked.
inline constexpr int64_t kMostRequests = 500'000;

// "poisson", "gamma", "constant", "trace"; "none", "linear", "exponential".
absl::StatusOr<ArrivalKind> ArrivalKindOf(std::string_view name);
const char* ArrivalName(ArrivalKind kind);
absl::StatusOr<RampKind> RampKindOf(std::string_view name);

// Each line is seconds, or a JSON object with `timestamp` in milliseconds and, if it likes,
// `input_length` and `output_length` (the form of Mooncake's traces). Times do not fall; the first
// is taken as 0.
absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path);
absl::StatusOr<std::vector<TraceEntry>> ParseTrace(std::string_view text);

// Ascending. Not for traces, whose times are their own.
std::vector<double> PlanArrivals(const ArrivalSpec& spec, uint64_t seed);

}  // namespace augur::loadtest
