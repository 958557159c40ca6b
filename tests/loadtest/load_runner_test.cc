// Every figure that augur-load reports, against servers with known delays.
//
// The scenarios mostly wait, so all of them run at the same time, once; the tests look at what came
// out. Delays are most of a second and more, so that 2 % of them is far above what a busy machine
// of two cores adds; a first round of requests that is not looked at has threads and connections
// made. It takes nine seconds, nearly all of it waiting.
#include "loadtest/load_runner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <future>

#include "loadtest/load_report.h"
#include "nlohmann/json.hpp"
#include "tests/loadtest/fake_completions.h"

namespace augur::tests {
namespace {

using loadtest::LoadReport;
using loadtest::PlannedRequest;
using loadtest::RunnerOptions;
using loadtest::StagePlan;
using loadtest::StageReport;
using loadtest::StageResult;
using nlohmann::json;

constexpr double kWithin = 0.02;
constexpr uint32_t kPromptTokens = 7;
// All delays are in this unit, seconds: below, 0.6 is 1.8 s.
constexpr double kUnit = 3;
constexpr double kMs = 1000 * kUnit;

class FixedSource : public loadtest::RequestSource {
 public:
  v1::CompleteRequest Make(const StagePlan& stage, const PlannedRequest& planned) const override {
    v1::CompleteRequest request;
    request.set_request_id("load-" + std::to_string(stage.number) + "-" +
                           std::to_string(planned.index));
    request.mutable_sampling()->set_n(planned.choices);
    for (uint32_t i = 0; i < kPromptTokens; ++i) request.mutable_token_ids()->add_ids(i);
    return request;
  }
  const std::vector<std::string>* Answers(const PlannedRequest& planned) const override {
    return planned.prompt.item == 0 ? nullptr : &answer_;
  }

