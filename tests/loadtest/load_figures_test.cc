// Percentiles, goodput, outcomes and over-saturation on made-up records.
#include "loadtest/load_figures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "loadtest/daemon_watch.h"
#include "loadtest/latency_samples.h"
#include "loadtest/random_variates.h"
#include "loadtest/saturation.h"

namespace augur::loadtest {
namespace {

TEST(LatencySamples, AreExactAsNumpyIs) {
  LatencySamples samples;
  for (const double value : {4.0, 1.0, 3.0, 2.0}) samples.Add(value);
  EXPECT_EQ(samples.Median(), 2.5);
  EXPECT_EQ(samples.Percentile(0), 1);
  EXPECT_EQ(samples.Percentile(100), 4);
  EXPECT_NEAR(samples.Percentile(90), 3.7, 1e-12);
  EXPECT_EQ(samples.Mean(), 2.5);
  EXPECT_NEAR(samples.Std(), std::sqrt(1.25), 1e-12);
  samples.Add(10, 4);
  EXPECT_EQ(samples.count(), 8u);
  EXPECT_EQ(samples.Percentile(50), 7);
  EXPECT_EQ(samples.Mean(), 6.25);
  EXPECT_EQ(LatencySamples().Percentile(99), 0);
}

// Far more than are kept, over six decades.
TEST(LatencySamples, StayWithinHalfAPercentWhenThereAreMany) {
  LatencySamples samples;
  std::vector<double> values;
  SeededDraw draw(1);
  for (int i = 0; i < 300'000; ++i) {
    values.push_back(std::exp(2.5 * DrawNormal(&draw)) * 20);
    samples.Add(values.back());
  }
  EXPECT_FALSE(samples.exact());
  std::sort(values.begin(), values.end());
  for (const double percent : {0.1, 1.0, 25.0, 50.0, 90.0, 99.0, 99.9}) {
    const double exact = values[static_cast<size_t>(percent / 100 * 299'999)];
    EXPECT_NEAR(samples.Percentile(percent), exact, 0.0051 * exact) << percent;
  }
  EXPECT_EQ(samples.Percentile(100), values.back());
  EXPECT_EQ(samples.Min(), values.front());
  double sum = 0;
  for (const double value : values) sum += value;
  EXPECT_NEAR(samples.Mean(), sum / 300'000, 1e-6 * samples.Mean());
}

// Sent at 1 s, meant for 0.9 s; tokens at 1.2, 1.3, 1.6 (two); done at 1.7.
RequestRecord Good() {
  RequestRecord record;
  record.intended_s = 0.9;
  record.sent_s = 1;
  record.accepted_s = 1.05;
  record.arrivals = {{1.2, 1}, {1.3, 1}, {1.6, 2}};
  record.end_s = 1.7;
  record.finish_reason = "length";
  record.prompt_tokens = 100;
  record.cached_tokens = 64;
  record.ends = {{.completion_tokens = 4}};
  return record;
}

StageFigures FiguresOf(const std::vector<RequestRecord>& records, GoodputLimits limits = {}) {
  FigureCollector collector(limits, records.size(), false);
  for (const RequestRecord& record : records) collector.Add(record);
  return collector.Finish(1);
}

TEST(FigureCollector, OneRequestByHand) {
  const StageFigures figures = FiguresOf({Good()});
  const StageLatencies& all = figures.latencies;
  EXPECT_NEAR(all.ttft.Mean(), 300, 1e-9);
  EXPECT_NEAR(all.ttft_from_send.Mean(), 200, 1e-9);
  EXPECT_NEAR(all.client_queue_time.Mean(), 100, 1e-9);
  EXPECT_NEAR(all.acceptance.Mean(), 50, 1e-9);
  EXPECT_NEAR(all.e2el.Mean(), 700, 1e-9);
  EXPECT_NEAR(all.e2el_with_queue.Mean(), 800, 1e-9);
  EXPECT_EQ(all.itl.count(), 3u);  // 100, then 300 for two tokens
  EXPECT_NEAR(all.itl.Max(), 150, 1e-9);
  EXPECT_NEAR(all.itl.Mean(), 400.0 / 3, 1e-9);
  EXPECT_NEAR(all.tpot.Mean(), 400.0 / 3, 1e-9);
  EXPECT_NEAR(figures.duration_s, 1.7, 1e-12);
  EXPECT_EQ(figures.max_output_tokens_per_s, 4);
  EXPECT_EQ(figures.cached_tokens, 64u);
  EXPECT_EQ(figures.miscounted, 0u);
  RequestRecord short_of_one = Good();
  short_of_one.ends[0].completion_tokens = 5;
  EXPECT_EQ(FiguresOf({short_of_one}).miscounted, 1u);
}

// Tokens of the second choice at 1.25 (two), 1.45 and 1.65; it is done before the first.
RequestRecord TwoChoices() {
  RequestRecord record = Good();
  record.choices = 2;
  record.arrivals = {{1.2, 1, 0},  {1.25, 2, 1}, {1.3, 1, 0},
                     {1.45, 1, 1}, {1.6, 2, 0},  {1.65, 1, 1}};
  record.ends = {{1, 4, ServerTimings{10, 200, 210, 400, 400.0 / 3, 610}},
                 {0, 4, ServerTimings{5, 170, 175, 390, 130, 630}}};
  return record;
}

TEST(FigureCollector, ChoicesHaveGapsOfTheirOwn) {
  const StageFigures figures = FiguresOf({TwoChoices()});
  const StageLatencies& all = figures.latencies;
  EXPECT_EQ(figures.miscounted, 0u);
  EXPECT_EQ(figures.output_tokens, 8u);
  EXPECT_EQ(figures.input_tokens, 100u);
  EXPECT_NEAR(all.ttft.Mean(), 300, 1e-9);
  EXPECT_EQ(all.itl.count(), 5u);  // 100, 150, 150; 200, 200
  EXPECT_NEAR(all.itl.Mean(), 160, 1e-9);
  EXPECT_EQ(all.tpot.count(), 2u);
  EXPECT_NEAR(all.tpot.Min(), 400.0 / 3, 1e-9);
  EXPECT_NEAR(all.tpot.Max(), 400.0 / 3, 1e-9);
  EXPECT_EQ(all.server_ttft.count(), 2u);
  EXPECT_NEAR(all.ttft_beyond_server.Mean(), 200 - 175, 1e-9);
  EXPECT_NEAR(all.e2el_beyond_server.Mean(), 700 - 630, 1e-9);
  EXPECT_EQ(figures.finish_reasons.at("length"), 1u);  // of a request, not of a choice
  RequestRecord slower = TwoChoices();
  slower.arrivals.back().at_s = 1.69;
  EXPECT_EQ(FiguresOf({TwoChoices(), slower}, {std::nullopt, 140, std::nullopt}).good, 1u);
  // What one choice lacks another does not make good.
  RequestRecord mixed_up = TwoChoices();
  mixed_up.arrivals[2].choice = 1;
  EXPECT_EQ(FiguresOf({mixed_up}).miscounted, 1u);
  RequestRecord one_short = TwoChoices();
  one_short.ends.pop_back();
  EXPECT_EQ(OutcomeOf(one_short), Outcome::kLost);
}

TEST(FigureCollector, GoodputNeedsEveryLimitFromTheIntendedTime) {
  const struct {
    GoodputLimits limits;
    uint64_t good;
  } kCases[] = {{{}, 1},
                {{301, std::nullopt, std::nullopt}, 1},
                {{299, std::nullopt, std::nullopt}, 0},  // 200 from sending
                {{std::nullopt, 134, std::nullopt}, 1},
                {{std::nullopt, 133, std::nullopt}, 0},
                {{std::nullopt, std::nullopt, 801}, 1},
                {{std::nullopt, std::nullopt, 799}, 0},
                {{301, 134, 799}, 0}};
  for (const auto& one : kCases) {
    RequestRecord failed = Good();
    failed.code = 13;
    EXPECT_EQ(FiguresOf({Good(), failed}, one.limits).good, one.good);
  }
  const auto parsed = ParseGoodput({"ttft:500", "e2el:1e4"});
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->ttft_ms, 500);
  EXPECT_EQ(parsed->e2el_ms, 1e4);
  EXPECT_FALSE(parsed->tpot_ms.has_value());
  for (const char* bad : {"", "ttft", "ttft:", "ttft:-1", "itl:3", "tpot:x"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseGoodput({bad}).status())) << bad;
  }
}

TEST(OutcomeOf, IsOneOfSeven) {
  EXPECT_EQ(OutcomeOf(Good()), Outcome::kCompleted);
  RequestRecord record = Good();
  record.cancelled = true;  // it was too late
  EXPECT_EQ(OutcomeOf(record), Outcome::kCompleted);
  record.ends.clear();
  EXPECT_EQ(OutcomeOf(record), Outcome::kLost);
  record.code = 1;
  EXPECT_EQ(OutcomeOf(record), Outcome::kCancelled);
  record.overdue = true;
  EXPECT_EQ(OutcomeOf(record), Outcome::kLost);
  record.interrupted = true;
  EXPECT_EQ(OutcomeOf(record), Outcome::kInterrupted);

  record = Good();
  record.code = 4;
  EXPECT_EQ(OutcomeOf(record), Outcome::kFailed);  // nobody planned a deadline
  record.has_deadline = true;
  EXPECT_EQ(OutcomeOf(record), Outcome::kExpired);
  record = Good();
  record.code = 1;  // the daemon's own
  EXPECT_EQ(OutcomeOf(record), Outcome::kFailed);
  record.code = 14;
  EXPECT_EQ(OutcomeOf(record), Outcome::kLost);
  record.accepted_s.reset();
  EXPECT_EQ(OutcomeOf(record), Outcome::kRefused);
  EXPECT_EQ(CodeName(8), "RESOURCE_EXHAUSTED");
  EXPECT_EQ(CodeName(99), "CODE_99");
}

// `rate` a second for `seconds`, of which `served` a second leave: what is under way at each send.
std::vector<InFlightSample> Backlog(double rate, double served, double seconds, double noise,
                                    uint64_t seed = 4) {
  std::vector<InFlightSample> samples;
  SeededDraw draw(seed);
  for (double at = 0; at < seconds; at += 1 / rate) {
    const double level = 10 + std::max(rate - served, 0.0) * at + noise * DrawNormal(&draw);
    samples.push_back({at, static_cast<uint32_t>(std::max(level, 0.0))});
  }
  return samples;
}

TEST(JudgeOpenLoop, FindsABacklogThatGrows) {
  StageCounts counts;
  counts.sent = counts.completed = 100;
  const auto saturated = [&](const std::vector<InFlightSample>& samples) {
    return JudgeOpenLoop(samples, counts, {}).saturated;
  };
  EXPECT_FALSE(saturated(Backlog(20, 20, 10, 3)));
  EXPECT_FALSE(saturated(Backlog(20, 19.5, 10, 3)));  // 2.5 %
  EXPECT_TRUE(saturated(Backlog(20, 16, 10, 3)));
  EXPECT_TRUE(saturated(Backlog(20, 10, 2, 0)));
  EXPECT_FALSE(saturated(Backlog(20, 10, 0.3, 0)));  // too few to tell
  EXPECT_FALSE(saturated({}));
  // Chance alone does not do it, few counts or many.
  int by_chance = 0;
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    by_chance += saturated(Backlog(4, 4, 4, 6, seed)) ? 1 : 0;
    by_chance += saturated(Backlog(20, 20, 10, 6, seed)) ? 1 : 0;
  }
  EXPECT_LE(by_chance, 5);
  const SaturationVerdict verdict = JudgeOpenLoop(Backlog(20, 10, 10, 0), counts, {});
  EXPECT_NEAR(verdict.backlog_rate, 10, 0.3);
  EXPECT_NEAR(verdict.offered_rate, 20, 0.3);
  counts.refused = 11;
  counts.completed = 89;
  EXPECT_TRUE(saturated(Backlog(20, 20, 10, 0)));
}

TEST(JudgeClosedLoop, FindsThroughputThatNoLongerGrows) {
  StageCounts counts;
  counts.sent = counts.completed = 100;
  EXPECT_FALSE(JudgeClosedLoop(100, std::nullopt, counts, {}).saturated);
  EXPECT_FALSE(JudgeClosedLoop(106, 100, counts, {}).saturated);
  EXPECT_TRUE(JudgeClosedLoop(104, 100, counts, {}).saturated);
}

TEST(RateSearch, DoublesThenNarrowsDown) {
  RateSearch search(1, 2, 20, 3);
  std::vector<double> tried;
  while (const auto rate = search.Next()) {
    tried.push_back(*rate);
    search.Report(*rate > 11);
  }
  ASSERT_EQ(tried.size(), 8u);
  EXPECT_EQ((std::vector<double>(tried.begin(), tried.begin() + 5)),
            (std::vector<double>{1, 2, 4, 8, 16}));
  EXPECT_NEAR(tried[5], std::sqrt(8 * 16), 1e-9);
  EXPECT_LT(*search.sustained(), 11);
  EXPECT_GT(*search.saturated(), 11);
  EXPECT_LT(*search.saturated() / *search.sustained(), 1.1);

  RateSearch down(64, 4, 20, 0);
  while (const auto rate = down.Next()) down.Report(*rate > 3);
  EXPECT_EQ(down.sustained(), 1);
  RateSearch endless(1, 2, 5, 1);
  int stages = 0;
  while (endless.Next()) {
    endless.Report(false);
    ++stages;
  }
  EXPECT_EQ(stages, 5);
}

TEST(BatchSearch, EndsAfterTwoThatGainNothing) {
  BatchSearch search(1, 64);
  std::vector<uint32_t> tried;
  const std::vector<bool> saturated = {false, true, false, true, true};
  while (const auto size = search.Next()) {
    tried.push_back(*size);
    search.Report(saturated[tried.size() - 1]);
  }
  EXPECT_EQ(tried, (std::vector<uint32_t>{1, 2, 4, 8, 16}));
  BatchSearch uneven(3, 20);
  tried.clear();
  while (const auto size = uneven.Next()) {
    tried.push_back(*size);
    uneven.Report(false);
  }
  EXPECT_EQ(tried, (std::vector<uint32_t>{3, 6, 12, 20}));
}

std::vector<PrometheusSample> Page(const std::string& text) { return *ParsePrometheusText(text); }

TEST(PageSummary, TellsCountersGaugesAndHistogramsApart) {
  PageSummary summary;
  const auto page = [](int total, int running, int low, int high) {
    return Page("augur_steps_total{model_name=\"m\"} " + std::to_string(total) +
                "\naugur_running_requests{model_name=\"m\"} " + std::to_string(running) +
                "\naugur_layer_total{layer=\"1\"} 5\naugur_build_info 1\nother_total 4\n" +
                "augur_wait_seconds_bucket{cause=\"late\",le=\"1\"} " + std::to_string(low) +
                "\naugur_wait_seconds_bucket{cause=\"late\",le=\"2\"} " + std::to_string(high) +
                "\naugur_wait_seconds_bucket{cause=\"late\",le=\"+Inf\"} " + std::to_string(high) +
                "\naugur_wait_seconds_count{cause=\"late\"} " + std::to_string(high) +
                "\naugur_wait_seconds_sum{cause=\"late\"} " + std::to_string(2 * high) + "\n");
  };
  summary.Add(page(10, 0, 2, 4));
  summary.Add(page(15, 6, 2, 8));
  summary.Add(page(18, 8, 2, 8));
  summary.Add(page(30, 0, 4, 12));
  summary.Miss();
  const DaemonFigures figures = summary.Finish();
  EXPECT_EQ(figures.pages, 4);
  EXPECT_EQ(figures.missed_pages, 1);
  EXPECT_FALSE(figures.restarted);
  EXPECT_EQ(figures.Counter("augur_steps_total"), 20);
  EXPECT_EQ(figures.Counter("augur_steps"), std::nullopt);
  EXPECT_EQ(figures.counters.size(), 1u);
  const auto running = figures.Gauge("augur_running_requests");
  ASSERT_TRUE(running.has_value());
  EXPECT_EQ(running->max, 8);
  EXPECT_EQ(running->mean, 7);  // of the pages under load
  EXPECT_EQ(running->end, 0);
  const auto wait = figures.Histogram("augur_wait_seconds{cause=\"late\"}");
  ASSERT_TRUE(wait.has_value());
  EXPECT_EQ(wait->count, 8);
  EXPECT_EQ(wait->Mean(), 2);
  EXPECT_NEAR(wait->p50, 1 + 2.0 / 6, 1e-9);  // two of eight up to 1, six from 1 to 2
  PageSummary anew;
  anew.Add(page(10, 0, 0, 0));
  anew.Add(page(2, 0, 0, 0));
  EXPECT_TRUE(anew.Finish().restarted);
}

}  // namespace
}  // namespace augur::loadtest
