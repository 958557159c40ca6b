#include "loadtest/load_page.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "loadtest/svg_plot.h"

namespace augur::loadtest {
namespace {

using Value = std::function<double(const StageReport&)>;

constexpr char kPageStyle[] =
    "body{margin:0;background:#f8fafc;color:#0f172a;font:14px/1.5 system-ui,-apple-system,"
    "'Segoe UI',Roboto,'DejaVu Sans',sans-serif}"
    "main{max-width:1130px;margin:0 auto;padding:24px 12px}"
    "h2{font-size:16px;margin:28px 0 8px}svg{max-width:100%;height:auto;display:block}"
    ".cards{display:flex;flex-wrap:wrap;gap:12px;margin:16px 16px}"
    ".card{background:#fff;border:1px solid #e2e8f0;border-radius:8px;padding:10px 16px;"
    "flex:1 1 150px}.card b{display:block;font-size:20px}.card span{color:#475569;font-size:12px}"
    "section{padding:0 16px;overflow-x:auto}"
    "table{border-collapse:collapse;background:#fff;border:1px solid #e2e8f0;font-size:12px;"
    "font-variant-numeric:tabular-nums}"
    "th,td{padding:4px 10px;text-align:right;border-bottom:1px solid #eef2f7;white-space:nowrap}"
    "th{color:#475569;font-weight:600;background:#f1f5f9}th:first-child,td:first-child{"
    "text-align:left}dl{display:grid;grid-template-columns:max-content 1fr;gap:2px 16px}"
    "dt{color:#475569}dd{margin:0;overflow-wrap:anywhere}pre{white-space:pre-wrap;"
    "background:#fff;border:1px solid #e2e8f0;padding:8px 12px;border-radius:8px}";

bool IsOpen(const LoadReport& report) {
  return !report.stages.empty() && report.stages[0].open_loop;
}

double XOf(const StageReport& stage) {
  if (!stage.open_loop) return stage.concurrency;
  return stage.requested_rate > 0 ? stage.requested_rate : stage.offered_rate;
}

PlotSeries SeriesOf(const LoadReport& report, const std::string& name, const Value& value,
                    bool dashed = false) {
  PlotSeries series;
  series.name = name;
  series.dashed = dashed;
  for (const StageReport& stage : report.stages) {
    series.points.push_back(
        {XOf(stage), value(stage), stage.saturation.saturated,
         absl::StrCat(stage.name, stage.saturation.saturated ? ", over-saturated" : "")});
  }
  return series;
}

// Median and percentiles of one latency.
std::vector<PlotSeries> Spread(const LoadReport& report,
                               const LatencySamples StageLatencies::*latency) {
  std::vector<PlotSeries> all = {SeriesOf(report, "p50", [=](const StageReport& stage) {
    return (stage.figures.latencies.*latency).Median();
  })};
  for (const double percent : report.percentiles) {
    if (percent == 50) continue;
    all.push_back(SeriesOf(report, PercentileName(percent), [=](const StageReport& stage) {
      return (stage.figures.latencies.*latency).Percentile(percent);
    }));
  }
  return all;
}

PlotSeries Medians(const LoadReport& report, const std::string& name,
                   const LatencySamples StageLatencies::*latency, bool dashed = false) {
  return SeriesOf(
      report, name,
      [=](const StageReport& stage) { return (stage.figures.latencies.*latency).Median(); },
      dashed);
}

double GaugeMean(const StageReport& stage, const char* key) {
  const auto gauge = stage.daemon ? stage.daemon->Gauge(key) : std::nullopt;
  return gauge ? gauge->mean : 0;
}

std::vector<Plot> ClientPlots(const LoadReport& report) {
  std::vector<Plot> plots;
  plots.push_back({"Output tokens", "", "tokens/s", false, false, {}});
  plots.back().series = {SeriesOf(report, "completed requests", [](const StageReport& stage) {
    return stage.figures.PerSecond(stage.figures.output_tokens);
  })};
  plots.push_back({"Requests", "", "requests/s", false, false, {}});
  plots.back().series = {SeriesOf(report, "completed", [](const StageReport& stage) {
    return stage.figures.PerSecond(stage.figures.counts.completed);
  })};
  if (report.goodput.any()) {
    plots.back().series.push_back(SeriesOf(report, "within limits", [](const StageReport& stage) {
      return stage.figures.PerSecond(stage.figures.good);
    }));
  }
  if (IsOpen(report)) {
    plots.back().series.push_back(SeriesOf(
        report, "offered", [](const StageReport& stage) { return stage.offered_rate; }, true));
  }
  plots.push_back({"Time to first token", "", "ms", false, true, {}});
  plots.back().series = Spread(report, &StageLatencies::ttft);
  plots.push_back({"Between tokens", "", "ms", false, true, {}});
  plots.back().series = Spread(report, &StageLatencies::itl);
  plots.back().series.push_back(Medians(report, "TPOT p50", &StageLatencies::tpot, true));
  plots.push_back({"Request, end to end", "", "ms", false, true, {}});
  plots.back().series = Spread(report, &StageLatencies::e2el_with_queue);
  plots.push_back({"First token: the client's clock and the daemon's", "", "ms", false, true, {}});
  plots.back().series = {Medians(report, "client p50", &StageLatencies::ttft_from_send),
                         Medians(report, "daemon p50", &StageLatencies::server_ttft, true),
                         Medians(report, "its prefill", &StageLatencies::server_prefill),
                         Medians(report, "its queue", &StageLatencies::server_queue)};
  return plots;
}

std::vector<Plot> DaemonPlots(const LoadReport& report) {
  std::vector<Plot> plots;
  plots.push_back({"The daemon's batch", "", "requests", false, false, {}});
  plots.back().series = {
      SeriesOf(report, "in a step, mean",
               [](const StageReport& stage) {
                 const auto batch =
                     stage.daemon ? stage.daemon->Histogram("augur_batch_size") : std::nullopt;
                 return batch ? batch->Mean() : 0;
               }),
      SeriesOf(report, "running, mean",
               [](const StageReport& stage) { return GaugeMean(stage, "augur_running_requests"); }),
      SeriesOf(report, "queued, mean",
               [](const StageReport& stage) { return GaugeMean(stage, "augur_queue_requests"); })};
  plots.push_back({"KV memory in use", "", "%", false, false, {}});
  plots.back().series = {SeriesOf(report, "mean",
                                  [](const StageReport& stage) {
                                    return 100 * GaugeMean(stage, "vllm:kv_cache_usage_perc");
                                  }),
                         SeriesOf(report, "highest", [](const StageReport& stage) {
                           const auto gauge = stage.daemon
                                                  ? stage.daemon->Gauge("vllm:kv_cache_usage_perc")
                                                  : std::nullopt;
                           return gauge ? 100 * gauge->max : 0;
                         })};
  return plots;
}

// Where something moved at all.
std::vector<Plot> TransferPlots(const LoadReport& report) {
  const Value waits = [](const StageReport& stage) {
    double seconds = 0;
    if (!stage.daemon) return seconds;
    for (const auto& [key, histogram] : stage.daemon->histograms) {
      if (key.rfind("augur_transfer_wait_seconds", 0) == 0) seconds += histogram.sum;
    }
    return stage.figures.duration_s > 0 ? 100 * seconds / stage.figures.duration_s : 0;
  };
  const Value bytes = [](const StageReport& stage) {
    const auto moved =
        stage.daemon ? stage.daemon->Counter("augur_transfer_bytes_total") : std::nullopt;
    return moved && stage.figures.duration_s > 0 ? *moved / stage.figures.duration_s / (1 << 20)
                                                 : 0;
  };
  const bool any = std::any_of(report.stages.begin(), report.stages.end(),
                               [&](const StageReport& stage) { return bytes(stage) > 0; });
  if (!any) return {};
  std::vector<Plot> plots;
  plots.push_back({"Layers that waited for copies", "", "% of the time", false, false, {}});
  plots.back().series = {SeriesOf(report, "all causes", waits)};
  plots.push_back({"Copies between host and device", "", "MiB/s", false, false, {}});
  plots.back().series = {SeriesOf(report, "all directions", bytes)};
  return plots;
}

std::string Subheading(const LoadReport& report) {
  return absl::StrCat(report.model.model(), ", ", report.date, ", client on ", report.machine,
                      "; rings: over-saturated");
}

std::string Heading(const LoadReport& report) {
  if (!report.title.empty()) return report.title;
  return absl::StrCat("augur-load: ", IsOpen(report) ? "rates" : "batch sizes", " on ",
                      report.model.model());
}

std::string Card(const std::string& value, const std::string& name) {
  return absl::StrCat("<div class=\"card\"><b>", EscapeXml(value), "</b><span>", EscapeXml(name),
                      "</span></div>\n");
}

std::string Cards(const LoadReport& report) {
  uint64_t sent = 0;
  uint64_t bad = 0;
  double best = 0;
  std::string best_name;
  for (const StageReport& stage : report.stages) {
    sent += stage.figures.counts.sent;
    bad += stage.figures.counts.errors();
    const double throughput = stage.figures.PerSecond(stage.figures.output_tokens);
    if (throughput > best) best_name = stage.name;
    best = std::max(best, throughput);
  }
  std::string html = "<div class=\"cards\">\n";
  html += Card(absl::StrFormat("%.0f tokens/s", best), absl::StrCat("most, at ", best_name));
  const LatencySamples& first = report.stages.front().figures.latencies.ttft;
  html += Card(absl::StrFormat("%.1f ms", first.Median()),
               absl::StrCat("median time to first token, ", report.stages.front().name));
  html += Card(absl::StrCat(sent), "requests sent");
  html += Card(absl::StrCat(bad), "refused, failed or lost");
  return html + "</div>\n";
}

std::string TableHtml(const ReportSection& section) {
  std::string html = absl::StrCat("<section><h2>", EscapeXml(section.title), "</h2><table>\n");
  const auto& rows = section.table.rows();
  for (size_t i = 0; i < rows.size(); ++i) {
    const char* cell = i == 0 ? "th" : "td";
    html += "<tr>";
    for (const std::string& text : rows[i]) {
      absl::StrAppend(&html, "<", cell, ">", EscapeXml(text), "</", cell, ">");
    }
    html += "</tr>\n";
  }
  return html + "</table></section>\n";
}

std::string Asked(const LoadReport& report) {
  std::string html = "<section><h2>What was asked</h2><dl>\n";
  const auto add = [&](const std::string& name, const std::string& value) {
    absl::StrAppend(&html, "<dt>", EscapeXml(name), "</dt><dd>", EscapeXml(value), "</dd>\n");
  };
  add("daemon", absl::StrCat(report.model.model(), ", version ", report.model.version(), ", at ",
                             report.address));
  add("client", report.machine);
  add("date", report.date);
  add("arrivals", report.arrivals);
  for (const auto& [name, value] : report.workload) add(name, value);
  add("command", report.command);
  return html + "</dl></section>\n";
}

}  // namespace

std::string ReportSvg(const LoadReport& report) {
  std::vector<Plot> plots = ClientPlots(report);
  const bool watched = std::any_of(report.stages.begin(), report.stages.end(),
                                   [](const auto& stage) { return stage.daemon.has_value(); });
  if (watched) {
    for (auto* make : {DaemonPlots, TransferPlots}) {
      for (Plot& plot : make(report)) plots.push_back(std::move(plot));
    }
  }
  for (Plot& plot : plots) {
    plot.x_label = IsOpen(report) ? "requests/s asked for" : "requests under way (batch size)";
    plot.log_x = true;
  }
  return PlotSheet(Heading(report), Subheading(report), plots);
}

std::string ReportHtml(const LoadReport& report) {
  std::string html = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>",
      EscapeXml(Heading(report)), "</title><style>", kPageStyle, "</style></head><body><main>\n");
  if (!report.stages.empty()) html += Cards(report) + ReportSvg(report);
  for (const ReportSection& section : ReportSections(report)) html += TableHtml(section);
  const std::string remarks = ReportRemarks(report);
  if (!remarks.empty()) {
    absl::StrAppend(&html, "<section><h2>Remarks</h2><pre>", EscapeXml(remarks),
                    "</pre></section>\n");
  }
  return html + Asked(report) + "</main></body></html>\n";
}

}  // namespace augur::loadtest