 private:
  const std::vector<std::string> answer_ = {"right"};
};

struct Scenario {
  FakeScript script;
  StagePlan plan;
  RunnerOptions options;
};

struct Ended {
  StageResult result;
  json figures;  // as in the JSON report, with goodput and percentiles 50, 90, 99
};

StagePlan ClosedPlan(uint32_t concurrency, uint32_t requests, uint32_t number = 0) {
  return loadtest::PlanClosedStage({}, concurrency, requests, 0, 0, 1, number);
}

Ended RunScenario(Scenario scenario) {
  FakeScript* script = &scenario.script;
  for (double* delay : {&script->accept_s, &script->first_token_s, &script->gap_s,
                        &script->choice_lag_s, &script->stall_from_s, &script->stall_to_s}) {
    *delay *= kUnit;
  }
  const FakeCompletions server(*script);
  scenario.options.address = server.address();
  loadtest::LoadRunner runner(scenario.options);
  EXPECT_TRUE(runner.Connect(20).ok());
  runner.Run(ClosedPlan(8, 24, FakeCompletions::kWarmUpStage), FixedSource());
  Ended ended;
  ended.result = runner.Run(scenario.plan, FixedSource());
  LoadReport report;
  report.goodput = scenario.options.goodput;
  report.percentiles = {50, 90, 99};
  StageReport stage;
  stage.open_loop = scenario.plan.open_loop;
  stage.figures = ended.result.figures;
  report.stages.push_back(stage);
  ended.figures = json::parse(loadtest::ReportJsonText(report), nullptr, false);
  return ended;
}

StagePlan ConstantPlan(double rate, int64_t requests, uint32_t max_in_flight) {
  loadtest::ArrivalSpec arrivals;
  arrivals.kind = loadtest::ArrivalKind::kConstant;
  arrivals.rate = rate / kUnit;
  arrivals.requests = requests;
  return loadtest::PlanOpenStage({}, arrivals, max_in_flight, 1, 0);
}

v1::Timings ToldTimings() {
  v1::Timings timings;
  timings.set_queue_ms(30);
  timings.set_prefill_ms(400);
  timings.set_first_token_ms(430);
  timings.set_decode_ms(900);
  timings.set_mean_inter_token_ms(225);
  timings.set_total_ms(1330);
  return timings;
}

// Two rounds of four.
Scenario Steady() {
  Scenario steady;
  steady.script = {
      .accept_s = 0.25, .first_token_s = 0.6, .gap_s = 0.3, .chunks = 4, .tokens_per_chunk = 2};
  steady.script.timings = ToldTimings();
  steady.plan = ClosedPlan(4, 8);
  // The completions are "xxxx": asked for "right" they are wrong.
  steady.plan.requests[3].prompt.item = 1;
  steady.options.goodput.ttft_ms = 0.7 * kMs;
  return steady;
}

// Nothing comes from 0.775 s to 1.775 s: between the moments that requests are due at, so that no
// jitter moves one over an edge.
FakeScript StallScript() {
  return {
      .first_token_s = 0.2, .gap_s = 0.1, .chunks = 2, .stall_from_s = 0.775, .stall_to_s = 1.775};
}

Scenario Stalled() {
  Scenario stalled;
  stalled.script = StallScript();
  stalled.plan = ConstantPlan(20, 50, 0);
  stalled.options.goodput.ttft_ms = 0.4 * kMs;
  return stalled;
}

Scenario StalledBehindAQueue() {
  Scenario stalled = Stalled();
  stalled.plan = ConstantPlan(10, 25, 4);
  return stalled;
}

// Two at a time, of five.
Scenario SlowAcceptance() {
  Scenario slow;
  slow.script = {.accept_s = 0.1, .first_token_s = 0.4, .gap_s = 0.2, .chunks = 2, .slots = 2};
  slow.plan = ClosedPlan(5, 5);
  return slow;
}

// Two choices, the second's tokens between the first's.
Scenario Choices() {
  Scenario choices;
  choices.script = {.first_token_s = 0.4, .gap_s = 0.3, .chunks = 3, .choice_lag_s = 0.1};
  choices.script.timings = ToldTimings();
  choices.plan = ClosedPlan(3, 3);
  for (PlannedRequest& request : choices.plan.requests) request.choices = 2;
  return choices;
}

Scenario Faults() {
  Scenario faults;
  faults.script = {.first_token_s = 0.2, .gap_s = 0.1, .chunks = 3, .text = "right"};
  using Kind = FakeFate::Kind;
  faults.script.fates = {{0, {Kind::kRefused, grpc::StatusCode::RESOURCE_EXHAUSTED, 0}},
                         {3, {Kind::kRefused, grpc::StatusCode::RESOURCE_EXHAUSTED, 0}},
                         {4, {Kind::kFails, grpc::StatusCode::INTERNAL, 2}},
                         {5, {Kind::kNoFinish, grpc::StatusCode::OK, 1}},
                         {6, {Kind::kFails, grpc::StatusCode::UNAVAILABLE, 1}},
                         {7, {Kind::kNeverEnds, grpc::StatusCode::OK, 2}}};
  faults.plan = ClosedPlan(6, 14);
  faults.plan.requests[8].cancel_after_s = 0.05 * kUnit;
  faults.plan.requests[9].deadline_s = 0.25 * kUnit;  // after the first token
  faults.plan.requests[10].cancel_after_s = 60;       // it is over long before
  faults.plan.requests[11].deadline_s = 60;
  faults.plan.requests[12].read_pause_s = 0.2 * kUnit;
  faults.options.drain_limit_s = 1.5 * kUnit;
  faults.options.keep_records = true;
  return faults;
}

class LoadRunnerTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::vector<std::future<Ended>> futures;
    for (auto* make : {Steady, Stalled, StalledBehindAQueue, SlowAcceptance, Faults, Choices}) {
      futures.push_back(std::async(std::launch::async, RunScenario, make()));
    }
    ended_ = new std::vector<Ended>();
    for (auto& future : futures) ended_->push_back(future.get());
  }
  static void TearDownTestSuite() { delete ended_; }

  static const Ended& steady() { return (*ended_)[0]; }
  static const Ended& stalled() { return (*ended_)[1]; }
  static const Ended& queued() { return (*ended_)[2]; }
  static const Ended& slow() { return (*ended_)[3]; }
  static const Ended& faults() { return (*ended_)[4]; }
  static const Ended& choices() { return (*ended_)[5]; }

  static std::vector<Ended>* ended_;
};
std::vector<Ended>* LoadRunnerTest::ended_ = nullptr;

void ExpectFigure(const Ended& ended, const std::string& key, double expected) {
  ASSERT_TRUE(ended.figures[key].is_number()) << key;
  EXPECT_NEAR(ended.figures[key].get<double>(), expected, kWithin * expected) << key;
}

