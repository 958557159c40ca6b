// What a stage of a load test will do, request by request: a pure function of the workload, the
// stage and the seed. The runner applies it and decides nothing.
//
// A stage is a closed loop (so many requests are always under way) or an open one (each request has
// its time). Which requests are cancelled, have a deadline, are read slowly, have a priority or
// several choices, or override the attention is drawn here too, each from draws of its own, so that
// one mix does not move another.
//
// Thread: plain functions. Ownership: values. Units: seconds, tokens. Failure: InvalidArgument
// naming the flag; a plan itself cannot fail.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "augur/v1/completions.pb.h"
#include "loadtest/arrival_process.h"
#include "loadtest/length_distribution.h"

namespace augur::loadtest {

// What a request asks of the attention; everything unset is the deployment's choice.
struct AttentionOverride {
  v1::AttentionPolicy policy = v1::ATTENTION_POLICY_UNSPECIFIED;
  v1::AttentionPolicy prefill = v1::ATTENTION_POLICY_UNSPECIFIED;  // as `policy`
  std::optional<uint32_t> top_k_blocks;
  std::optional<uint32_t> value_samples;  // 0: exact values
  std::string name = "default";           // as it was written
};

template <typename T>
struct Weighted {
  T value = {};
  double weight = 1;
};

// "dense*3,sparse/k=16,dense/forecast/values=64,default/values=exact": a name with options after
// slashes, and how often beside the others. Names of the API's policies, or default; of two names
// the first is for prompts.
absl::StatusOr<std::vector<Weighted<AttentionOverride>>> ParseAttentionMix(std::string_view text);
// "0*9,5": a number and how often.
absl::StatusOr<std::vector<Weighted<int32_t>>> ParsePriorityMix(std::string_view text);
// "1*9,4": sampling.n, from 1 to 64, and how often.
absl::StatusOr<std::vector<Weighted<int32_t>>> ParseChoiceMix(std::string_view text);

// Where prompts come from.
enum class PromptKind {
  kRandom,  // token ids drawn from the vocabulary
  kProse,   // token ids of stretches of the text files
  kNeedle,  // documents with questions whose answers are checked
  kFile,    // a file's lines
};

// One thing of the prompt source's list, where it has one (documents' questions, a file's lines).
struct PromptItem {
  std::optional<uint32_t> max_tokens;
};

struct WorkloadSpec {
  PromptKind prompts = PromptKind::kRandom;
  std::vector<PromptItem> items = {};  // kNeedle, kFile: at least one
  LengthDistribution input = {};       // kRandom, kProse
  LengthDistribution output = {};
  uint32_t max_context = 0;  // input and output together stay within; 0: no limit
  double shared_prefix = 0;  // share of a prompt that it has in common with its group, 0 to 1
  uint32_t prefix_groups = 1;
  double cancel_share = 0;
  LengthDistribution cancel_after_ms = {};
  double deadline_share = 0;
  LengthDistribution deadline_ms = {};
  double slow_share = 0;
  double slow_pause_ms = 0;  // between reads
  std::vector<Weighted<int32_t>> priorities = {};
  std::vector<Weighted<int32_t>> choices = {};
  std::vector<Weighted<AttentionOverride>> attention = {};
};

// What makes a prompt, without its text.
struct PromptPlan {
  uint32_t item = 0;           // of the list
  uint32_t pass = 0;           // how often the list was gone through before
  uint32_t tokens = 0;         // kRandom, kProse: of the whole prompt
  uint32_t shared_tokens = 0;  // of those, the beginning that its group has in common
  uint32_t group = 0;
  uint64_t seed = 0;  // of the part that is its own
};

struct PlannedRequest {
  uint32_t index = 0;
  double at_s = 0;  // open loop: when it is meant to be sent; closed loop: 0
  PromptPlan prompt = {};
  uint32_t max_tokens = 16;
  double cancel_after_s = 0;  // from its sending; 0: never
  double deadline_s = 0;      // from its sending; 0: none
  double read_pause_s = 0;    // before every read but the first; 0: reads at once
  int32_t priority = 0;
  uint32_t choices = 1;
  uint32_t attention = 0;  // of WorkloadSpec.attention
  uint64_t seed = 0;       // of its sampling
};

struct StagePlan {
  std::string name;
  uint32_t number = 0;  // of the stage, from 0: part of every seed and salt
  bool open_loop = false;
  uint32_t concurrency = 1;              // closed loop: the batch size
  double ramp_s = 0;                     // closed loop: the first requests start spread over it
  uint32_t max_in_flight = 0;            // open loop: more wait in the client; 0: no limit
  double offered_rate = 0;               // open loop: requests over the time in which they are sent
  int64_t cut_requests = 0;              // of a trace: lengths that the context had no room for
  double send_limit_s = 0;               // nothing is sent at or after it; 0: no limit
  std::vector<PlannedRequest> requests;  // in the order of sending
};

// Lengths that the context has no room for are refused, with the flag, rather than replaced.
absl::Status CheckLengths(const WorkloadSpec& workload);

// Closed loop: `requests` of them.
StagePlan PlanClosedStage(const WorkloadSpec& workload, uint32_t concurrency, int64_t requests,
                          double ramp_s, double send_limit_s, uint64_t seed, uint32_t number);
StagePlan PlanOpenStage(const WorkloadSpec& workload, const ArrivalSpec& arrivals,
                        uint32_t max_in_flight, uint64_t seed, uint32_t number);
// A trace's own lengths go before the workload's.
StagePlan PlanTraceStage(const WorkloadSpec& workload, const std::vector<TraceEntry>& trace,
                         double speed, uint32_t max_in_flight, uint64_t seed, uint32_t number);

// A line of JSON for the stage, and one for every request.
std::string PlanText(const StagePlan& plan);

}  // namespace augur::loadtest
