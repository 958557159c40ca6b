#include "loadtest/workload_plan.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "loadtest/attention_policies.h"
#include "loadtest/seeded_draw.h"
#include "nlohmann/json.hpp"

namespace augur::loadtest {
namespace {

constexpr double kMostMilliseconds = 1e9;
constexpr int32_t kMostChoices = 64;

absl::Status BadEntry(const char* flag, const std::string& entry, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat(flag, ": \"", entry, "\" ", std::string(why)));
}

// "VALUE*WEIGHT" or "VALUE".
absl::StatusOr<std::pair<std::string, double>> SplitWeight(const char* flag,
                                                           const std::string& entry) {
  const size_t star = entry.rfind('*');
  if (star == std::string::npos) return std::make_pair(entry, 1.0);
  double weight = 0;
  if (!absl::SimpleAtod(entry.substr(star + 1), &weight) || !(weight > 0 && weight < 1e9)) {
    return BadEntry(flag, entry, "has no weight above 0 after its *");
  }
  return std::make_pair(entry.substr(0, star), weight);
}

absl::Status SetOption(const std::string& entry, const std::string& option,
                       AttentionOverride* attention) {
  uint32_t number = 0;
  if (option.rfind("k=", 0) == 0 && absl::SimpleAtoi(option.substr(2), &number) && number > 0) {
    attention->top_k_blocks = number;
    return absl::OkStatus();
  }
  if (option == "values=exact") {
    attention->value_samples = 0;
    return absl::OkStatus();
  }
  if (option.rfind("values=", 0) == 0 && absl::SimpleAtoi(option.substr(7), &number) &&
      number > 0) {
    attention->value_samples = number;
    return absl::OkStatus();
  }
  return BadEntry("--attention", entry,
                  absl::StrCat("has \"", option, "\", none of k=N, values=exact, values=N"));
}

absl::StatusOr<std::vector<Weighted<int32_t>>> ParseNumberMix(const char* flag,
                                                              std::string_view text, int32_t low,
                                                              int32_t high, const char* why) {
  std::vector<Weighted<int32_t>> mix;
  for (const std::string& entry :
       std::vector<std::string>(absl::StrSplit(std::string(text), ','))) {
    const auto split = SplitWeight(flag, entry);
    if (!split.ok()) return split.status();
    int32_t number = 0;
    if (!absl::SimpleAtoi(split->first, &number) || number < low || number > high) {
      return BadEntry(flag, entry, why);
    }
    mix.push_back({number, split->second});
  }
  return mix;
}

template <typename T>
size_t DrawWeighted(const std::vector<Weighted<T>>& mix, SeededDraw* draw) {
  double all = 0;
  for (const auto& entry : mix) all += entry.weight;
  double at = draw->Unit() * all;
  for (size_t i = 0; i + 1 < mix.size(); ++i) {
    at -= mix[i].weight;
    if (at < 0) return i;
  }
  return mix.empty() ? 0 : mix.size() - 1;
}

// Seeds of one request, one for each thing that is drawn.
SeededDraw DrawFor(uint64_t seed, const char* purpose, uint32_t stage, uint32_t index) {
  return SeededDraw(SeedOf(seed, purpose, (static_cast<uint64_t>(stage) << 32) + index));
}

class RequestPlanner {
 public:
  RequestPlanner(const WorkloadSpec& workload, uint64_t seed, uint32_t stage)
      : workload_(workload), seed_(seed), stage_(stage) {}

  PlannedRequest Plan(uint32_t index, const TraceEntry& trace) const {
    PlannedRequest request;
    request.index = index;
    request.at_s = trace.at_s;
    request.seed = Draw("sampling", index).Next() >> 1;
    PlanPrompt(trace, &request);
    PlanMix(&request);
    return request;
  }

 private:
  SeededDraw Draw(const char* purpose, uint32_t index) const {
    return DrawFor(seed_, purpose, stage_, index);
  }

