#include "loadtest/completion_client.h"

#include <chrono>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace augur::loadtest {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kUnaryLimitS = 60;

double MillisecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::unique_ptr<v1::Completions::Stub> NewStub(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A long prefill is silent: notice a daemon that died meanwhile.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  return v1::Completions::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

v1::CompleteRequest RequestOf(const CompletionQuery& query) {
  v1::CompleteRequest request;
  request.set_text(query.prompt);
  request.set_cache_salt(query.cache_salt);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_sampling()->set_seed(query.seed);
  request.mutable_stopping()->set_max_tokens(query.max_tokens);
  request.mutable_stopping()->add_stop("\n");
  request.mutable_attention()->set_policy(query.policy);
  request.mutable_attention()->set_prefill_policy(query.prefill_policy);
  if (query.top_k_blocks) request.mutable_attention()->set_top_k_blocks(*query.top_k_blocks);
  if (query.value_samples) {
    const bool sampled = *query.value_samples > 0;
    request.mutable_attention()->set_value_mode(sampled ? v1::VALUE_MODE_SAMPLED
                                                        : v1::VALUE_MODE_EXACT);
    if (sampled) request.mutable_attention()->set_value_samples(*query.value_samples);
  }
  return request;
}

}  // namespace

// A context that Cancel knows of.
class CompletionClient::OpenCall {
 public:
  OpenCall(CompletionClient* client, double limit_s) : client_(client) {
    if (limit_s > 0) {
      context_.set_deadline(std::chrono::system_clock::now() +
                            std::chrono::microseconds(static_cast<int64_t>(limit_s * 1e6)));
    }
    const std::lock_guard lock(client_->mutex_);
    client_->calls_.insert(&context_);
    if (client_->cancelled_) context_.TryCancel();
  }
  ~OpenCall() {
    const std::lock_guard lock(client_->mutex_);
    client_->calls_.erase(&context_);
  }
  OpenCall(const OpenCall&) = delete;
  OpenCall& operator=(const OpenCall&) = delete;

  grpc::ClientContext* context() { return &context_; }

 private:
  CompletionClient* const client_;
  grpc::ClientContext context_;
};

CompletionClient::CompletionClient(std::string address, double call_limit_s)
    : address_(std::move(address)), call_limit_s_(call_limit_s), stub_(NewStub(address_)) {}

absl::Status CompletionClient::ToStatus(const grpc::Status& status) const {
  if (status.ok()) return absl::OkStatus();
  std::string message = absl::Utf8SafeCEscape(status.error_message());
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    message = absl::StrCat("--address: ", address_, ": ", message);
  }
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), message);
}

absl::StatusOr<v1::GetModelResponse> CompletionClient::GetModel() {
  OpenCall call(this, kUnaryLimitS);
  v1::GetModelResponse response;
  const grpc::Status status = stub_->GetModel(call.context(), v1::GetModelRequest(), &response);
  if (!status.ok()) return ToStatus(status);
  return response;
}

absl::StatusOr<int64_t> CompletionClient::CountTokens(const std::string& text) {
  OpenCall call(this, kUnaryLimitS);
  v1::TokenizeRequest request;
  request.set_text(text);
  v1::TokenizeResponse response;
  const grpc::Status status = stub_->Tokenize(call.context(), request, &response);
  if (!status.ok()) return ToStatus(status);
  return response.ids_size();
}

absl::StatusOr<std::vector<uint32_t>> CompletionClient::Tokenize(const std::string& text) {
  OpenCall call(this, kUnaryLimitS);
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_add_special_tokens(false);
  v1::TokenizeResponse response;
  const grpc::Status status = stub_->Tokenize(call.context(), request, &response);
  if (!status.ok()) return ToStatus(status);
  return std::vector<uint32_t>(response.ids().begin(), response.ids().end());
}

absl::StatusOr<CompletionAnswer> CompletionClient::Complete(const CompletionQuery& query) {
  const v1::CompleteRequest request = RequestOf(query);
  OpenCall call(this, call_limit_s_);
  const Clock::time_point start = Clock::now();
  const auto reader = stub_->Complete(call.context(), request);
  CompletionAnswer answer;
  bool any_token = false;
  bool finished = false;
  for (v1::CompleteResponse response; reader->Read(&response);) {
    if (!any_token && (response.has_chunk() || response.has_finished())) {
      any_token = true;
      answer.first_token_ms = MillisecondsSince(start);
    }
    if (response.has_chunk()) answer.text += response.chunk().text();
    if (response.has_finished()) {
      finished = true;
      answer.prompt_tokens = response.finished().usage().prompt_tokens();
      answer.cached_tokens = response.finished().usage().cached_tokens();
      answer.completion_tokens = response.finished().usage().completion_tokens();
    }
  }
  const grpc::Status status = reader->Finish();
  answer.total_ms = MillisecondsSince(start);
  if (!status.ok()) return ToStatus(status);
  if (!finished) return absl::InternalError("the stream ended well but without a result");
  return answer;
}

absl::StatusOr<std::vector<double>> CompletionClient::ScorePrompt(const std::vector<uint32_t>& ids,
                                                                  const AttentionVariant& variant) {
  v1::CompleteRequest request;
  *request.mutable_token_ids()->mutable_ids() = {ids.begin(), ids.end()};
  request.set_bypass_prefix_cache(true);
  request.mutable_stopping()->set_max_tokens(0);
  request.mutable_output()->set_prompt_logprobs(0);
  request.mutable_attention()->set_policy(variant.policy);
  request.mutable_attention()->set_prefill_policy(variant.prefill);
  if (variant.top_k_blocks) request.mutable_attention()->set_top_k_blocks(*variant.top_k_blocks);
  OpenCall call(this, call_limit_s_);
  const auto reader = stub_->Complete(call.context(), request);
  std::vector<double> logprobs;
  for (v1::CompleteResponse response; reader->Read(&response);) {
    if (!response.has_prompt_tokens()) continue;
    for (const v1::TokenLogprobs& token : response.prompt_tokens().logprobs()) {
      logprobs.push_back(token.chosen().logprob());
    }
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return ToStatus(status);
  if (logprobs.size() == ids.size()) return logprobs;
  return absl::InternalError(absl::StrCat(
      "expected ", ids.size(), " log probabilities of a prompt, found ", logprobs.size()));
}

void CompletionClient::Cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : calls_) context->TryCancel();
}

}  // namespace augur::loadtest
