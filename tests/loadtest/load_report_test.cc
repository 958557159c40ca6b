// What the reports hold: keys, columns, well-formed pages.
#include "loadtest/load_report.h"

#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_split.h"
#include "loadtest/load_options.h"
#include "loadtest/load_page.h"
#include "loadtest/load_session.h"
#include "loadtest/svg_plot.h"
#include "nlohmann/json.hpp"

namespace augur::loadtest {
namespace {

RequestRecord Record(uint32_t index, int code) {
  RequestRecord record;
  record.index = index;
  record.intended_s = index * 0.1;
  record.sent_s = record.intended_s + 0.01;
  record.accepted_s = record.sent_s + 0.01;
  record.arrivals = {{record.sent_s + 0.2, 1}, {record.sent_s + 0.3, 1}};
  record.end_s = record.sent_s + 0.31;
  record.finish_reason = "length";
  record.code = code;
  record.message = code == 0 ? "" : "it's <broken> & \"odd\"\x01";
  record.prompt_tokens = 12;
  if (code == 0) record.ends = {{0, 2, ServerTimings{1, 150, 190, 100, 100, 300}}};
  record.text = "two\n\"words\"";
  return record;
}

StageReport Stage(const std::string& name, uint32_t concurrency) {
  FigureCollector collector({}, 4, true);
  for (uint32_t i = 0; i < 3; ++i) collector.Add(Record(i, i == 1 ? 13 : 0));
  StageReport stage;
  stage.name = name;
  stage.concurrency = concurrency;
  stage.figures = collector.Finish(2);
  stage.records = collector.TakeRecords();
  stage.complete = true;
  stage.client_cpu_s = 0.1;
  return stage;
}

LoadReport Report(int stages) {
  LoadReport report;
  report.title = "A <title> & more";
  report.date = "2026-01-02T03:04:05Z";
  report.command = "augur-load --stop '</pre>'";
  report.model.set_model("m");
  report.arrivals = "closed";
  report.workload = {{"prompts", "random"}};
  for (int i = 0; i < stages; ++i) {
    report.stages.push_back(Stage("batch " + std::to_string(1 << i), 1U << i));
  }
  PageSummary summary;
  summary.Add(
      *ParsePrometheusText("augur_steps_total 3\naugur_transfer_bytes_total{kind=\"x\"} 0"));
  summary.Add(
      *ParsePrometheusText("augur_steps_total 9\naugur_transfer_bytes_total{kind=\"x\"} 4096"));
  report.stages[0].daemon = summary.Finish();
  report.stages.back().saturation.saturated = true;
  report.stages.back().saturation.why = "it is full";
  return report;
}

nlohmann::json JsonOf(const LoadReport& report) {
  return nlohmann::json::parse(ReportJsonText(report), nullptr, false);
}

// As vllm/benchmarks/serve.py writes them.
const std::vector<std::string>& BenchKeys() {
  static const auto* keys = new std::vector<std::string>{"duration",
                                                         "completed",
                                                         "failed",
                                                         "total_input_tokens",
                                                         "total_output_tokens",
                                                         "request_throughput",
                                                         "request_goodput",
                                                         "output_throughput",
                                                         "total_token_throughput",
                                                         "max_output_tokens_per_s",
                                                         "max_concurrent_requests",
                                                         "date",
                                                         "backend",
                                                         "model_id",
                                                         "tokenizer_id",
                                                         "num_prompts",
                                                         "request_rate",
                                                         "burstiness",
                                                         "max_concurrency"};
  return *keys;
}

TEST(ReportJson, HasTheKeysOfTheDeFactoBench) {
  const nlohmann::json json = JsonOf(Report(1));
  for (const std::string& key : BenchKeys()) EXPECT_TRUE(json.contains(key)) << key;
  for (const char* name :
       {"ttft", "tpot", "itl", "e2el", "client_queue_time", "e2el_including_client_queue"}) {
    for (const char* kind : {"mean_", "median_", "std_", "p90_", "p99_"}) {
      EXPECT_TRUE(json[std::string(kind) + name + "_ms"].is_number()) << kind << name;
    }
  }
  EXPECT_EQ(json["completed"], 2);
  EXPECT_EQ(json["failed"], 1);
  EXPECT_EQ(json["num_prompts"], 4);
  EXPECT_EQ(json["unsent"], 1);
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_TRUE(json["request_goodput"].is_null());
  EXPECT_EQ(json["daemon"]["counters"]["augur_steps_total"], 6);
  EXPECT_EQ(json["errors_by_code"]["failed INTERNAL"], 1);
  EXPECT_NEAR(json["mean_ttft_ms"].get<double>(), 210, 1e-6);
  EXPECT_NEAR(json["mean_client_queue_time_ms"].get<double>(), 10, 1e-6);
  EXPECT_FALSE(json.contains("ttfts"));
  EXPECT_EQ(json["stages"].size(), 1u);
}

TEST(ReportJson, HoldsEveryRequestWhereThatIsWanted) {
  LoadReport report = Report(2);
  report.detailed = true;
  const nlohmann::json json = JsonOf(report);
  EXPECT_FALSE(json.contains("completed"));  // two stages: which one's?
  ASSERT_EQ(json["stages"].size(), 2u);
  const nlohmann::json& stage = json["stages"][1];
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
                          "queue_times", "generated_texts", "errors"}) {
    EXPECT_EQ(stage[key].size(), 3u) << key;
  }
  EXPECT_EQ(stage["generated_texts"][0], "two\n\"words\"");
  EXPECT_EQ(stage["outcomes"][1], "failed");
  EXPECT_NEAR(stage["itls"][2][0].get<double>(), 0.1, 1e-9);
}