// All figures of a latency from the values that it should have had, as numpy makes them.
void ExpectLatencies(const Ended& ended, const std::string& name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  double mean = 0;
  for (const double value : values) mean += value / static_cast<double>(values.size());
  double variance = 0;
  for (const double value : values) {
    variance += (value - mean) * (value - mean) / static_cast<double>(values.size());
  }
  const auto percentile = [&](double percent) {
    const double at = percent / 100 * static_cast<double>(values.size() - 1);
    const auto low = static_cast<size_t>(at);
    const size_t high = std::min(low + 1, values.size() - 1);
    return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
  };
  ExpectFigure(ended, "mean_" + name + "_ms", mean);
  ExpectFigure(ended, "median_" + name + "_ms", percentile(50));
  for (const int percent : {50, 90, 99}) {
    ExpectFigure(ended, "p" + std::to_string(percent) + "_" + name + "_ms", percentile(percent));
  }
  // A spread of 0 has no 2 %: then it is small beside the mean.
  EXPECT_NEAR(ended.figures["std_" + name + "_ms"].get<double>(), std::sqrt(variance),
              kWithin * std::max(std::sqrt(variance), mean));
}

TEST_F(LoadRunnerTest, SteadyLatencies) {
  ExpectLatencies(steady(), "acceptance", std::vector<double>(8, 0.25 * kMs));
  ExpectLatencies(steady(), "ttft", std::vector<double>(8, 0.6 * kMs));
  ExpectLatencies(steady(), "ttft_from_send", std::vector<double>(8, 0.6 * kMs));
  // Two tokens a message: a gap of 0.3 is two of 0.15.
  ExpectLatencies(steady(), "itl", std::vector<double>(48, 0.15 * kMs));
  EXPECT_EQ(steady().result.figures.latencies.itl.count(), 48u);
  ExpectLatencies(steady(), "tpot", std::vector<double>(8, 0.9 / 7 * kMs));
  ExpectLatencies(steady(), "e2el", std::vector<double>(8, 1.5 * kMs));
  ExpectLatencies(steady(), "e2el_including_client_queue", std::vector<double>(8, 1.5 * kMs));
  EXPECT_EQ(steady().figures["max_client_queue_time_ms"], 0);
}

TEST_F(LoadRunnerTest, SteadyThroughput) {
  ExpectFigure(steady(), "duration", 3 * kUnit);
  ExpectFigure(steady(), "request_throughput", 8 / (3 * kUnit));
  ExpectFigure(steady(), "request_goodput", 8 / (3 * kUnit));
  ExpectFigure(steady(), "output_throughput", 64 / (3 * kUnit));
  ExpectFigure(steady(), "input_throughput", 8 * kPromptTokens / (3 * kUnit));
  ExpectFigure(steady(), "total_token_throughput", (64 + 8 * kPromptTokens) / (3 * kUnit));
  EXPECT_EQ(steady().figures["completed"], 8);
  EXPECT_EQ(steady().figures["failed"], 0);
  EXPECT_EQ(steady().figures["total_output_tokens"], 64);
  EXPECT_EQ(steady().figures["total_input_tokens"], 8 * kPromptTokens);
  EXPECT_EQ(steady().figures["max_concurrent_requests"], 4);
  // Four streams, two tokens a message, no two messages of a stream in one second.
  EXPECT_EQ(steady().figures["max_output_tokens_per_s"], 8);
  EXPECT_EQ(steady().figures["miscounted"], 0);
  EXPECT_EQ(steady().figures["answers"], 1);
  EXPECT_EQ(steady().figures["answers_right"], 0);
}

TEST_F(LoadRunnerTest, SteadyServerTimesStandBesideTheClients) {
  ExpectFigure(steady(), "mean_server_queue_ms", 30);
  ExpectFigure(steady(), "mean_server_prefill_ms", 400);
  ExpectFigure(steady(), "median_server_ttft_ms", 430);
  ExpectFigure(steady(), "mean_server_decode_ms", 900);
  ExpectFigure(steady(), "mean_server_itl_ms", 225);
  ExpectFigure(steady(), "p99_server_total_ms", 1330);
  // 2 % of what the difference is made of.
  EXPECT_NEAR(steady().figures["mean_ttft_beyond_server_ms"], 0.6 * kMs - 430, kWithin * 0.6 * kMs);
  EXPECT_NEAR(steady().figures["mean_e2el_beyond_server_ms"], 1.5 * kMs - 1330,
              kWithin * 1.5 * kMs);
}

double AfterStall(double at) {
  const FakeScript script = StallScript();
  return at >= script.stall_from_s && at < script.stall_to_s ? script.stall_to_s : at;
}

// What the requests of a plan should see of StallScript, at most `slots` at a time.
struct Expected {
  std::vector<double> ttft;
  std::vector<double> ttft_from_send;
  std::vector<double> e2el;
  std::vector<double> e2el_with_queue;
  std::vector<double> queue;
  int good = 0;
};

