#include "loadtest/load_report.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace augur::loadtest {
namespace {

std::string Fixed(double value) {
  if (value >= 999.5) return absl::StrFormat("%.0f", value);
  return absl::StrFormat(value >= 9.995 ? "%.1f" : "%.2f", value);
}

std::string Count(uint64_t count) { return absl::StrCat(count); }

// "12.3/45.6": median and the highest of the percentiles, milliseconds.
std::string MedianAndTail(const LatencySamples& samples, double tail) {
  if (samples.count() == 0) return kUnknown;
  return absl::StrCat(Fixed(samples.Median()), "/", Fixed(samples.Percentile(tail)));
}

ReportTable Throughputs(const LoadReport& report, double tail) {
  const std::string tail_name = PercentileName(tail);
  ReportTable table({"stage", "sent", "done", "bad", "req/s", "in tok/s", "out tok/s",
                     absl::StrCat("TTFT p50/", tail_name), absl::StrCat("ITL p50/", tail_name),
                     absl::StrCat("TPOT p50/", tail_name), absl::StrCat("E2E p50/", tail_name),
                     "goodput", "right"},
                    1);
  for (const StageReport& stage : report.stages) {
    const StageFigures& figures = stage.figures;
    const StageLatencies& all = figures.latencies;
    table.AddRow(
        {absl::StrCat(stage.name, stage.saturation.saturated ? " *" : ""),
         Count(figures.counts.sent), Count(figures.counts.completed),
         Count(figures.counts.errors()), Fixed(figures.PerSecond(figures.counts.completed)),
         Fixed(figures.PerSecond(figures.input_tokens)),
         Fixed(figures.PerSecond(figures.output_tokens)), MedianAndTail(all.ttft, tail),
         MedianAndTail(all.itl, tail), MedianAndTail(all.tpot, tail),
         MedianAndTail(all.e2el_with_queue, tail),
         report.goodput.any() ? Fixed(figures.PerSecond(figures.good)) : kUnknown,
         figures.answers > 0 ? absl::StrCat(figures.right, "/", figures.answers) : kUnknown});
  }
  return table;
}

bool AnyOf(const LoadReport& report, bool (*has)(const StageReport&)) {
  for (const StageReport& stage : report.stages) {
    if (has(stage)) return true;
  }
  return false;
}

// Where what was sent went, and how late it was sent.
ReportTable Outcomes(const LoadReport& report) {
  ReportTable table(
      {"stage", "planned", "sent", "done", "cancelled", "expired", "refused", "failed", "lost",
       "unsent", "late p99 ms", "late max ms", "in flight", "client CPU"},
      1);
  for (const StageReport& stage : report.stages) {
    const StageFigures& figures = stage.figures;
    const StageCounts& counts = figures.counts;
    const LatencySamples& late = figures.latencies.client_queue_time;
    table.AddRow({stage.name, Count(counts.planned), Count(counts.sent), Count(counts.completed),
                  Count(counts.cancelled), Count(counts.expired), Count(counts.refused),
                  Count(counts.failed), Count(counts.lost),
                  Count(counts.unsent() + counts.interrupted),
                  stage.open_loop ? Fixed(late.Percentile(99)) : kUnknown,
                  stage.open_loop ? Fixed(late.Max()) : kUnknown, Count(figures.max_in_flight),
                  figures.duration_s > 0
                      ? absl::StrFormat("%.0f %%", 100 * stage.client_cpu_s / figures.duration_s)
                      : kUnknown});
  }
  return table;
}

ReportTable ServerTimes(const LoadReport& report, double tail) {
  ReportTable table({"stage", "TTFT client", "server", "beyond", "queue", "prefill", "ITL client",
                     "server", "E2E client", "server", "beyond"},
                    1);
  for (const StageReport& stage : report.stages) {
    const StageLatencies& all = stage.figures.latencies;
    table.AddRow({stage.name, MedianAndTail(all.ttft_from_send, tail),
                  MedianAndTail(all.server_ttft, tail), MedianAndTail(all.ttft_beyond_server, tail),
                  MedianAndTail(all.server_queue, tail), MedianAndTail(all.server_prefill, tail),
                  MedianAndTail(all.itl, tail), MedianAndTail(all.server_itl, tail),
                  MedianAndTail(all.e2el, tail), MedianAndTail(all.server_total, tail),
                  MedianAndTail(all.e2el_beyond_server, tail)});
  }
  return table;
}

std::string MeanAndMax(const std::optional<GaugeFigure>& gauge, double scale) {
  if (!gauge) return kUnknown;
  return absl::StrCat(Fixed(gauge->mean * scale), "/", Fixed(gauge->max * scale));
}

// Seconds that layers waited for copies, whatever the cause.
double TransferWait(const DaemonFigures& daemon) {
  double seconds = 0;
  for (const auto& [key, histogram] : daemon.histograms) {
    if (key.rfind("augur_transfer_wait_seconds", 0) == 0) seconds += histogram.sum;
  }
  return seconds;
}

std::string CounterText(const std::optional<double>& counter) {
  return counter ? absl::StrFormat("%.6g", *counter) : kUnknown;
}

ReportTable DaemonTable(const LoadReport& report) {
  ReportTable table({"stage", "batch mean", "step p50 ms", "running mean/max", "queued mean/max",
                     "KV % mean/max", "prefix hits", "preempted", "moved", "transfer waits s",
                     "CTAs granted/busy", "CTA s copy", "attention"},
                    1);
  for (const StageReport& stage : report.stages) {
    if (!stage.daemon) continue;
    const DaemonFigures& daemon = *stage.daemon;
    const auto batch = daemon.Histogram("augur_batch_size");
    const auto step = daemon.Histogram("augur_step_seconds");
    const auto granted = daemon.Gauge("augur_transfer_ctas{state=\"granted\"}");
    const auto busy = daemon.Gauge("augur_transfer_ctas{state=\"busy\"}");
    const auto bytes = daemon.Counter("augur_transfer_bytes_total");
    table.AddRow(
        {stage.name, batch ? Fixed(batch->Mean()) : kUnknown,
         step ? Fixed(step->p50 * 1000) : kUnknown,
         MeanAndMax(daemon.Gauge("augur_running_requests"), 1),
         MeanAndMax(daemon.Gauge("augur_queue_requests"), 1),
         MeanAndMax(daemon.Gauge("vllm:kv_cache_usage_perc"), 100),
         CounterText(daemon.Counter("augur_prefix_hit_blocks_total")),
         CounterText(daemon.Counter("augur_preemptions_total")),
         bytes ? FormatBytes(*bytes) : kUnknown, Fixed(TransferWait(daemon)),
         granted && busy ? absl::StrCat(Fixed(granted->mean), "/", Fixed(busy->mean)) : kUnknown,
         CounterText(daemon.Counter("augur_cta_seconds_total{role=\"copy\"}")),
         CounterText(daemon.Counter("augur_cta_seconds_total{role=\"attention\"}"))});
  }
  return table;
}

}  // namespace

