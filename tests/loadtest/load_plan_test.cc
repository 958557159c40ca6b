// Plans: arrivals, lengths and mixes have the moments that they should, and a seed fixes them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "loadtest/arrival_process.h"
#include "loadtest/length_distribution.h"
#include "loadtest/prompt_source.h"
#include "loadtest/text_file.h"
#include "loadtest/workload_plan.h"
#include "nlohmann/json.hpp"

namespace augur::loadtest {
namespace {

struct Moments {
  double mean = 0;
  double variance = 0;
};

Moments MomentsOf(const std::vector<double>& values) {
  Moments moments;
  const auto n = static_cast<double>(values.size());
  for (const double value : values) moments.mean += value / n;
  for (const double value : values) {
    moments.variance += (value - moments.mean) * (value - moments.mean) / n;
  }
  return moments;
}

std::vector<double> Gaps(const std::vector<double>& times) {
  std::vector<double> gaps;
  for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
  return gaps;
}

constexpr int64_t kMany = 100'000;

// Gaps of rate 20: mean 0.05, variance mean^2 / burstiness. Seeds are fixed; the bounds are four
// standard errors and more.
TEST(PlanArrivals, GapsHaveTheMomentsOfTheirProcess) {
  const struct {
    ArrivalKind kind;
    double burstiness;
    double squared_cv;
  } kCases[] = {{ArrivalKind::kPoisson, 1, 1},
                {ArrivalKind::kGamma, 1, 1},
                {ArrivalKind::kGamma, 0.25, 4},
                {ArrivalKind::kGamma, 4, 0.25},
                {ArrivalKind::kConstant, 1, 0}};
  for (const auto& one : kCases) {
    ArrivalSpec spec;
    spec.kind = one.kind;
    spec.rate = 20;
    spec.burstiness = one.burstiness;
    spec.requests = kMany;
    const Moments gaps = MomentsOf(Gaps(PlanArrivals(spec, 5)));
    const double error = 4 * std::sqrt(one.squared_cv / kMany);
    EXPECT_NEAR(gaps.mean, 0.05, 0.05 * error + 1e-12) << ArrivalName(one.kind);
    EXPECT_NEAR(gaps.variance / (0.05 * 0.05), one.squared_cv, 0.06 * one.squared_cv + 1e-9)
        << ArrivalName(one.kind) << " " << one.burstiness;
  }
}

// As many arrivals in a stretch as the integral of the rate says.
TEST(PlanArrivals, ARampFollowsItsRate) {
  for (const RampKind ramp : {RampKind::kLinear, RampKind::kExponential}) {
    ArrivalSpec spec;
    spec.kind = ArrivalKind::kPoisson;
    spec.rate = 400;
    spec.ramp = ramp;
    spec.ramp_from = 100;
    spec.ramp_s = 100;
    spec.duration_s = 200;
    const std::vector<double> times = PlanArrivals(spec, 9);
    const auto between = [&](double from, double to) {
      return static_cast<double>(std::count_if(times.begin(), times.end(),
                                               [&](double at) { return at >= from && at < to; }));
    };
    const double growth = std::log(4.0) / 100;
    const auto area = [&](double from, double to) {
      if (ramp == RampKind::kLinear) return 100 * (to - from) + 1.5 * (to * to - from * from);
      return 100 / growth * (std::exp(growth * to) - std::exp(growth * from));
    };
    for (const auto& [from, to] : {std::pair{0.0, 20.0}, {40.0, 60.0}, {80.0, 100.0}}) {
      EXPECT_NEAR(between(from, to), area(from, to), 4 * std::sqrt(area(from, to))) << from;
    }
    EXPECT_NEAR(between(100, 200), 40'000, 800);
    EXPECT_EQ(between(200, 1e9), 0);
  }
}

TEST(PlanArrivals, BothLimitsHoldAndASeedFixesAll) {
  ArrivalSpec spec;
  spec.rate = 10;
  spec.duration_s = 3;
  EXPECT_LT(PlanArrivals(spec, 1).back(), 3);
  spec.requests = 5;
  EXPECT_EQ(PlanArrivals(spec, 1).size(), 5u);
  EXPECT_EQ(PlanArrivals(spec, 1), PlanArrivals(spec, 1));
  EXPECT_NE(PlanArrivals(spec, 1), PlanArrivals(spec, 2));
}

TEST(ParseTrace, TakesSecondsAndJson) {
  const auto trace = ParseTrace(
      "# comment\n10\n10.5\n{\"timestamp\": 12000, \"input_length\": 6758, \"output_length\": "
      "5}\n");
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 3u);
  EXPECT_EQ((*trace)[0].at_s, 0);
  EXPECT_EQ((*trace)[1].at_s, 0.5);
  EXPECT_EQ((*trace)[2].at_s, 2);
  EXPECT_EQ((*trace)[2].input_tokens, 6758);
  EXPECT_FALSE((*trace)[1].output_tokens.has_value());
  for (const char* bad : {"", "x\n", "{\"time\": 1}\n", "2\n1\n", "nan\n", "{\n"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTrace(bad).status())) << bad;
  }
  const StagePlan plan = PlanTraceStage({}, *trace, 2, 0, 1, 1);
  ASSERT_EQ(plan.requests.size(), 3u);
  EXPECT_EQ(plan.requests[2].at_s, 1);
  EXPECT_EQ(plan.requests[2].prompt.tokens, 6758u);
  EXPECT_EQ(plan.requests[2].max_tokens, 5u);
  EXPECT_EQ(plan.offered_rate, 2);
}

TEST(Lengths, HaveTheMomentsThatTheyName) {
  const struct {
    const char* text;
    double mean;
    double deviation;
  } kCases[] = {{"300", 300, 0},
                {"fixed:7", 7, 0},
                {"uniform:10,20", 15, std::sqrt(10.0)},  // (11^2 - 1) / 12
                {"normal:500,40", 500, 40},
                {"lognormal:500,200", 500, 200}};
  for (const auto& one : kCases) {
    const auto lengths = ParseLengths("--input-len", one.text);
    ASSERT_TRUE(lengths.ok()) << lengths.status();
    SeededDraw draw(3);
    std::vector<double> values;
    for (int i = 0; i < kMany; ++i) {
      values.push_back(static_cast<double>(DrawLength(*lengths, 1, 1'000'000, &draw)));
    }
    const Moments moments = MomentsOf(values);
    EXPECT_NEAR(moments.mean, one.mean, 4 * one.deviation / std::sqrt(kMany) + 1e-9) << one.text;
    EXPECT_NEAR(std::sqrt(moments.variance), one.deviation, 0.03 * one.deviation + 1e-9)
        << one.text;
  }
}

TEST(Lengths, StayWithinLimitsAndSayWhatIsWrong) {
  SeededDraw draw(3);
  const auto wide = ParseLengths("--input-len", "normal:500,400");
  bool low = false;
  for (int i = 0; i < 10'000; ++i) {
    const int64_t length = DrawLength(*wide, 100, 600, &draw);
    EXPECT_TRUE(length >= 100 && length <= 600);
    low = low || length < 120;
  }
  EXPECT_TRUE(low);
  EXPECT_EQ(DrawLength(*ParseLengths("--input-len", "9000"), 1, 100, &draw), 100);
  for (const char* bad : {"", "x", "uniform:5", "uniform:9,3", "normal:5,-1", "lognormal:0,1",
                          "file:/nowhere/at/all", "poisson:3"}) {
    const absl::Status status = ParseLengths("--output-len", bad).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_EQ(status.message().find("--output-len: "), 0u) << status;
  }
  const std::string path = testing::TempDir() + "/augur_lengths.txt";
  std::ofstream(path) << "10 20\n20\n";
  const auto list = ParseLengths("--input-len", "file:" + path);
  std::remove(path.c_str());
  int twenties = 0;
  for (int i = 0; i < 30'000; ++i) twenties += DrawLength(*list, 1, 100, &draw) == 20 ? 1 : 0;
  EXPECT_NEAR(twenties, 20'000, 400);
}

WorkloadSpec MixedWorkload() {
  WorkloadSpec workload;
  workload.input = *ParseLengths("--input-len", "uniform:100,300");
  workload.output = *ParseLengths("--output-len", "uniform:8,40");
  workload.max_context = 320;
  workload.shared_prefix = 0.5;
  workload.prefix_groups = 4;
  workload.cancel_share = 0.1;
  workload.cancel_after_ms = *ParseLengths("--cancel-after", "uniform:0,500");
  workload.deadline_share = 0.2;
  workload.deadline_ms = *ParseLengths("--deadline", "250");
  workload.slow_share = 0.05;
  workload.slow_pause_ms = 30;
  workload.priorities = *ParsePriorityMix("0*3,5");
  workload.choices = *ParseChoiceMix("1*9,4");
  workload.attention = *ParseAttentionMix("default*2,sparse/k=16,dense/values=64*2");
  return workload;
}

TEST(PlanStage, SharesAreWhatTheMixSays) {
  const StagePlan plan = PlanClosedStage(MixedWorkload(), 4, 20'000, 0, 0, 7, 1);
  std::map<std::string, int> counts;
  std::map<uint32_t, int> attention;
  std::map<uint32_t, int> groups;
  for (const PlannedRequest& request : plan.requests) {
    counts["cancel"] += request.cancel_after_s > 0 ? 1 : 0;
    counts["deadline"] += request.deadline_s > 0 ? 1 : 0;
    counts["slow"] += request.read_pause_s == 0.03 ? 1 : 0;
    counts["priority"] += request.priority == 5 ? 1 : 0;
    counts["choices"] += request.choices == 4 ? 1 : 0;
    counts["both"] += request.deadline_s > 0 && request.cancel_after_s > 0 ? 1 : 0;
    ++attention[request.attention];
    ++groups[request.prompt.group];
    EXPECT_LE(request.prompt.tokens + request.max_tokens, 320u);
    EXPECT_GE(request.prompt.tokens, 100u);
    EXPECT_LE(request.cancel_after_s, 0.5);
    EXPECT_EQ(request.prompt.shared_tokens, std::llround(0.5 * request.prompt.tokens));
  }
  EXPECT_NEAR(counts["cancel"], 2000, 170);
  EXPECT_NEAR(counts["deadline"], 4000, 230);
  EXPECT_NEAR(counts["slow"], 1000, 125);
  EXPECT_NEAR(counts["priority"], 5000, 250);
  EXPECT_NEAR(counts["choices"], 2000, 170);
  EXPECT_NEAR(counts["both"], 400, 80);  // independent of each other
  EXPECT_NEAR(attention[0], 8000, 280);
  EXPECT_NEAR(attention[1], 4000, 230);
  EXPECT_NEAR(attention[2], 8000, 280);
  EXPECT_EQ(groups.size(), 4u);
}

TEST(PlanStage, ASeedFixesItAndOneMixDoesNotMoveAnother) {
  const WorkloadSpec workload = MixedWorkload();
  const std::string text = PlanText(PlanClosedStage(workload, 4, 200, 0, 0, 7, 1));
  EXPECT_EQ(text, PlanText(PlanClosedStage(workload, 4, 200, 0, 0, 7, 1)));
  EXPECT_NE(text, PlanText(PlanClosedStage(workload, 4, 200, 0, 0, 8, 1)));
  EXPECT_NE(text, PlanText(PlanClosedStage(workload, 4, 200, 0, 0, 7, 2)));
  WorkloadSpec more_cancels = workload;
  more_cancels.cancel_share = 0.9;
  const StagePlan one = PlanClosedStage(workload, 4, 200, 0, 0, 7, 1);
  const StagePlan other = PlanClosedStage(more_cancels, 4, 200, 0, 0, 7, 1);
  for (size_t i = 0; i < 200; ++i) {
    EXPECT_EQ(one.requests[i].prompt.tokens, other.requests[i].prompt.tokens);
    EXPECT_EQ(one.requests[i].deadline_s, other.requests[i].deadline_s);
    EXPECT_EQ(one.requests[i].priority, other.requests[i].priority);
    EXPECT_EQ(one.requests[i].choices, other.requests[i].choices);
    if (one.requests[i].cancel_after_s > 0) {
      EXPECT_EQ(one.requests[i].cancel_after_s, other.requests[i].cancel_after_s);
    }
  }
  std::istringstream lines(text);
  int objects = 0;
  for (std::string line; std::getline(lines, line); ++objects) {
    EXPECT_TRUE(nlohmann::json::parse(line, nullptr, false).is_object()) << line;
  }
  EXPECT_EQ(objects, 201);
}

TEST(PlanStage, AListIsGoneThroughInOrderAndInPasses) {
  WorkloadSpec workload;
  workload.items = {{std::nullopt}, {5}, {std::nullopt}};
  workload.output = *ParseLengths("--output-len", "12");
  const StagePlan plan = PlanClosedStage(workload, 1, 7, 0, 0, 1, 1);
  EXPECT_EQ(plan.requests[4].prompt.item, 1u);
  EXPECT_EQ(plan.requests[4].prompt.pass, 1u);
  EXPECT_EQ(plan.requests[4].max_tokens, 5u);
  EXPECT_EQ(plan.requests[6].prompt.item, 0u);
  EXPECT_EQ(plan.requests[6].prompt.pass, 2u);
  EXPECT_EQ(plan.requests[6].max_tokens, 12u);
}

TEST(Mixes, SayWhatIsWrong) {
  const auto attention = ParseAttentionMix("forecast/k=12/values=exact*0.5");
  ASSERT_TRUE(attention.ok());
  EXPECT_EQ((*attention)[0].value.policy, v1::ATTENTION_POLICY_FORECAST);
  EXPECT_EQ((*attention)[0].value.top_k_blocks, 12u);
  EXPECT_EQ((*attention)[0].value.value_samples, 0u);
  EXPECT_EQ((*attention)[0].weight, 0.5);
  // Prompts under one policy, answers under another; either may be the deployment's.
  const auto two = ParseAttentionMix("dense/forecast/k=9,sparse/default,default/k=9");
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_EQ((*two)[0].value.prefill, v1::ATTENTION_POLICY_DENSE);
  EXPECT_EQ((*two)[0].value.policy, v1::ATTENTION_POLICY_FORECAST);
  EXPECT_EQ((*two)[0].value.top_k_blocks, 9u);
  EXPECT_EQ((*two)[1].value.prefill, v1::ATTENTION_POLICY_SPARSE);
  EXPECT_EQ((*two)[1].value.policy, v1::ATTENTION_POLICY_UNSPECIFIED);
  EXPECT_EQ((*two)[2].value.prefill, v1::ATTENTION_POLICY_UNSPECIFIED);
  for (const char* bad : {"", "lazy", "dense/k=0", "dense/x", "dense*0", "dense*-1", "dense,",
                          "default/dense", "dense/sparse/dense"}) {
    const absl::Status status = ParseAttentionMix(bad).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_EQ(status.message().find("--attention: "), 0u) << status;
  }
  for (const char* bad : {"", "x", "1*x", "1,,2"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePriorityMix(bad).status())) << bad;
  }
  for (const char* bad : {"", "x", "0", "-1", "65", "1*0"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParseChoiceMix(bad).status())) << bad;
  }
}

v1::GetModelResponse SmallModel() {
  v1::GetModelResponse model;
  model.set_vocab_size(50);
  model.add_eos_token_ids(3);
  return model;
}

TEST(PromptSource, RandomPromptsShareWhatTheyShouldAndNothingElse) {
  RequestDefaults defaults;
  defaults.salt = "salt";
  defaults.attention = *ParseAttentionMix("dense/sparse/k=16/values=64");
  const auto source = PromptSource::Make({}, defaults, SmallModel(), nullptr);
  ASSERT_TRUE(source.ok());
  WorkloadSpec workload;
  workload.input = *ParseLengths("--input-len", "200");
  workload.shared_prefix = 0.75;
  workload.prefix_groups = 2;
  workload.choices = *ParseChoiceMix("3");
  const StagePlan plan = PlanClosedStage(workload, 1, 40, 0, 0, 1, 3);
  const auto ids = [&](const PlannedRequest& request) {
    const v1::CompleteRequest made = (*source)->Make(plan, request);
    EXPECT_EQ(made.cache_salt(), "salt-3-0");
    EXPECT_EQ(made.attention().top_k_blocks(), 16u);
    EXPECT_EQ(made.attention().value_samples(), 64u);
    EXPECT_EQ(made.attention().policy(), v1::ATTENTION_POLICY_SPARSE);
    EXPECT_EQ(made.attention().prefill_policy(), v1::ATTENTION_POLICY_DENSE);
    EXPECT_EQ(made.sampling().n(), 3u);
    return std::vector<uint32_t>(made.token_ids().ids().begin(), made.token_ids().ids().end());
  };
  for (const PlannedRequest& one : plan.requests) {
    const std::vector<uint32_t> mine = ids(one);
    ASSERT_EQ(mine.size(), 200u);
    for (const uint32_t id : mine) EXPECT_TRUE(id < 50 && id != 3);
    const PlannedRequest& first = plan.requests[0];
    const std::vector<uint32_t> other = ids(first);
    const auto same = std::mismatch(mine.begin(), mine.end(), other.begin()).first - mine.begin();
    if (one.index == 0) {
      EXPECT_EQ(same, 200);
    } else if (one.prompt.group == first.prompt.group) {
      EXPECT_TRUE(same >= 150 && same < 160) << same;
    } else {
      EXPECT_LT(same, 10);
    }
  }
}

TEST(PromptSource, ReadsLinesAndJson) {
  const auto prompts = ParsePrompts(
      "plain text, with a {\n\n{\"prompt\": \"a\\nb\", \"max_tokens\": 9, \"answer\": \"Oslo\"}\r\n"
      "{\"token_ids\": [1, 2]}\n");
  ASSERT_TRUE(prompts.ok()) << prompts.status();
  ASSERT_EQ(prompts->size(), 3u);
  EXPECT_EQ((*prompts)[0].text, "plain text, with a {");
  EXPECT_EQ((*prompts)[1].text, "a\nb");
  EXPECT_EQ((*prompts)[1].max_tokens, 9u);
  EXPECT_EQ((*prompts)[1].answers, std::vector<std::string>{"Oslo"});
  EXPECT_EQ((*prompts)[2].ids, (std::vector<uint32_t>{1, 2}));
  for (const char* bad :
       {"", "{", "{}", "{\"prompt\": 3}", "{\"token_ids\": [-1]}", "{\"token_ids\": []}",
        "{\"prompt\": \"a\", \"max_tokens\": 0}", "{\"prompt\": \"a\", \"answer\": 4}"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(ParsePrompts(bad).status())) << bad;
  }
}

// What was asked for is sent or refused, and what a trace asks for and cannot have is counted.
TEST(PlanStage, LengthsBeyondTheContextAreToldOf) {
  WorkloadSpec workload;
  workload.max_context = 100;
  const auto check = [&](const char* input, const char* output) {
    workload.input = *ParseLengths("--input-len", input);
    workload.output = *ParseLengths("--output-len", output);
    return CheckLengths(workload);
  };
  for (const auto& [input, output] : {std::pair("90", "10"),
                                      {"uniform:1,500", "99"},
                                      {"normal:500,1", "lognormal:900,1"},
                                      {"uniform:99,500", "1"}}) {
    EXPECT_TRUE(check(input, output).ok()) << input << " " << output;
  }
  for (const auto& [input, output, flag] : {std::tuple("0", "10", "--input-len"),
                                            {"91", "10", "--input-len"},
                                            {"1e9", "10", "--input-len"},
                                            {"5", "100", "--output-len"},
                                            {"5", "0", "--output-len"},
                                            {"uniform:100,200", "5", "--input-len"},
                                            {"5", "uniform:0,0", "--output-len"}}) {
    const absl::Status status = check(input, output);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << input << " " << output;
    EXPECT_NE(std::string(status.message()).find(flag), std::string::npos) << status;
  }
  const auto trace = ParseTrace(
      R"({"timestamp": 0, "input_length": 5, "output_length": 7}
         {"timestamp": 1, "input_length": 99, "output_length": 7}
         {"timestamp": 2, "input_length": 5, "output_length": 700}
         {"timestamp": 3, "input_length": null})");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_TRUE(check("5", "5").ok());
  EXPECT_EQ(PlanTraceStage(workload, *trace, 1, 0, 1, 1).cut_requests, 2);
  EXPECT_FALSE(ParseTrace(R"({"timestamp": 0, "input_length": "5"})").ok());
}

TEST(ReadTextFile, EndsWhereTheFileDoesNot) {
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTextFile("--text", "/dev/zero", 1 << 20).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTextFile("--text", testing::TempDir()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(ReadTextFile("--text", "/nowhere/at/all").status()));
  EXPECT_EQ(*ReadTextFile("--text", "/dev/null"), "");
}

TEST(ParsePrompts, TakesNothingThatTheWireDoesNot) {
  EXPECT_TRUE(ParsePrompts("caf\xc3\xa9\n").ok());
  EXPECT_NE(std::string(ParsePrompts("a\nb\xff\n").status().message()).find("line 2"),
            std::string::npos);
}

}  // namespace
}  // namespace augur::loadtest
