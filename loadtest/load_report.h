// The outcome of a load test: as a table for people, as JSON and CSV for programs. README.md says
// what each figure means; load_page.h draws the picture.
//
// Thread: plain functions. Ownership: values. Units: those of the names: _ms, _s, per second.
// Failure: none.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "augur/v1/completions.pb.h"
#include "loadtest/daemon_watch.h"
#include "loadtest/load_figures.h"
#include "loadtest/load_runner.h"
#include "loadtest/report_table.h"
#include "loadtest/saturation.h"
#include "loadtest/workload_plan.h"

namespace augur::loadtest {

struct StageReport {
  std::string name;
  bool open_loop = false;
  uint32_t concurrency = 0;    // closed loop
  double requested_rate = 0;   // open loop; 0: a trace's
  int64_t cut_requests = 0;    // of a trace, to what the context has room for
  double offered_rate = 0;     // open loop: of the plan as it was drawn
  uint32_t max_in_flight = 0;  // open loop; 0: no limit
  StageFigures figures;
  std::vector<RequestRecord> records;  // with detail
  std::optional<DaemonFigures> daemon;
  SaturationVerdict saturation;
  double client_cpu_s = 0;
  bool complete = false;
};

struct LoadReport {
  std::string title;
  std::string date;  // UTC
  std::string address;
  std::string machine;  // what the client ran on
  std::string command;  // as it was given
  v1::GetModelResponse model;
  std::string arrivals;  // "closed", or the kind of arrivals
  double burstiness = 1;
  bool detailed = false;
  std::vector<double> percentiles = {90, 99};  // beside mean, median and standard deviation
  GoodputLimits goodput;
  std::vector<std::pair<std::string, std::string>> workload;  // what was asked, for people
  std::vector<StageReport> stages;
  std::optional<std::string> sweep;  // what it came to, one line
};

struct ReportSection {
  std::string title;
  ReportTable table;
};

// Throughput and latencies, outcomes, both clocks, the daemon's own figures: those that there are.
std::vector<ReportSection> ReportSections(const LoadReport& report);
// Errors with their first message, and what else one should know; a line each.
std::string ReportRemarks(const LoadReport& report);

std::string ReportTables(const LoadReport& report);
// One object; with a single stage its keys stand at the top as well, as in the de-facto bench.
std::string ReportJsonText(const LoadReport& report);
// A head and one line for each stage (RFC 4180).
std::string ReportCsv(const LoadReport& report);

// "p50", "p99.9".
std::string PercentileName(double percent);

// Each latency of a stage with the name that the reports give it.
std::vector<std::pair<const char*, const LatencySamples*>> NamedLatencies(
    const StageLatencies& latencies);

}  // namespace augur::loadtest
