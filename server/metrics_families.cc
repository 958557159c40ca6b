#include "server/metrics_families.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "kernels/kv_page.h"
#include "server/connection_limit.h"
#include "server/family_writer.h"
#include "server/metric_names.h"
#include "server/request_log.h"

namespace augur::server {
namespace {

using prometheus::MetricType;
using Families = std::vector<prometheus::MetricFamily>;

void AppendEngineRequests(const engine::EngineStats& stats, FamilyWriter* out) {
  namespace names = metric_names;
  static constexpr std::array<const char*, static_cast<size_t>(engine::Outcome::kCount)> kOutcomes =
      {"stop", "length", "eos", "cancelled", "deadline", "slow_reader", "draining", "internal"};
  out->Counter(names::kAccepted, "Requests that the engine accepted.", stats.accepted);
  out->Begin(names::kEngineEnds, "Accepted requests by how they ended.", MetricType::Counter);
  for (size_t i = 0; i < kOutcomes.size(); ++i) {
    out->Sample(static_cast<double>(stats.outcomes[i]), {{"outcome", kOutcomes[i]}});
  }
  out->Gauge(names::kQueueRequests, "Requests accepted and not running.", stats.waiting);
  out->Gauge(names::kQueueTokens, "Prompt tokens of the requests in the queue.",
             stats.waiting_tokens);
  out->Gauge(names::kRunningRequests, "Requests that hold KV blocks, paused ones included.",
             stats.running);
  out->Gauge(names::kPausedRequests, "Running requests that wait for their reader.", stats.paused);
  out->Counter(names::kPreemptions, "Times that a request gave up its KV blocks.",
               stats.preemptions);
  out->Counter(names::kRecomputedTokens,
               "Tokens computed again: after a preemption, or for a further choice.",
               stats.recomputed_tokens);
  out->Gauge(names::kWarmingRequests,
             "Running requests, resumed or with a prefix hit, that wait for what they need on the "
             "device while others step.",
             stats.warming);
  out->Histogram(names::kWarmUpSeconds, "From their admission until they may take rows.",
                 stats.warm_up_seconds);
  out->Counter(names::kSavedRequests, "Preemptions that kept everything in the host pool.",
               stats.saved);
}

void AppendTokens(const engine::EngineStats& stats, FamilyWriter* out) {
  namespace names = metric_names;
  out->Counter(names::kPromptTokens, "Prompt tokens computed in prefill.", stats.prompt_tokens);
  out->Counter(names::kCachedTokens, "Prompt tokens taken from the prefix cache.",
               stats.cached_tokens);
  out->Counter(names::kGeneratedTokens, "Tokens generated.", stats.generated_tokens);
  out->Counter(names::kPrefixQueryBlocks, "Full prompt blocks looked up in the prefix cache.",
               stats.prefix_query_blocks);
  out->Counter(names::kPrefixHitBlocks, "Blocks found there.", stats.prefix_hit_blocks);
}

void AppendBlocks(const ExportedModel& model, FamilyWriter* out) {
  namespace names = metric_names;
  const engine::EngineStats& stats = *model.stats;
  out->Begin(names::kKvBlocks,
             "Frames of the device pool (a block of 64 tokens in all layers each) by state.",
             MetricType::Gauge);
  out->Sample(static_cast<double>(stats.blocks_held), {{"state", "held"}});
  out->Sample(static_cast<double>(stats.blocks_cached), {{"state", "cached"}});
  out->Sample(static_cast<double>(stats.blocks_free), {{"state", "free"}});
  out->Gauge(names::kKvCapacityTokens, "Tokens that the KV pool holds.",
             static_cast<double>(model.num_blocks * kernels::kBlockTokens));
  out->Gauge(names::kKvCapacityBytes, "Bytes of the KV pool.",
             static_cast<double>(model.num_blocks * model.block_bytes));
  out->Gauge(names::kContextTokens, "Limit of prompt and completion of one request, in tokens.",
             static_cast<double>(model.max_context));
}

void AppendDistributions(const engine::EngineStats& stats, FamilyWriter* out) {
  namespace names = metric_names;
  out->Counter(names::kSteps, "Steps that the engine ran.", stats.steps);
  out->Histogram(names::kStepSeconds, "Time of a step.", stats.step_seconds);
  out->Histogram(names::kStepHostSeconds,
                 "Time of a step less its wait for a device: what the engine thread was busy.",
                 stats.step_host_seconds);
  out->Histogram(names::kBatchSize, "Requests in a step.", stats.batch_size);
  out->Histogram(names::kStepTokens, "Tokens computed in a step.", stats.step_tokens);
  out->Histogram(names::kQueueSeconds, "Time from arrival to admission.", stats.queue_seconds);
  out->Histogram(names::kTimeToFirstToken, "Time from arrival to the first token.",
                 stats.first_token_seconds);
  out->Histogram(names::kInterToken, "Time between tokens of a request.",
                 stats.inter_token_seconds);
  out->Histogram(names::kRequestSeconds, "Time from arrival to the end of a request that finished.",
                 stats.request_seconds);
  out->Histogram(names::kRequestPromptTokens, "Prompt tokens of a request.",
                 stats.request_prompt_tokens);
  out->Histogram(names::kRequestGeneratedTokens, "Generated tokens of a request.",
                 stats.request_generated_tokens);
}

void AppendUnaryCalls(const FrontStats& front, FamilyWriter* out) {
  out->Begin(metric_names::kUnaryCalls, "Calls beside completions by method and gRPC status.",
             MetricType::Counter);
  for (size_t method = 0; method < front.unary.size(); ++method) {
    for (size_t code = 0; code < kStatusCodes; ++code) {
      const uint64_t calls = front.unary[method][code];
      if (code != 0 && calls == 0) continue;
      out->Sample(static_cast<double>(calls),
                  {{"method", UnaryMethodName(static_cast<UnaryMethod>(method))},
                   {"code", StatusCodeName(static_cast<int>(code))}});
    }
  }
}

}  // namespace

void AppendFrontFamilies(const FrontStats& front, const std::string& version, Families* families) {
  namespace names = metric_names;
  FamilyWriter out({}, families);
  out.Begin(names::kBuildInfo, "Version of this daemon; the value is 1.", MetricType::Gauge);
  out.Sample(1, {{"version", version}});
  out.Gauge(names::kReady, "1 when readiness is SERVING.", static_cast<double>(front.ready));
  out.Begin(names::kRequests,
            "Completions by gRPC status and finish reason, refused ones included.",
            MetricType::Counter);
  for (size_t code = 0; code < front.requests.size(); ++code) {
    for (size_t reason = 0; reason < front.requests[code].size(); ++reason) {
      // OK has a finish reason, everything else has none.
      if ((code == 0) != (reason != static_cast<size_t>(EndReason::kNone))) continue;
      out.Sample(static_cast<double>(front.requests[code][reason]),
                 {{"code", StatusCodeName(static_cast<int>(code))},
                  {"finish_reason", EndReasonName(static_cast<EndReason>(reason))}});
    }
  }
  AppendUnaryCalls(front, &out);
  out.Counter(names::kRefusedConnections,
              "Connections closed at once: the limit on open files was reached.",
              RefusedConnections());
  out.Gauge(names::kOpenStreams, "Completions that have not ended.",
            static_cast<double>(front.open_streams));
  out.Counter(names::kReaderPauses, "Times that a stream waited for its reader.",
              front.reader_pauses);
  out.Gauge(names::kIntakeRequests, "Calls that wait to be tokenized.",
            static_cast<double>(front.intake_requests));
  out.Gauge(names::kIntakeBytes, "Text and ids of those calls, in bytes.",
            static_cast<double>(front.intake_bytes));
}

void AppendEngineFamilies(const ExportedModel& model, Families* families) {
  FamilyWriter out({{"model_name", model.name}}, families);
  AppendEngineRequests(*model.stats, &out);
  AppendTokens(*model.stats, &out);
  AppendBlocks(model, &out);
  AppendDistributions(*model.stats, &out);
  if (model.tiers != nullptr) AppendTierFamilies(model, &out);
}

void AppendRouterFamilies(const ExportedModel& model, Families* families) {
  namespace names = metric_names;
  const engine::EngineStats& stats = *model.stats;
  FamilyWriter out({{"model_name", model.name}, {"engine", "0"}}, families);
  out.Gauge(names::kVllmRunning, "Requests in execution batches.",
            static_cast<double>(stats.running));
  out.Gauge(names::kVllmWaiting, "Requests waiting to be processed.",
            static_cast<double>(stats.waiting));
  const double usage = model.num_blocks == 0 ? 0
                                             : static_cast<double>(stats.blocks_held) /
                                                   static_cast<double>(model.num_blocks);
  out.Gauge(names::kVllmKvUsage,
            "KV cache usage, 1 is full; blocks that are only cached do not count.", usage);
  out.Begin(names::kVllmCacheConfig, "Shape of the KV cache; the value is 1.", MetricType::Gauge);
  out.Sample(1, {{"block_size", absl::StrCat(kernels::kBlockTokens)},
                 {"num_gpu_blocks", absl::StrCat(model.num_blocks)}});
  out.Begin(names::kVllmLora, "LoRA adapters; this daemon serves none.", MetricType::Gauge);
  out.Sample(0, {{"max_lora", "0"}, {"waiting_lora_adapters", ""}, {"running_lora_adapters", ""}});
}

}  // namespace augur::server