Expected Simulate(const StagePlan& plan, size_t slots) {
  Expected expected;
  std::vector<double> free(slots, 0.0);
  for (const PlannedRequest& request : plan.requests) {
    const auto slot = std::min_element(free.begin(), free.end());
    const double at = request.at_s / kUnit;
    const double sent = std::max(at, *slot);
    const double first = AfterStall(sent + 0.2);
    const double end = std::max(first, AfterStall(sent + 0.3));
    *slot = end;
    expected.ttft.push_back((first - at) * kMs);
    expected.ttft_from_send.push_back((first - sent) * kMs);
    expected.e2el.push_back((end - sent) * kMs);
    expected.e2el_with_queue.push_back((end - at) * kMs);
    expected.queue.push_back((sent - at) * kMs);
    if (first - at <= 0.4) ++expected.good;
  }
  return expected;
}

TEST_F(LoadRunnerTest, AnOpenLoopShowsAStall) {
  const Expected expected = Simulate(Stalled().plan, 50);
  ExpectLatencies(stalled(), "ttft", expected.ttft);
  ExpectLatencies(stalled(), "e2el", expected.e2el);
  ExpectLatencies(stalled(), "e2el_including_client_queue", expected.e2el_with_queue);
  EXPECT_EQ(stalled().figures["completed"], 50);
  EXPECT_GT(stalled().figures["max_concurrent_requests"], 20);
  EXPECT_NEAR(stalled().figures["good"].get<int>(), expected.good, 1);
}

// With few under way the client itself stops asking while the server stalls. Times from the moment
// of sending would not show that; times from the intended one do.
TEST_F(LoadRunnerTest, AQueueInTheClientDoesNotHideIt) {
  const Expected expected = Simulate(StalledBehindAQueue().plan, 4);
  ExpectLatencies(queued(), "ttft", expected.ttft);
  ExpectLatencies(queued(), "ttft_from_send", expected.ttft_from_send);
  ExpectLatencies(queued(), "e2el", expected.e2el);
  ExpectLatencies(queued(), "e2el_including_client_queue", expected.e2el_with_queue);
  ExpectFigure(queued(), "p90_client_queue_time_ms", [&] {
    std::vector<double> sorted = expected.queue;
    std::sort(sorted.begin(), sorted.end());
    const double at = 0.9 * static_cast<double>(sorted.size() - 1);
    const auto low = static_cast<size_t>(at);
    return sorted[low] + (sorted[low + 1] - sorted[low]) * (at - std::floor(at));
  }());
  ExpectFigure(queued(), "max_lateness_ms",
               *std::max_element(expected.queue.begin(), expected.queue.end()));
  EXPECT_EQ(queued().figures["max_concurrent_requests"], 4);
  EXPECT_EQ(queued().figures["completed"], 25);
  EXPECT_NEAR(queued().figures["good"].get<int>(), expected.good, 1);
  // The plant that this is against: the two differ by far more than 2 %.
  EXPECT_GT(queued().figures["mean_ttft_ms"].get<double>(),
            1.3 * queued().figures["mean_ttft_from_send_ms"].get<double>());
}

TEST_F(LoadRunnerTest, WaitingForAcceptanceCounts) {
  // Served for 0.6 s each: two, two more, one more.
  ExpectLatencies(slow(), "acceptance", {0.1 * kMs, 0.1 * kMs, 0.7 * kMs, 0.7 * kMs, 1.3 * kMs});
  ExpectLatencies(slow(), "ttft", {0.4 * kMs, 0.4 * kMs, kMs, kMs, 1.6 * kMs});
  ExpectLatencies(slow(), "e2el", {0.6 * kMs, 0.6 * kMs, 1.2 * kMs, 1.2 * kMs, 1.8 * kMs});
  ExpectFigure(slow(), "request_throughput", 5 / (1.8 * kUnit));
}

TEST_F(LoadRunnerTest, ChoicesHaveGapsOfTheirOwn) {
  ExpectLatencies(choices(), "ttft", std::vector<double>(3, 0.4 * kMs));
  ExpectLatencies(choices(), "itl", std::vector<double>(12, 0.3 * kMs));
  ExpectLatencies(choices(), "tpot", std::vector<double>(6, 0.3 * kMs));
  ExpectLatencies(choices(), "e2el", std::vector<double>(3, 1.1 * kMs));
  ExpectFigure(choices(), "output_throughput", 18 / (1.1 * kUnit));
  EXPECT_EQ(choices().figures["total_input_tokens"], 3 * kPromptTokens);
  EXPECT_EQ(choices().figures["completed"], 3);
  EXPECT_EQ(choices().figures["miscounted"], 0);
  EXPECT_EQ(choices().result.figures.latencies.server_total.count(), 6u);
  EXPECT_NEAR(choices().figures["mean_e2el_beyond_server_ms"], 1.1 * kMs - 1330,
              kWithin * 1.1 * kMs);
}

