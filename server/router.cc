#include "server/router.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model_runner.h"

namespace augur::server {

Router::Router(const Deployment* deployment, const engine::Tokenizer* tokenizer,
               EngineEntry* engine, TextIntake* intake, const memory::Clock* clock)
    : deployment_(deployment),
      tokenizer_(tokenizer),
      engine_(engine),
      intake_(intake),
      clock_(clock),
      block_key_secret_(memory::DrawBlockKeySecret()) {}

absl::Status Router::Route(ValidatedRequest validated, std::shared_ptr<engine::Request> request) {
  request->sampling = validated.sampling;
  if (!validated.has_seed) request->sampling.seed = DrawRandom64();
  request->stopping = std::move(validated.stopping);
  request->output = validated.output;
  request->attention = validated.attention;
  request->num_choices = validated.num_choices;
  request->priority = validated.priority;
  const auto bytes = static_cast<int64_t>(validated.text.size() +
                                          validated.token_ids.size() * sizeof(engine::TokenId));
  // shared: std::function must be copyable, the text should not be copied.
  auto waiting = std::make_shared<const ValidatedRequest>(std::move(validated));
  if (intake_->TryPost(bytes, [this, waiting, request] { EncodeAndSubmit(*waiting, request); })) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError("too many requests wait to be read, try again later");
}

void Router::EncodeAndSubmit(const ValidatedRequest& validated,
                             const std::shared_ptr<engine::Request>& request) {
  absl::Status status = CheckStillWanted(*request);
  if (status.ok()) status = FillPrompt(validated, request.get());
  if (status.ok()) status = CheckStillWanted(*request);
  if (status.ok()) status = engine_->Submit(request);
  if (!status.ok()) request->sink->OnError(status);
}

absl::Status Router::FillPrompt(const ValidatedRequest& validated, engine::Request* request) const {
  request->prompt = validated.is_text ? tokenizer_->Encode(validated.text, validated.encode)
                                      : validated.token_ids;
  if (request->prompt.empty()) {
    return absl::InvalidArgumentError(
        "text: expected at least 1 token, found 0 after tokenization");
  }
  absl::Status status = CheckFitsContext(static_cast<int64_t>(request->prompt.size()),
                                         request->stopping.max_tokens, *deployment_);
  if (!status.ok()) return status;
  request->block_keys = MakeKeys(validated, *request);
  return absl::OkStatus();
}

std::vector<memory::BlockKey> Router::MakeKeys(const ValidatedRequest& validated,
                                               const engine::Request& request) const {
  const engine::AttentionChoice& attention = request.attention;
  // InfiniGen's keys are chosen anew for each request.
  if (attention.decode == engine::AttentionPolicy::kInfinigen) return {};
  const bool all_dense = static_cast<int>(request.prompt.size()) < attention.dense_len;
  const int rope = engine::RopeVariantOf(
      deployment_->short_rope_context,
      static_cast<int64_t>(request.prompt.size()) + request.stopping.max_tokens);
  const std::string variant = absl::StrCat(deployment_->kv_variant, "/rope", rope, "/",
                                           attention.Fingerprint(), all_dense ? "/short" : "");
  const bool shared = deployment_->prefix_cache && !validated.bypass_prefix_cache;
  if (shared) {
    return memory::MakeBlockKeys(block_key_secret_, variant, validated.cache_salt, request.prompt);
  }
  if (request.num_choices == 1) return {};
  // Choices share their prompt under keys that nobody else can have: of a secret of their own.
  return memory::MakeBlockKeys(memory::DrawBlockKeySecret(), variant, "", request.prompt);
}

// A client that left, or a deadline that passed, while the text waited its turn costs no more work.
absl::Status Router::CheckStillWanted(const engine::Request& request) const {
  if (request.cancelled.load()) return absl::CancelledError("cancelled by the client");
  if (clock_->NowNs() >= request.deadline_ns) {
    return absl::DeadlineExceededError("the deadline passed before the prompt was read");
  }
  return absl::OkStatus();
}

uint64_t DrawRandom64() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace augur::server
