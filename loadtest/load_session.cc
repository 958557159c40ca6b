#include "loadtest/load_session.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "loadtest/load_progress.h"

namespace augur::loadtest {
namespace {

constexpr uint32_t kFirstStage = 1;  // the warm-up is stage 0
constexpr int64_t kFewestRequests = 16;
constexpr int64_t kRequestsPerSlot = 4;

StagePlan PlanBatch(const LoadOptions& options, uint32_t batch, uint32_t number) {
  int64_t requests = options.requests;
  if (requests == 0) {
    // Where time is the limit, it should not be the plan.
    requests = options.duration_s > 0 ? kMostRequests
                                      : std::max(kFewestRequests, kRequestsPerSlot * batch);
  }
  return PlanClosedStage(options.workload, batch, requests, options.ramp_s, options.duration_s,
                         options.seed, number);
}

StagePlan PlanRate(const LoadOptions& options, double rate, uint32_t number) {
  ArrivalSpec arrivals = options.arrivals;
  arrivals.rate = rate;
  return PlanOpenStage(options.workload, arrivals, options.max_in_flight, options.seed, number);
}

class Session {
 public:
  Session(const LoadOptions& options, const RequestSource& source, LoadRunner* runner,
          LoadReport* report)
      : options_(options), source_(source), runner_(runner), report_(report) {}

  absl::Status Warm() {
    if (options_.warmup == 0) return absl::OkStatus();
    const auto most = static_cast<uint32_t>(std::min<int64_t>(options_.warmup, 8));
    StagePlan plan =
        PlanClosedStage(options_.workload, most, options_.warmup, 0, 0, options_.seed, 0);
    plan.name = "warm-up";
    // Nothing of the mix: it is to be over and done.
    for (PlannedRequest& request : plan.requests) {
      request.cancel_after_s = request.deadline_s = request.read_pause_s = 0;
    }
    const LoadProgress progress(LoadProgress::ModeOf(options_.progress), plan.name, runner_);
    runner_->Run(plan, source_);
    return absl::OkStatus();
  }

  // False once the run was ended.
  absl::StatusOr<bool> Run(const StagePlan& plan, double requested_rate) {
    std::unique_ptr<DaemonWatch> watch;
    if (!options_.metrics.empty()) {
      watch = std::make_unique<DaemonWatch>(options_.metrics, options_.metrics_interval_s);
      const absl::Status begun = watch->Begin();
      if (!begun.ok()) return begun;
    }
    StageResult result;
    {
      const LoadProgress progress(LoadProgress::ModeOf(options_.progress), plan.name, runner_);
      result = runner_->Run(plan, source_);
    }
    StageReport stage;
    stage.name = plan.name;
    stage.open_loop = plan.open_loop;
    stage.concurrency = plan.open_loop ? 0 : plan.concurrency;
    stage.requested_rate = requested_rate;
    stage.offered_rate = plan.offered_rate;
    stage.cut_requests = plan.cut_requests;
    stage.max_in_flight = plan.max_in_flight;
    stage.figures = std::move(result.figures);
    stage.records = std::move(result.records);
    stage.client_cpu_s = result.client_cpu_s;
    stage.complete = result.complete;
    // Where time was the limit, what time had no room for was never meant to be sent.
    StageCounts* counts = &stage.figures.counts;
    if (!plan.open_loop && plan.send_limit_s > 0) counts->planned = counts->sent;
    if (watch != nullptr) stage.daemon = watch->Finish();
    Judge(result, &stage);
    report_->stages.push_back(std::move(stage));
    return result.complete;
  }

  bool saturated() const { return report_->stages.back().saturation.saturated; }

 private:
  void Judge(const StageResult& result, StageReport* stage) {
    const StageFigures& figures = stage->figures;
    if (stage->open_loop) {
      stage->saturation = JudgeOpenLoop(result.in_flight, figures.counts, options_.saturation);
      return;
    }
    std::optional<double> best;
    for (const StageReport& before : report_->stages) {
      if (before.open_loop || before.concurrency >= stage->concurrency) continue;
      const double throughput = before.figures.PerSecond(before.figures.output_tokens);
      best = std::max(best.value_or(0), throughput);
    }
    stage->saturation = JudgeClosedLoop(figures.PerSecond(figures.output_tokens), best,
                                        figures.counts, options_.saturation);
  }

