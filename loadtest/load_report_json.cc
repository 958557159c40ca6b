// The JSON and CSV of load_report.h.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "loadtest/load_report.h"
#include "nlohmann/json.hpp"

namespace augur::loadtest {
namespace {

using Json = nlohmann::ordered_json;

void AddCounts(const StageReport& stage, Json* json) {
  const StageFigures& figures = stage.figures;
  const StageCounts& counts = figures.counts;
  Json& out = *json;
  out["duration"] = figures.duration_s;
  out["completed"] = counts.completed;
  // Whatever did not complete, but for what we ended on purpose.
  out["failed"] = counts.errors();
  out["total_input_tokens"] = figures.input_tokens;
  out["total_output_tokens"] = figures.output_tokens;
  out["request_throughput"] = figures.PerSecond(counts.completed);
  out["request_goodput"] = nullptr;
  out["output_throughput"] = figures.PerSecond(figures.output_tokens);
  out["total_token_throughput"] = figures.PerSecond(figures.output_tokens + figures.input_tokens);
  out["max_output_tokens_per_s"] = figures.max_output_tokens_per_s;
  out["max_concurrent_requests"] = figures.max_in_flight;
}

void AddOutcomes(const StageReport& stage, Json* json) {
  const StageFigures& figures = stage.figures;
  const StageCounts& counts = figures.counts;
  Json& out = *json;
  out["planned"] = counts.planned;
  out["sent"] = counts.sent;
  out["cancelled"] = counts.cancelled;
  out["expired"] = counts.expired;
  out["refused"] = counts.refused;
  out["failed_after_acceptance"] = counts.failed;
  out["lost"] = counts.lost;
  out["interrupted"] = counts.interrupted;
  out["unsent"] = counts.unsent();
  out["good"] = figures.good;
  out["answers"] = figures.answers;
  out["answers_right"] = figures.right;
  out["miscounted"] = figures.miscounted;
  out["total_cached_tokens"] = figures.cached_tokens;
  out["uncompleted_output_tokens"] = figures.other_output_tokens;
  out["input_throughput"] = figures.PerSecond(figures.input_tokens);
  out["max_lateness_ms"] = figures.late_s * 1000;
  out["client_cpu_s"] = stage.client_cpu_s;
  out["client_cpu_share"] = figures.duration_s > 0 ? stage.client_cpu_s / figures.duration_s : 0;
  out["percentiles_exact"] = figures.latencies.itl.exact();
  out["errors_by_code"] = figures.errors;
  out["error_messages"] = figures.error_texts;
  out["finish_reasons"] = figures.finish_reasons;
}

void AddLatencies(const LoadReport& report, const StageFigures& figures, Json* json) {
  for (const auto& [name, samples] : NamedLatencies(figures.latencies)) {
    Json& out = *json;
    out[absl::StrCat("mean_", name, "_ms")] = samples->Mean();
    out[absl::StrCat("median_", name, "_ms")] = samples->Median();
    out[absl::StrCat("std_", name, "_ms")] = samples->Std();
    for (const double percent : report.percentiles) {
      out[absl::StrCat(PercentileName(percent), "_", name, "_ms")] = samples->Percentile(percent);
    }
    out[absl::StrCat("max_", name, "_ms")] = samples->Max();
  }
}

Json DaemonJson(const DaemonFigures& daemon) {
  Json out = {{"pages", daemon.pages},         {"missed_pages", daemon.missed_pages},
              {"restarted", daemon.restarted}, {"counters", daemon.counters},
              {"gauges", Json::object()},      {"histograms", Json::object()}};
  for (const auto& [key, gauge] : daemon.gauges) {
    out["gauges"][key] = {
        {"start", gauge.start}, {"mean", gauge.mean}, {"max", gauge.max}, {"end", gauge.end}};
  }
  for (const auto& [key, histogram] : daemon.histograms) {
    out["histograms"][key] = {{"count", histogram.count},
                              {"sum", histogram.sum},
                              {"mean", histogram.Mean()},
                              {"p50", histogram.p50},
                              {"p99", histogram.p99}};
  }
  return out;
}

// The arrays of the de-facto bench, in the order of sending, and what they lack. Seconds.
void AddDetail(std::vector<RequestRecord> records, Json* json) {
  std::sort(records.begin(), records.end(),
            [](const auto& one, const auto& other) { return one.index < other.index; });
  Json& out = *json;
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
                          "queue_times", "generated_texts", "errors", "outcomes", "cached_lens"}) {
    out[key] = Json::array();
  }
  for (const RequestRecord& record : records) {
    out["input_lens"].push_back(record.prompt_tokens);
    out["output_lens"].push_back(record.TokensSeen());
    out["cached_lens"].push_back(record.cached_tokens);
    out["ttfts"].push_back(
        record.arrivals.empty() ? Json() : Json(record.arrivals[0].at_s - record.intended_s));
    Json gaps = Json::array();
    for (const std::vector<TokenArrival>& arrivals : record.ArrivalsByChoice()) {
      for (size_t i = 1; i < arrivals.size(); ++i) {
        gaps.push_back(arrivals[i].at_s - arrivals[i - 1].at_s);
      }
    }
    out["itls"].push_back(std::move(gaps));
    out["latencies"].push_back(record.end_s - record.sent_s);
    out["start_times"].push_back(record.sent_s);
    out["queue_times"].push_back(record.sent_s - record.intended_s);
    out["generated_texts"].push_back(record.text);
    out["errors"].push_back(
        record.code == 0 ? "" : absl::StrCat(CodeName(record.code), ": ", record.message));
    out["outcomes"].push_back(OutcomeName(OutcomeOf(record)));
  }
}