TEST(ReportCsv, HasALineForEachStageUnderOneHead) {
  const std::vector<std::string> lines = absl::StrSplit(ReportCsv(Report(3)), "\r\n");
  ASSERT_EQ(lines.size(), 5u);  // the last one is empty
  const std::vector<std::string> head = absl::StrSplit(lines[0], ',');
  EXPECT_EQ(head[0], "stage");
  EXPECT_EQ(std::set<std::string>(head.begin(), head.end()).size(), head.size());
  for (size_t i = 1; i <= 3; ++i) {
    const std::vector<std::string> cells = absl::StrSplit(lines[i], ',');
    EXPECT_EQ(cells.size(), head.size());
    EXPECT_EQ(cells[0], "batch " + std::to_string(1 << (i - 1)));
    EXPECT_EQ(
        cells[static_cast<size_t>(std::find(head.begin(), head.end(), "completed") - head.begin())],
        "2");
  }
  LoadReport odd = Report(1);
  odd.stages[0].name = "a,\"b\"";
  EXPECT_NE(ReportCsv(odd).find("\r\n\"a,\"\"b\"\"\","), std::string::npos);
}

// Every tag is closed by its own, no bare & or <; text that is not XML fails.
void ExpectWellFormed(const std::string& page) {
  std::vector<std::string> open;
  for (size_t at = 0; at < page.size(); ++at) {
    if (page[at] == '&') {
      const std::string entity = page.substr(at, page.find(';', at) - at + 1);
      EXPECT_TRUE(entity == "&amp;" || entity == "&lt;" || entity == "&gt;" || entity == "&quot;")
          << entity;
    }
    EXPECT_TRUE(page[at] == '\n' || static_cast<unsigned char>(page[at]) >= 0x20);
    if (page[at] != '<') continue;
    const size_t end = page.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = page.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    if (tag[0] == '!' || tag.back() == '/') continue;
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty()) << tag;
      EXPECT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST(ReportPage, IsWellFormedAndNeedsNothingFromOutside) {
  for (const int stages : {1, 7}) {
    const LoadReport report = Report(stages);
    const std::string html = ReportHtml(report);
    ExpectWellFormed(html);
    ExpectWellFormed(ReportSvg(report));
    for (const char* outside : {"<script", "<link", "<img", "src=", "url(", "@import", "https:"}) {
      EXPECT_EQ(html.find(outside), std::string::npos) << outside;
    }
    // The one address there is names SVG.
    EXPECT_EQ(html.find("http:"), html.find("http://www.w3.org/2000/svg"));
    EXPECT_NE(html.find("A &lt;title&gt; &amp; more"), std::string::npos);
    EXPECT_NE(html.find("it's &lt;broken&gt; &amp; &quot;odd&quot; "), std::string::npos);
    EXPECT_NE(html.find("it is full"), std::string::npos);
    EXPECT_NE(html.find("Copies between host and device"), std::string::npos);
  }
}

TEST(ReportTables, HoldsErrorsAndVerdicts) {
  const std::string text = ReportTables(Report(2));
  for (const char* part : {"batch 1", "batch 2 *", "failed INTERNAL", "over-saturated: it is full",
                           "What the daemon exported meanwhile", "4.0 KiB"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
}

TEST(SvgPlot, Ticks) {
  EXPECT_EQ(LinearTicks(0, 9, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(LinearTicks(0, 100, 5), (std::vector<double>{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(LogTicks(3, 60), (std::vector<double>{5, 10, 20, 50}));
  EXPECT_EQ(LogTicks(1, 10'000).size(), 5u);
  EXPECT_EQ(TickText(12'000), "12k");
  EXPECT_EQ(TickText(0.25), "0.25");
}

LoadFlags Flags(const std::vector<std::string>& arguments) {
  CLI::App app;
  LoadFlags flags;
  AddLoadFlags(&app, &flags);
  app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  return flags;
}

TEST(ResolveFlags, MakesStagesOfWhatIsAsked) {
  const auto closed = ResolveFlags(Flags({"--concurrency", "1,8"}), "salt");
  ASSERT_TRUE(closed.ok()) << closed.status();
  const std::vector<StagePlan> plans = PlanStages(*closed);
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[0].requests.size(), 16u);
  EXPECT_EQ(plans[1].requests.size(), 32u);
  EXPECT_EQ(plans[1].name, "batch 8");
  EXPECT_TRUE(closed->defaults.ignore_eos);
  EXPECT_EQ(closed->defaults.salt, "salt");

  const auto open = ResolveFlags(Flags({"--rate", "5,50", "--duration", "4", "--arrivals", "gamma",
                                        "--burstiness", "0.5", "--max-concurrency", "3"}),
                                 "salt");
  ASSERT_TRUE(open.ok()) << open.status();
  const std::vector<StagePlan> rates = PlanStages(*open);
  ASSERT_EQ(rates.size(), 2u);
  EXPECT_LT(rates[1].requests.back().at_s, 4);
  EXPECT_NEAR(static_cast<double>(rates[1].requests.size()), 200, 80);
  EXPECT_EQ(rates[1].max_in_flight, 3u);
  EXPECT_EQ(PlanStages(*ResolveFlags(Flags({"--sweep", "rate"}), "salt")).size(), 0u);
}

// NaN is in no range.
TEST(ResolveFlags, TakesNumbersAlone) {
  for (const char* flag : {"--rate", "--drain-limit", "--ramp-up", "--percentiles", "--temperature",
                           "--metrics-interval", "--cancel-share"}) {
    for (const char* value : {"nan", "-nan", "inf", "-1e9", "x", ""}) {
      EXPECT_THROW(Flags({flag, value}), CLI::ParseError) << flag << " " << value;
    }
  }
  EXPECT_EQ(Flags({"--rate", "2.5"}).rates, (std::vector<double>{2.5}));
}

TEST(ResolveFlags, NamesWhatIsWrong) {
  const struct {
    std::vector<std::string> arguments;
    const char* flag;
  } kCases[] = {
      {{"--prompts", "poems"}, "--prompts: "},
      {{"--prompts", "prose"}, "--prompts: "},
      {{"--prompts", "file"}, "--prompts: "},
      {{"--arrivals", "never"}, "--arrivals: "},
      {{"--arrivals", "trace"}, "--arrivals: "},
      {{"--trace", "/nowhere/at/all"}, "--trace: "},
      {{"--ramp", "up", "--rate", "1"}, "--ramp: "},
      {{"--ramp", "linear", "--rate", "1", "--requests", "5"}, "--ramp: "},
      {{"--sweep", "all"}, "--sweep: "},
      {{"--sweep", "rate", "--rate", "3"}, "--concurrency, --rate"},
      {{"--input-len", "long"}, "--input-len: "},
      {{"--output-len", "uniform:3"}, "--output-len: "},
      {{"--goodput", "speed:3"}, "--goodput: "},
      {{"--attention", "lazy"}, "--attention: "},
      {{"--priorities", "high"}, "--priorities: "},
      {{"--choices", "65"}, "--choices: "},
      {{"--ignore-eos", "perhaps"}, "--ignore-eos: "},
      {{"--task", "poems"}, "--task: "},
      {{"--cache-salt", std::string(33, 'x')}, "--cache-salt: "},
      {{"--prompts", "needle", "--text", "x", "--shared-prefix", "0.5"}, "--shared-prefix: "}};
  for (const auto& one : kCases) {
    const absl::Status status = ResolveFlags(Flags(one.arguments), "salt").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << one.flag;
    EXPECT_EQ(status.message().find(one.flag), 0u) << status;
  }
}

}  // namespace
}  // namespace augur::loadtest