  const LoadOptions& options_;
  const RequestSource& source_;
  LoadRunner* const runner_;
  LoadReport* const report_;
};

absl::Status SweepRates(const LoadOptions& options, Session* session, LoadReport* report) {
  RateSearch search(options.sweep_start, options.sweep_factor, options.sweep_stages,
                    options.sweep_refine);
  uint32_t number = kFirstStage;
  while (const std::optional<double> rate = search.Next()) {
    const auto more = session->Run(PlanSweepStage(options, *rate, number++), *rate);
    if (!more.ok()) return more.status();
    if (!*more) return absl::OkStatus();
    search.Report(session->saturated());
  }
  std::sort(report->stages.begin(), report->stages.end(), [](const auto& one, const auto& other) {
    return one.requested_rate < other.requested_rate;
  });
  const auto rate = [](const std::optional<double>& known) {
    return known ? absl::StrFormat("%.3g requests/s", *known) : std::string("none that was tried");
  };
  report->sweep = absl::StrCat("Sustained: ", rate(search.sustained()),
                               "; over-saturated: ", rate(search.saturated()), ".");
  return absl::OkStatus();
}

absl::Status SweepBatches(const LoadOptions& options, Session* session, LoadReport* report) {
  BatchSearch search(static_cast<uint32_t>(options.sweep_start), options.sweep_most);
  uint32_t number = kFirstStage;
  while (const std::optional<uint32_t> batch = search.Next()) {
    const auto more = session->Run(PlanSweepStage(options, *batch, number++), 0);
    if (!more.ok()) return more.status();
    if (!*more) return absl::OkStatus();
    search.Report(session->saturated());
  }
  const StageReport* best = &report->stages[0];
  for (const StageReport& stage : report->stages) {
    const auto throughput = [](const StageReport& one) {
      return one.figures.PerSecond(one.figures.output_tokens);
    };
    if (throughput(stage) > throughput(*best)) best = &stage;
  }
  report->sweep =
      absl::StrFormat("Most output tokens/s: %.1f, with %u requests under way.",
                      best->figures.PerSecond(best->figures.output_tokens), best->concurrency);
  return absl::OkStatus();
}

}  // namespace

std::vector<StagePlan> PlanStages(const LoadOptions& options) {
  std::vector<StagePlan> plans;
  const auto number = [&] { return kFirstStage + static_cast<uint32_t>(plans.size()); };
  if (options.sweep != SweepKind::kNone) return plans;
  for (const uint32_t batch : options.batches) plans.push_back(PlanBatch(options, batch, number()));
  for (const double rate : options.rates) plans.push_back(PlanRate(options, rate, number()));
  if (!options.trace.empty()) {
    plans.push_back(PlanTraceStage(options.workload, options.trace, options.trace_speed,
                                   options.max_in_flight, options.seed, number()));
  }
  return plans;
}

StagePlan PlanSweepStage(const LoadOptions& options, double value, uint32_t number) {
  return options.sweep == SweepKind::kBatch
             ? PlanBatch(options, static_cast<uint32_t>(value), number)
             : PlanRate(options, value, number);
}

absl::Status RunStages(const LoadOptions& options, const RequestSource& source, LoadRunner* runner,
                       LoadReport* report) {
  Session session(options, source, runner, report);
  const absl::Status warm = session.Warm();
  if (!warm.ok()) return warm;
  if (options.sweep == SweepKind::kRate) return SweepRates(options, &session, report);
  if (options.sweep == SweepKind::kBatch) return SweepBatches(options, &session, report);
  const std::vector<StagePlan> plans = PlanStages(options);
  for (size_t i = 0; i < plans.size(); ++i) {
    const double rate = i < options.rates.size() ? options.rates[i] : 0;
    const auto more = session.Run(plans[i], rate);
    if (!more.ok()) return more.status();
    if (!*more) break;
  }
  return absl::OkStatus();
}

}  // namespace augur::loadtest