Json StageJson(const LoadReport& report, const StageReport& stage, bool detailed) {
  Json out;
  out["stage"] = stage.name;
  AddCounts(stage, &out);
  if (report.goodput.any()) {
    out["request_goodput"] = stage.figures.PerSecond(stage.figures.good);
  }
  AddLatencies(report, stage.figures, &out);
  out["num_prompts"] = stage.figures.counts.planned;
  out["request_rate"] = stage.open_loop ? Json(stage.requested_rate) : Json("inf");
  out["offered_rate"] = stage.open_loop ? Json(stage.offered_rate) : Json();
  out["cut_requests"] = stage.cut_requests;
  out["burstiness"] = report.burstiness;
  const uint32_t most = stage.open_loop ? stage.max_in_flight : stage.concurrency;
  out["max_concurrency"] = most > 0 ? Json(most) : Json();
  AddOutcomes(stage, &out);
  out["complete"] = stage.complete;
  out["saturated"] = stage.saturation.saturated;
  out["saturation"] = {{"saturated", stage.saturation.saturated},
                       {"offered_rate", stage.saturation.offered_rate},
                       {"backlog_rate", stage.saturation.backlog_rate},
                       {"why", stage.saturation.why}};
  out["daemon"] = stage.daemon ? DaemonJson(*stage.daemon) : Json();
  if (detailed) AddDetail(stage.records, &out);
  return out;
}

std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + "\"";
}

// Numbers as they are, everything that is not one number left out.
std::vector<std::pair<std::string, std::string>> CsvColumns(const Json& stage) {
  std::vector<std::pair<std::string, std::string>> columns;
  for (const auto& [key, value] : stage.items()) {
    // An object even where a stage has null for it: every line has the same columns.
    if (value.is_array() || value.is_object() || key == "daemon") continue;
    columns.emplace_back(key, value.is_null()     ? ""
                              : value.is_string() ? value.get<std::string>()
                                                  : value.dump());
  }
  return columns;
}

}  // namespace

std::string ReportJsonText(const LoadReport& report) {
  Json out;
  out["date"] = report.date;
  out["backend"] = "augur";
  out["model_id"] = report.model.model();
  out["tokenizer_id"] = report.model.model();
  out["label"] = report.title;
  out["address"] = report.address;
  out["daemon_version"] = report.model.version();
  out["machine"] = report.machine;
  out["command"] = report.command;
  out["arrivals"] = report.arrivals;
  out["burstiness"] = report.burstiness;
  out["workload"] = Json::object();
  for (const auto& [name, value] : report.workload) out["workload"][name] = value;
  out["goodput_limits"] = Json::object();
  const auto limit = [&](const char* name, const std::optional<double>& ms) {
    if (ms) out["goodput_limits"][name] = *ms;
  };
  limit("ttft", report.goodput.ttft_ms);
  limit("tpot", report.goodput.tpot_ms);
  limit("e2el", report.goodput.e2el_ms);
  out["sweep"] = report.sweep ? Json(*report.sweep) : Json();
  Json stages = Json::array();
  for (const StageReport& stage : report.stages) {
    stages.push_back(StageJson(report, stage, report.detailed));
  }
  if (stages.size() == 1) {
    for (const auto& [key, value] : stages[0].items()) out[key] = value;
  }
  out["stages"] = std::move(stages);
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string ReportCsv(const LoadReport& report) {
  std::string text;
  for (const StageReport& stage : report.stages) {
    const auto columns = CsvColumns(StageJson(report, stage, /*detailed=*/false));
    std::string head;
    std::string line;
    for (const auto& [key, value] : columns) {
      absl::StrAppend(&head, head.empty() ? "" : ",", key);
      absl::StrAppend(&line, line.empty() ? "" : ",", CsvField(value));
    }
    if (text.empty()) text = head + "\r\n";
    text += line + "\r\n";
  }
  return text;
}

}  // namespace augur::loadtest
