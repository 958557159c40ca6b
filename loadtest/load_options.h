// The command line of augur-load, as it is written and as it is meant.
//
// Thread: plain functions. Ownership: values. Units: those of the names. Failure: ResolveFlags
// gives InvalidArgument naming the flag.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/load_runner.h"
#include "loadtest/prompt_source.h"
#include "loadtest/saturation.h"
#include "loadtest/workload_plan.h"

namespace augur::loadtest {

enum class SweepKind { kNone, kBatch, kRate };

struct LoadOptions {
  RunnerOptions runner;
  std::string metrics;  // HOST:PORT; empty: do not look
  double metrics_interval_s = 0.25;

  std::vector<uint32_t> batches;  // closed loop
  std::vector<double> rates;      // open loop
  std::vector<TraceEntry> trace;  // open loop
  double trace_speed = 1;
  ArrivalSpec arrivals;  // but for the rate
  uint32_t max_in_flight = 0;
  int64_t requests = 0;   // of a stage; 0: not given
  double duration_s = 0;  // in which a stage sends; 0: not given
  double ramp_s = 0;
  int64_t warmup = 0;

  SweepKind sweep = SweepKind::kNone;
  double sweep_start = 1;
  double sweep_factor = 2;
  int sweep_stages = 12;
  int sweep_refine = 2;
  uint32_t sweep_most = 64;  // batch size
  SaturationLimits saturation;

  WorkloadSpec workload;
  PromptOptions prompts;
  RequestDefaults defaults;
  uint64_t seed = 1;

  std::string title;
  std::vector<double> percentiles;
  std::string json;
  std::string csv;
  std::string html;
  std::string svg;
  bool progress = false;
  bool dry_run = false;
};

// As CLI11 fills them in.
struct LoadFlags {
  LoadOptions options;
  std::vector<uint32_t> concurrency;
  std::vector<double> rates;
  std::string trace;
  std::string arrivals = "poisson";
  std::string ramp = "none";
  std::string sweep = "none";
  std::string prompts = "random";
  std::string task = "many-keys";
  std::string input = "512";
  std::string output = "64";
  std::string ignore_eos = "auto";
  std::string cancel_after = "uniform:1,1000";
  std::string deadline = "uniform:1,1000";
  std::string priorities;
  std::string choices;
  std::string attention;
  std::string salt;
  std::vector<std::string> goodput;
  int64_t seed = 1;
};

void AddLoadFlags(CLI::App* app, LoadFlags* flags);

// All that can be known without the daemon. Reads trace and length files. `fresh_salt`: what no
// other run has.
absl::StatusOr<LoadOptions> ResolveFlags(LoadFlags flags, const std::string& fresh_salt);

// What was asked, in words, for the reports.
std::vector<std::pair<std::string, std::string>> DescribeWorkload(const LoadFlags& flags);

}  // namespace augur::loadtest
