#include "loadtest/saturation.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace augur::loadtest {
namespace {

constexpr size_t kFewestSamples = 8;
constexpr double kFewestRequests = 4;
constexpr double kScatterFactor = 2;
constexpr double kStandardErrors = 3;
constexpr int kSaturatedInARow = 2;

struct Line {
  double slope = 0;
  double scatter = 0;  // standard deviation about the line
  double span = 0;
};

Line FitLine(const InFlightSample* begin, const InFlightSample* end) {
  const auto n = static_cast<double>(end - begin);
  double mean_x = 0;
  double mean_y = 0;
  for (const auto* at = begin; at != end; ++at) {
    mean_x += at->at_s / n;
    mean_y += at->in_flight / n;
  }
  double xx = 0;
  double xy = 0;
  double yy = 0;
  for (const auto* at = begin; at != end; ++at) {
    const double x = at->at_s - mean_x;
    const double y = at->in_flight - mean_y;
    xx += x * x;
    xy += x * y;
    yy += y * y;
  }
  Line line;
  line.span = (end - 1)->at_s - begin->at_s;
  line.slope = xx > 0 ? xy / xx : 0;
  line.scatter = std::sqrt(std::max(yy - line.slope * xy, 0.0) / n);
  return line;
}

bool JudgeRefusals(const StageCounts& counts, double share, SaturationVerdict* verdict) {
  if (counts.sent == 0) return false;
  const double refused = static_cast<double>(counts.errors()) / static_cast<double>(counts.sent);
  if (refused <= share) return false;
  verdict->saturated = true;
  verdict->why = absl::StrFormat("%.0f %% of the requests were refused or failed", refused * 100);
  return true;
}

}  // namespace

SaturationVerdict JudgeOpenLoop(const std::vector<InFlightSample>& in_flight,
                                const StageCounts& counts, const SaturationLimits& limits) {
  SaturationVerdict verdict;
  if (in_flight.size() >= kFewestSamples) {
    const InFlightSample* begin = in_flight.data() + in_flight.size() / 4;
    const InFlightSample* end = in_flight.data() + in_flight.size();
    const Line line = FitLine(begin, end);
    if (line.span > 0) verdict.offered_rate = static_cast<double>(end - begin - 1) / line.span;
    verdict.backlog_rate = line.slope;
    const double grown = line.slope * line.span;
    const double standard_error = std::sqrt(12 / static_cast<double>(end - begin));
    const double factor = std::max(kScatterFactor, kStandardErrors * standard_error);
    if (line.slope > limits.backlog_share * verdict.offered_rate && grown >= kFewestRequests &&
        grown >= factor * line.scatter) {
      verdict.saturated = true;
      verdict.why = absl::StrFormat("the backlog grew by %.2f requests/s of %.2f offered",
                                    line.slope, verdict.offered_rate);
      return verdict;
    }
  }
  JudgeRefusals(counts, limits.refused_share, &verdict);
  return verdict;
}

SaturationVerdict JudgeClosedLoop(double output_throughput, std::optional<double> best_before,
                                  const StageCounts& counts, const SaturationLimits& limits) {
  SaturationVerdict verdict;
  if (JudgeRefusals(counts, limits.refused_share, &verdict)) return verdict;
  if (best_before && output_throughput < (1 + limits.flat_gain) * *best_before) {
    verdict.saturated = true;
    verdict.why = absl::StrFormat("%.1f tokens/s against %.1f with fewer requests under way",
                                  output_throughput, *best_before);
  }
  return verdict;
}

RateSearch::RateSearch(double start, double factor, int most_stages, int refine)
    : factor_(factor), stages_left_(most_stages), refine_left_(refine), rate_(start) {}

std::optional<double> RateSearch::Next() const {
  if (stages_left_ <= 0 || (good_ && bad_ && refine_left_ <= 0)) return std::nullopt;
  return rate_;
}

void RateSearch::Report(bool saturated) {
  --stages_left_;
  if (good_ && bad_) --refine_left_;
  if (saturated) {
    bad_ = bad_ ? std::min(*bad_, rate_) : rate_;
  } else {
    good_ = good_ ? std::max(*good_, rate_) : rate_;
  }
  if (good_ && bad_) {
    rate_ = std::sqrt(*good_ * *bad_);
  } else {
    rate_ = saturated ? rate_ / factor_ : rate_ * factor_;
  }
}

std::optional<uint32_t> BatchSearch::Next() const {
  if (size_ > most_ || saturated_in_a_row_ >= kSaturatedInARow) return std::nullopt;
  return size_;
}

void BatchSearch::Report(bool saturated) {
  saturated_in_a_row_ = saturated ? saturated_in_a_row_ + 1 : 0;
  size_ = size_ < most_ ? std::min(size_ * 2, most_) : most_ + 1;
}

}  // namespace augur::loadtest
