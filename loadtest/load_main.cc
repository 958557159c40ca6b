// augur-load: puts load on a running daemon and says how it bore it.
#include <sys/utsname.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "loadtest/command_line.h"
#include "loadtest/completion_client.h"
#include "loadtest/exit_status.h"
#include "loadtest/load_options.h"
#include "loadtest/load_page.h"
#include "loadtest/load_report.h"
#include "loadtest/load_session.h"
#include "loadtest/metrics_scrape.h"
#include "loadtest/prompt_source.h"
#include "loadtest/stop_signals.h"

// Set by the build.
#ifndef AUGUR_VERSION
#define AUGUR_VERSION "(unversioned build)"
#endif

namespace augur::loadtest {
namespace {

constexpr double kConnectLimitS = 20;
constexpr double kPlanCallLimitS = 600;

const CommandLine kCommand("augur-load");

// What no other run has.
std::string FreshSalt() {
  std::random_device device;
  return absl::StrFormat("load-%08x%08x", device(), device());
}

std::string UtcNow() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

std::string MachineText() {
  std::ifstream file("/proc/cpuinfo");
  std::string model = "unknown processor";
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    model = line.substr(std::min(line.find(':') + 2, line.size()));
    break;
  }
  utsname names{};
  uname(&names);
  return absl::StrCat(model, ", ", std::thread::hardware_concurrency(), " CPUs, ", names.sysname,
                      " ", names.release);
}

std::string CommandText(int argc, char** argv) {
  std::string text = "augur-load";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const bool plain = !argument.empty() && argument.find_first_of(" \t\n\"'*$") == argument.npos;
    absl::StrAppend(&text, " ", plain ? argument : absl::StrCat("'", argument, "'"));
  }
  return text;
}

bool Write(const char* flag, const std::string& path, const std::string& text,
           std::ios::openmode mode = std::ios::trunc) {
  return path.empty() || kCommand.WriteFile(flag, path, text, mode);
}

// Before anything is measured: a sweep may take hours.
bool CanWrite(const LoadOptions& options) {
  return Write("--json", options.json, "", std::ios::app) &&
         Write("--csv", options.csv, "", std::ios::app) &&
         Write("--html", options.html, "", std::ios::app) &&
         Write("--svg", options.svg, "", std::ios::app);
}

bool WriteReports(const LoadOptions& options, const LoadReport& report) {
  std::fputs(ReportTables(report).c_str(), stdout);
  bool written = std::fflush(stdout) == 0;
  if (!options.json.empty()) {
    written = Write("--json", options.json, ReportJsonText(report)) && written;
  }
  if (!options.csv.empty()) written = Write("--csv", options.csv, ReportCsv(report)) && written;
  if (!options.html.empty()) {
    written = Write("--html", options.html, ReportHtml(report)) && written;
  }
  if (!options.svg.empty()) written = Write("--svg", options.svg, ReportSvg(report)) && written;
  return written;
}

// Of the requests themselves.
int ExitStatusOf(const LoadReport& report) {
  bool refused = false;
  for (const StageReport& stage : report.stages) {
    const StageCounts& counts = stage.figures.counts;
    if (counts.failed > 0 || counts.lost > 0) return kExitFailed;
    refused = refused || counts.refused > 0;
  }
  return refused ? kExitRefused : kExitOk;
}

absl::StatusOr<std::unique_ptr<PromptSource>> MakeSource(LoadOptions* options,
                                                         const v1::GetModelResponse& model,
                                                         CompletionClient* client) {
  options->prompts.max_context = model.max_context();
  options->workload.max_context = model.max_context();
  if (absl::Status lengths = CheckLengths(options->workload); !lengths.ok()) return lengths;
  auto source = PromptSource::Make(options->prompts, options->defaults, model, client);
  if (source.ok()) options->workload.items = (*source)->Items();
  return source;
}

void PrintPlan(const LoadOptions& options) {
  std::vector<StagePlan> plans = PlanStages(options);
  if (options.sweep != SweepKind::kNone) {
    plans.push_back(PlanSweepStage(options, options.sweep_start, 1));
  }
  for (const StagePlan& plan : plans) std::fputs(PlanText(plan).c_str(), stdout);
}

int Load(LoadOptions options, CompletionClient* client, LoadRunner* runner,
         const StopSignals& signals, LoadReport* report) {
  absl::StatusOr<v1::GetModelResponse> model = client->GetModel();
  if (!model.ok()) return signals.stopped() ? kExitInterrupted : kCommand.FailCall(model.status());
  report->model = *std::move(model);
  if (!options.metrics.empty()) {
    const auto page = ScrapeMetrics(options.metrics);
    if (!page.ok()) return kCommand.Fail(kExitFailed, page.status());
  }
  const auto source = MakeSource(&options, report->model, client);
  if (signals.stopped()) return kExitInterrupted;
  if (absl::IsInvalidArgument(source.status()) || absl::IsOutOfRange(source.status())) {
    return kCommand.Fail(kExitUsage, source.status());
  }
  if (!source.ok()) return kCommand.FailCall(source.status());
  if (options.dry_run) {
    PrintPlan(options);
    return kExitOk;
  }
  if (!CanWrite(options)) return kExitUsage;
  const absl::Status connected = runner->Connect(kConnectLimitS);
  if (!connected.ok()) return kCommand.FailCall(connected);
  const absl::Status ran = RunStages(options, **source, runner, report);
  const bool written = report->stages.empty() || WriteReports(options, *report);
  if (signals.stopped()) return kExitInterrupted;
  if (!ran.ok()) return kCommand.FailCall(ran);
  return written ? ExitStatusOf(*report) : kExitFailed;
}

int Run(const LoadFlags& flags, const std::string& command) {
  const absl::StatusOr<LoadOptions> options = ResolveFlags(flags, FreshSalt());
  if (!options.ok()) return kCommand.Fail(kExitUsage, options.status());
  BlockStopSignals();
  CompletionClient client(options->runner.address, kPlanCallLimitS);
  LoadRunner runner(options->runner);
  const StopSignals signals([&] {
    client.Cancel();
    runner.Cancel();
  });
  LoadReport report;
  report.title = options->title;
  report.date = UtcNow();
  report.address = options->runner.address;
  report.machine = MachineText();
  report.command = command;
  const bool closed =
      options->rates.empty() && options->trace.empty() && options->sweep != SweepKind::kRate;
  report.arrivals = closed ? "closed" : ArrivalName(options->arrivals.kind);
  report.burstiness =
      options->arrivals.kind == ArrivalKind::kGamma ? options->arrivals.burstiness : 1;
  report.detailed = options->runner.keep_records;
  report.percentiles = options->percentiles;
  report.goodput = options->runner.goodput;
  report.workload = DescribeWorkload(flags);
  const int status = Load(*options, &client, &runner, signals, &report);
  if (status == kExitInterrupted) std::fputs("augur-load: interrupted\n", stderr);
  return status;
}

}  // namespace
}  // namespace augur::loadtest

int main(int argc, char** argv) {
  CLI::App app("Puts load on augurd and measures latency, throughput and goodput.", "augur-load");
  app.set_version_flag("--version", "augur-load " AUGUR_VERSION);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return absl::StrCat("augur-load: ", error.what(), " (see augur-load --help)\n");
  });
  augur::loadtest::LoadFlags flags;
  augur::loadtest::AddLoadFlags(&app, &flags);
  int status = 0;
  if (!augur::loadtest::ParseFlags(&app, argc, argv, &status)) return status;
  return augur::loadtest::Run(flags, augur::loadtest::CommandText(argc, argv));
}