  void PlanPrompt(const TraceEntry& trace, PlannedRequest* request) const {
    SeededDraw output = Draw("output", request->index);
    const int64_t context = workload_.max_context > 0 ? workload_.max_context : int64_t{1} << 30;
    const int64_t wanted = trace.output_tokens
                               ? *trace.output_tokens
                               : DrawLength(workload_.output, 1, context - 1, &output);
    request->max_tokens = static_cast<uint32_t>(std::clamp<int64_t>(wanted, 1, context - 1));
    PromptPlan* prompt = &request->prompt;
    if (!workload_.items.empty()) {
      const auto items = static_cast<uint32_t>(workload_.items.size());
      prompt->item = request->index % items;
      prompt->pass = request->index / items;
      const auto& own = workload_.items[prompt->item].max_tokens;
      if (own) request->max_tokens = *own;
      return;
    }
    SeededDraw input = Draw("input", request->index);
    const int64_t most = context - request->max_tokens;
    const int64_t tokens =
        trace.input_tokens ? *trace.input_tokens : DrawLength(workload_.input, 1, most, &input);
    prompt->tokens = static_cast<uint32_t>(std::clamp<int64_t>(tokens, 1, most));
    prompt->shared_tokens =
        static_cast<uint32_t>(std::llround(workload_.shared_prefix * prompt->tokens));
    SeededDraw prefix = Draw("prefix", request->index);
    prompt->group = static_cast<uint32_t>(prefix.Below(workload_.prefix_groups));
    prompt->seed = Draw("prompt", request->index).Next();
  }

  void PlanMix(PlannedRequest* request) const {
    SeededDraw cancel = Draw("cancel", request->index);
    if (cancel.Unit() < workload_.cancel_share) {
      // A millionth of a second rather than 0, which means never.
      request->cancel_after_s = std::max(
          DrawValue(workload_.cancel_after_ms, 0, kMostMilliseconds, &cancel) / 1000, 1e-6);
    }
    SeededDraw deadline = Draw("deadline", request->index);
    if (deadline.Unit() < workload_.deadline_share) {
      request->deadline_s =
          std::max(DrawValue(workload_.deadline_ms, 0, kMostMilliseconds, &deadline) / 1000, 1e-6);
    }
    SeededDraw slow = Draw("slow", request->index);
    if (slow.Unit() < workload_.slow_share) request->read_pause_s = workload_.slow_pause_ms / 1000;
    SeededDraw priority = Draw("priority", request->index);
    if (!workload_.priorities.empty()) {
      request->priority = workload_.priorities[DrawWeighted(workload_.priorities, &priority)].value;
    }
    SeededDraw choices = Draw("choices", request->index);
    if (!workload_.choices.empty()) {
      request->choices =
          static_cast<uint32_t>(workload_.choices[DrawWeighted(workload_.choices, &choices)].value);
    }
    SeededDraw attention = Draw("attention", request->index);
    request->attention = static_cast<uint32_t>(DrawWeighted(workload_.attention, &attention));
  }

  const WorkloadSpec& workload_;
  const uint64_t seed_;
  const uint32_t stage_;
};

void SetOfferedRate(StagePlan* plan) {
  const size_t count = plan->requests.size();
  if (count < 2) return;
  const double span = plan->requests.back().at_s - plan->requests.front().at_s;
  if (span > 0) plan->offered_rate = static_cast<double>(count - 1) / span;
}

// Whether the context had no room for what the trace says.
bool IsCut(const TraceEntry& entry, const WorkloadSpec& workload, const PlannedRequest& request) {
  if (!workload.items.empty()) return false;
  return entry.output_tokens.value_or(request.max_tokens) != request.max_tokens ||
         entry.input_tokens.value_or(request.prompt.tokens) != request.prompt.tokens;
}

}  // namespace

absl::StatusOr<std::vector<Weighted<AttentionOverride>>> ParseAttentionMix(std::string_view text) {
  std::vector<Weighted<AttentionOverride>> mix;
  for (const std::string& entry :
       std::vector<std::string>(absl::StrSplit(std::string(text), ','))) {
    const auto split = SplitWeight("--attention", entry);
    if (!split.ok()) return split.status();
    const std::vector<std::string> parts = absl::StrSplit(split->first, '/');
    AttentionOverride attention;
    attention.name = split->first;
    if (parts[0] != "default") {
      const auto policy = PolicyOf(parts[0]);
      if (!policy.ok()) {
        return BadEntry("--attention", entry,
                        "names none of default, dense, sparse, infinigen, forecast");
      }
      attention.policy = *policy;
    }
    const bool has_two = parts[0] != "default" && parts.size() > 1 &&
                         (parts[1] == "default" || PolicyOf(parts[1]).ok());
    if (has_two) {
      attention.prefill = attention.policy;
      attention.policy = PolicyOf(parts[1]).value_or(v1::ATTENTION_POLICY_UNSPECIFIED);
    }
    for (size_t i = has_two ? 2 : 1; i < parts.size(); ++i) {
      const absl::Status set = SetOption(entry, parts[i], &attention);
      if (!set.ok()) return set;
    }
    mix.push_back({attention, split->second});
  }
  return mix;
}

absl::StatusOr<std::vector<Weighted<int32_t>>> ParsePriorityMix(std::string_view text) {
  return ParseNumberMix("--priorities", text, INT32_MIN, INT32_MAX, "is no whole number");
}

