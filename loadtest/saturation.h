// Whether a stage asked for more than the daemon can do.
//
// Open loop: requests under way (waiting in the client included) are counted at every intended
// send. A daemon that keeps up has a level number of them; one that does not falls behind by a
// share of what is offered. The backlog's growth is the slope of a least-squares line through the
// last three quarters of the counts, in requests a second, and the stage is over-saturated when
//   - it is more than `backlog_share` of the offered rate, and
//   - over that time it came to at least four requests, to twice what the counts scatter about the
//     line, and to three standard errors of the line's rise, so that chance alone does not do it;
// or when more than `refused_share` of what was sent was refused or failed.
//
// Closed loop: the number under way is given, so saturation shows in throughput. A batch size is
// saturated when its output tokens a second are less than (1 + `flat_gain`) times the best of all
// smaller ones; or by refusals, as above.
//
// Thread: plain functions. Failure: none; fewer than eight counts are never over-saturated.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "loadtest/load_runner.h"

namespace augur::loadtest {

struct SaturationLimits {
  double backlog_share = 0.1;
  double refused_share = 0.1;
  double flat_gain = 0.05;
};

struct SaturationVerdict {
  bool saturated = false;
  double offered_rate = 0;  // requests a second, in the time that was looked at
  double backlog_rate = 0;  // of those, how many the daemon fell behind by, each second
  std::string why;          // for people; empty unless saturated
};

SaturationVerdict JudgeOpenLoop(const std::vector<InFlightSample>& in_flight,
                                const StageCounts& counts, const SaturationLimits& limits);

// `best_before`: output tokens a second of the best smaller batch size; unset for the first.
SaturationVerdict JudgeClosedLoop(double output_throughput, std::optional<double> best_before,
                                  const StageCounts& counts, const SaturationLimits& limits);

// The rates of a sweep: each `factor` times the one before until one is over-saturated, then
// `refine` times the geometric middle between the highest that was not and the lowest that was.
// A first rate that is over-saturated is divided by `factor` until one is not.
class RateSearch {
 public:
  RateSearch(double start, double factor, int most_stages, int refine);

  // The rate to try now; nullopt: done.
  std::optional<double> Next() const;
  // What the rate of Next turned out to be.
  void Report(bool saturated);

  // The highest rate that was not over-saturated.
  std::optional<double> sustained() const { return good_; }
  std::optional<double> saturated() const { return bad_; }

 private:
  const double factor_;
  int stages_left_;
  int refine_left_;
  double rate_;
  std::optional<double> good_;
  std::optional<double> bad_;
};

// 1, 2, 4, ... up to `most`; ends after two saturated sizes one after the other, which one with
// noise does not bring about.
class BatchSearch {
 public:
  BatchSearch(uint32_t start, uint32_t most) : size_(start), most_(most) {}

  std::optional<uint32_t> Next() const;
  void Report(bool saturated);

 private:
  uint32_t size_;
  const uint32_t most_;
  int saturated_in_a_row_ = 0;
};

}  // namespace augur::loadtest
