// What a Prometheus page says, and how much counters grew between two pages.
//
// Thread: plain functions. Ownership: values. Units: those of the metrics. Failure: InvalidArgument
// naming the line that is not in the text format.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace augur::loadtest {

struct PrometheusSample {
  std::string name;
  std::map<std::string, std::string> labels;
  double value = 0;
};

// All samples of a page, in its order; comments are skipped, time stamps dropped.
absl::StatusOr<std::vector<PrometheusSample>> ParsePrometheusText(std::string_view page);

// `name{label="value",...}` with the labels in alphabetical order.
std::string SampleKey(const PrometheusSample& sample);

// Growth of counters. A counter that was not there before began at 0.
class CounterGrowth {
 public:
  // Of the samples named in `names`.
  CounterGrowth(const std::vector<PrometheusSample>& before,
                const std::vector<PrometheusSample>& after, const std::vector<std::string>& names);

  // By SampleKey.
  const std::map<std::string, double>& samples() const { return samples_; }
  // Over all labels; nullopt where the page has no such counter, or where one has shrunk (the
  // daemon was started anew).
  std::optional<double> Sum(const std::string& name) const;

 private:
  std::map<std::string, double> samples_;
  std::map<std::string, std::optional<double>> sums_;
};

}  // namespace augur::loadtest