absl::StatusOr<std::vector<Weighted<int32_t>>> ParseChoiceMix(std::string_view text) {
  return ParseNumberMix("--choices", text, 1, kMostChoices, "is no number from 1 to 64");
}

absl::Status CheckLengths(const WorkloadSpec& workload) {
  if (workload.max_context == 0) return absl::OkStatus();
  const int64_t context = workload.max_context;
  const absl::Status output = CheckReachable("--output-len", workload.output, 1, context - 1);
  if (!output.ok() || workload.prompts == PromptKind::kFile) return output;
  const LengthDistribution& answers = workload.output;
  const bool fixed = answers.kind == LengthDistribution::Kind::kFixed;
  const int64_t answer = fixed ? std::max<int64_t>(1, std::llround(answers.first)) : 1;
  return CheckReachable("--input-len", workload.input, 1, context - answer);
}

StagePlan PlanClosedStage(const WorkloadSpec& workload, uint32_t concurrency, int64_t requests,
                          double ramp_s, double send_limit_s, uint64_t seed, uint32_t number) {
  StagePlan plan;
  plan.name = absl::StrCat("batch ", concurrency);
  plan.number = number;
  plan.concurrency = concurrency;
  plan.ramp_s = ramp_s;
  plan.send_limit_s = send_limit_s;
  const RequestPlanner planner(workload, seed, number);
  const int64_t count = std::min(requests, kMostRequests);
  for (int64_t i = 0; i < count; ++i) {
    plan.requests.push_back(planner.Plan(static_cast<uint32_t>(i), TraceEntry()));
  }
  return plan;
}

StagePlan PlanOpenStage(const WorkloadSpec& workload, const ArrivalSpec& arrivals,
                        uint32_t max_in_flight, uint64_t seed, uint32_t number) {
  StagePlan plan;
  plan.name = absl::StrFormat("%s %.4g/s", ArrivalName(arrivals.kind), arrivals.rate);
  plan.number = number;
  plan.open_loop = true;
  plan.max_in_flight = max_in_flight;
  const RequestPlanner planner(workload, seed, number);
  for (const double at : PlanArrivals(arrivals, SeedOf(seed, "arrivals", number))) {
    const auto index = static_cast<uint32_t>(plan.requests.size());
    plan.requests.push_back(planner.Plan(index, {at, std::nullopt, std::nullopt}));
  }
  // What was drawn may differ from the rate that was asked for; what is offered is what is sent.
  SetOfferedRate(&plan);
  return plan;
}

StagePlan PlanTraceStage(const WorkloadSpec& workload, const std::vector<TraceEntry>& trace,
                         double speed, uint32_t max_in_flight, uint64_t seed, uint32_t number) {
  StagePlan plan;
  plan.name = absl::StrFormat("trace x%g", speed);
  plan.number = number;
  plan.open_loop = true;
  plan.max_in_flight = max_in_flight;
  const RequestPlanner planner(workload, seed, number);
  for (TraceEntry entry : trace) {
    entry.at_s /= speed;
    plan.requests.push_back(planner.Plan(static_cast<uint32_t>(plan.requests.size()), entry));
    if (IsCut(entry, workload, plan.requests.back())) ++plan.cut_requests;
  }
  SetOfferedRate(&plan);
  return plan;
}

std::string PlanText(const StagePlan& plan) {
  using Json = nlohmann::ordered_json;
  std::string text = Json{{"stage", plan.name},
                          {"number", plan.number},
                          {"open_loop", plan.open_loop},
                          {"concurrency", plan.open_loop ? Json() : Json(plan.concurrency)},
                          {"max_in_flight", plan.max_in_flight},
                          {"offered_rate", plan.offered_rate},
                          {"send_limit_s", plan.send_limit_s},
                          {"requests", plan.requests.size()}}
                         .dump() +
                     "\n";
  for (const PlannedRequest& request : plan.requests) {
    text += Json{{"index", request.index},
                 {"at_s", request.at_s},
                 {"item", request.prompt.item},
                 {"pass", request.prompt.pass},
                 {"tokens", request.prompt.tokens},
                 {"shared_tokens", request.prompt.shared_tokens},
                 {"group", request.prompt.group},
                 {"max_tokens", request.max_tokens},
                 {"cancel_after_s", request.cancel_after_s},
                 {"deadline_s", request.deadline_s},
                 {"read_pause_s", request.read_pause_s},
                 {"priority", request.priority},
                 {"choices", request.choices},
                 {"attention", request.attention},
                 {"seed", request.seed}}
                .dump() +
            "\n";
  }
  return text;
}

}  // namespace augur::loadtest