TEST_F(LoadRunnerTest, EveryStreamIsCountedOnce) {
  const json& figures = faults().figures;
  EXPECT_EQ(figures["planned"], 14);
  EXPECT_EQ(figures["sent"], 14);
  EXPECT_EQ(figures["completed"], 6);  // 1, 2, 10, 11, 12, 13
  EXPECT_EQ(figures["refused"], 2);
  EXPECT_EQ(figures["failed_after_acceptance"], 1);
  EXPECT_EQ(figures["lost"], 3);
  EXPECT_EQ(figures["cancelled"], 1);
  EXPECT_EQ(figures["expired"], 1);
  EXPECT_EQ(figures["interrupted"], 0);
  EXPECT_EQ(figures["unsent"], 0);
  EXPECT_EQ(figures["failed"], 6);
  const json errors = {{"refused RESOURCE_EXHAUSTED", 2},
                       {"failed INTERNAL", 1},
                       {"lost OK", 1},
                       {"lost UNAVAILABLE", 1},
                       {"lost CANCELLED", 1}};
  EXPECT_EQ(figures["errors_by_code"], errors);
  EXPECT_EQ(figures["error_messages"]["failed INTERNAL"], "failed as told");
  EXPECT_EQ(figures["total_output_tokens"], 6 * 3);
  // 2 of the failed one, 1 + 1 + 2 of the lost ones, 1 before the deadline.
  EXPECT_EQ(figures["uncompleted_output_tokens"], 7);
  EXPECT_EQ(figures["finish_reasons"], (json{{"length", 6}}));
  EXPECT_TRUE(faults().result.complete);
}

TEST_F(LoadRunnerTest, LatenciesAreOfCompletedStreamsThatWereReadAtOnce) {
  EXPECT_EQ(faults().result.figures.latencies.e2el.count(), 5u);
  EXPECT_EQ(faults().result.figures.latencies.client_queue_time.count(), 14u);
  ExpectLatencies(faults(), "ttft", std::vector<double>(5, 0.2 * kMs));
  // Never ended: given up 1.5 s after the last send, and not before.
  const auto& records = faults().result.records;
  ASSERT_EQ(records.size(), 14u);
  double last_sent = 0;
  for (const auto& record : records) last_sent = std::max(last_sent, record.sent_s);
  for (const auto& record : records) {
    if (record.index == 7) {
      EXPECT_NEAR(record.end_s - last_sent, 1.5 * kUnit, 0.1);
    }
    if (record.index == 12) {
      EXPECT_GE(record.end_s - record.sent_s, 0.8 * kUnit);  // four pauses
    }
    if (record.index == 8) {
      EXPECT_NEAR(record.end_s - record.sent_s, 0.05 * kUnit, 0.05);
    }
  }
}

TEST_F(LoadRunnerTest, AnInterruptEndsAStageAndCountsWhatItEnded) {
  FakeScript script;
  script.fates = {{0, {FakeFate::Kind::kNeverEnds, grpc::StatusCode::OK, 1}},
                  {1, {FakeFate::Kind::kNeverEnds, grpc::StatusCode::OK, 1}}};
  const FakeCompletions server(script);
  RunnerOptions options;
  options.address = server.address();
  loadtest::LoadRunner runner(options);
  ASSERT_TRUE(runner.Connect(20).ok());
  auto running =
      std::async(std::launch::async, [&] { return runner.Run(ClosedPlan(2, 5), FixedSource()); });
  while (runner.progress().sent < 2) std::this_thread::yield();
  runner.Cancel();
  const StageResult result = running.get();
  EXPECT_FALSE(result.complete);
  EXPECT_EQ(result.figures.counts.interrupted, 2u);
  EXPECT_EQ(result.figures.counts.unsent(), 3u);
  EXPECT_EQ(runner.Run(ClosedPlan(1, 1), FixedSource()).figures.counts.sent, 0u);
}

TEST_F(LoadRunnerTest, NobodyThereIsSaidWithItsAddress) {
  RunnerOptions options;
  options.address = "127.0.0.1:1";
  loadtest::LoadRunner runner(options);
  const absl::Status status = runner.Connect(0.2);
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_NE(std::string(status.message()).find("127.0.0.1:1"), std::string::npos);
}

}  // namespace
}  // namespace augur::tests