std::string ReportRemarks(const LoadReport& report) {
  std::string text;
  for (const StageReport& stage : report.stages) {
    const StageFigures& figures = stage.figures;
    for (const auto& [error, count] : figures.errors) {
      absl::StrAppend(&text, stage.name, ": ", count, " ", error, ": ",
                      figures.error_texts.at(error), "\n");
    }
    if (figures.miscounted > 0) {
      absl::StrAppend(&text, stage.name, ": ", figures.miscounted,
                      " streams whose chunks do not add up to Usage.completion_tokens\n");
    }
    if (stage.cut_requests > 0) {
      absl::StrAppend(&text, stage.name, ": ", stage.cut_requests,
                      " requests of the trace were cut to the context\n");
    }
    if (stage.saturation.saturated) {
      absl::StrAppend(&text, stage.name, " *: over-saturated: ", stage.saturation.why, "\n");
    }
    if (!figures.latencies.itl.exact()) {
      absl::StrAppend(&text, stage.name, ": percentiles of more than ",
                      LatencySamples::kExactSamples, " samples are within 0.5 %\n");
    }
    if (!stage.complete) absl::StrAppend(&text, stage.name, ": interrupted\n");
    if (stage.daemon && (stage.daemon->missed_pages > 0 || stage.daemon->restarted)) {
      absl::StrAppend(&text, stage.name, ": ", stage.daemon->missed_pages, " metrics pages missed",
                      stage.daemon->restarted ? ", restarted" : "", "\n");
    }
  }
  if (report.sweep) absl::StrAppend(&text, *report.sweep, "\n");
  return text;
}

std::string PercentileName(double percent) { return absl::StrFormat("p%g", percent); }

std::vector<std::pair<const char*, const LatencySamples*>> NamedLatencies(
    const StageLatencies& latencies) {
  return {{"ttft", &latencies.ttft},
          {"tpot", &latencies.tpot},
          {"itl", &latencies.itl},
          {"e2el", &latencies.e2el},
          {"client_queue_time", &latencies.client_queue_time},
          {"e2el_including_client_queue", &latencies.e2el_with_queue},
          {"ttft_from_send", &latencies.ttft_from_send},
          {"acceptance", &latencies.acceptance},
          {"server_queue", &latencies.server_queue},
          {"server_prefill", &latencies.server_prefill},
          {"server_ttft", &latencies.server_ttft},
          {"server_decode", &latencies.server_decode},
          {"server_itl", &latencies.server_itl},
          {"server_total", &latencies.server_total},
          {"ttft_beyond_server", &latencies.ttft_beyond_server},
          {"e2el_beyond_server", &latencies.e2el_beyond_server}};
}

std::vector<ReportSection> ReportSections(const LoadReport& report) {
  const double tail = report.percentiles.empty() ? 99 : report.percentiles.back();
  std::vector<ReportSection> sections = {
      {absl::StrCat("Throughput and latency, ms: median/", PercentileName(tail)),
       Throughputs(report, tail)},
      {"Requests", Outcomes(report)}};
  if (AnyOf(report,
            [](const StageReport& s) { return s.figures.latencies.server_total.count() > 0; })) {
    sections.push_back({"The client's clock and the daemon's, ms", ServerTimes(report, tail)});
  }
  if (AnyOf(report, [](const StageReport& s) { return s.daemon.has_value(); })) {
    sections.push_back({"What the daemon exported meanwhile", DaemonTable(report)});
  }
  return sections;
}

std::string ReportTables(const LoadReport& report) {
  std::string text = absl::StrCat(report.model.model(), " at ", report.address, "\n");
  for (const ReportSection& section : ReportSections(report)) {
    absl::StrAppend(&text, "\n", section.title, "\n", section.table.Text());
  }
  const std::string remarks = ReportRemarks(report);
  if (!remarks.empty()) absl::StrAppend(&text, "\n", remarks);
  return text;
}

}  // namespace augur::loadtest
