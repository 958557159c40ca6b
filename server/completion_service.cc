#include "server/completion_service.h"

#include <grpc/support/time.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/request_log.h"
#include "server/request_validation.h"
#include "server/wire_message.h"

namespace augur::server {
namespace {

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status ShuttingDownError() { return absl::UnavailableError("this server is shutting down"); }

absl::Status CheckResponseSize(const char* field, size_t bytes) {
  if (bytes <= static_cast<size_t>(kMaxResponseBytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": the answer would have ", bytes,
                                                 " bytes, the limit is ", kMaxResponseBytes));
}

absl::StatusOr<v1::TokenizeResponse> TokenizeText(const v1::TokenizeRequest& request,
                                                  const ServedModel& model) {
  engine::EncodeOptions options;
  options.add_special_tokens = !request.has_add_special_tokens() || request.add_special_tokens();
  options.parse_special = !request.has_parse_special() || request.parse_special();
  v1::TokenizeResponse response;
  for (const engine::TokenId id : model.tokenizer->Encode(request.text(), options)) {
    response.add_ids(static_cast<uint32_t>(id));
    response.add_tokens(model.tokenizer->TokenBytes(id));
  }
  response.set_max_context(static_cast<uint32_t>(model.deployment.max_context));
  absl::Status status = CheckResponseSize("text", response.ByteSizeLong());
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<v1::DetokenizeResponse> DetokenizeIds(const v1::DetokenizeRequest& request,
                                                     const ServedModel& model) {
  const std::vector<engine::TokenId> ids(request.ids().begin(), request.ids().end());
  const bool skip = !request.has_skip_special_tokens() || request.skip_special_tokens();
  v1::DetokenizeResponse response;
  response.set_text(model.tokenizer->Decode(ids, skip));
  absl::Status status = CheckResponseSize("ids", response.ByteSizeLong());
  if (!status.ok()) return status;
  return response;
}

}  // namespace

int64_t DeadlineNs(gpr_timespec deadline, const memory::Clock& clock) {
  constexpr int64_t kForever = 100LL * 365 * 86400;  // seconds; beyond it sums could overflow
  if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) return engine::kNoDeadline;
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  if (left.tv_sec > kForever) return engine::kNoDeadline;
  if (left.tv_sec < -kForever) return 0;
  return clock.NowNs() + left.tv_sec * memory::kNsPerSecond + left.tv_nsec;
}

// Copied into the intake's job; ended once.
class CompletionService::UnaryCall {
 public:
  UnaryCall(const CompletionService* service, UnaryMethod method,
            grpc::CallbackServerContext* context, size_t bytes)
      : service_(service),
        context_(context),
        reactor_(context->DefaultReactor()),
        start_ns_(service->clock_->NowNs()) {
    record_.method = method;
    record_.peer = context->peer();
    record_.bytes = static_cast<int64_t>(bytes);
  }

  grpc::ServerUnaryReactor* reactor() const { return reactor_; }
  bool cancelled() const { return context_->IsCancelled(); }

  // The call may be gone when it returns.
  void Finish(const absl::Status& status) const {
    CallRecord record = record_;
    record.code = static_cast<int>(status.code());
    record.message = std::string(status.message());
    record.total_ms = static_cast<double>(service_->clock_->NowNs() - start_ns_) / memory::kNsPerMs;
    service_->refusals_.stats->CountUnary(record.method, record.code);
    LogCall(record);
    reactor_->Finish(ToGrpc(status));
  }

 private:
  const CompletionService* service_;
  grpc::CallbackServerContext* context_;  // lives until the reactor is finished
  grpc::ServerUnaryReactor* reactor_;
  int64_t start_ns_;
  CallRecord record_;
};

// A call whose client has left, or that a drain finds still waiting, is ended without an answer:
// nobody else shall wait for it.
template <typename Answer>
void CompletionService::AnswerLater(const ServedModel& model, int64_t bytes, const UnaryCall& call,
                                    grpc::ByteBuffer* response, Answer answer) {
  const bool posted =
      model.intake->TryPost(bytes, [this, call, response, answer = std::move(answer)] {
        if (call.cancelled()) return call.Finish(absl::CancelledError("cancelled by the client"));
        if (draining_.load()) return call.Finish(ShuttingDownError());
        const auto result = answer();
        if (result.ok()) *response = SerializeMessage(*result);
        call.Finish(result.status());
      });
  if (!posted) call.Finish(absl::ResourceExhaustedError("too many requests wait to be read"));
}

CompletionService::CompletionService(const StreamEnvironment& refusals, const memory::Clock* clock)
    : refusals_(refusals), clock_(clock) {}

void CompletionService::Open(const ServedModel* model) { model_.store(model); }

void CompletionService::StopAdmitting() { draining_.store(true); }

grpc::ServerWriteReactor<grpc::ByteBuffer>* CompletionService::Complete(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const ServedModel* model = model_.load();
  const auto stream =
      CompletionStream::Create(context, model == nullptr ? &refusals_ : &model->streams);
  absl::Status status;
  if (draining_.load()) {
    status = ShuttingDownError();
  } else if (model == nullptr) {
    status = absl::UnavailableError("the model is still loading");
  } else {
    status = Admit(context, *request, *model, stream);
  }
  // The stream keeps itself until gRPC is done with it.
  if (status.ok()) {
    stream->Open();
  } else {
    stream->Refuse(status);
  }
  return stream.get();
}

absl::Status CompletionService::Admit(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer& bytes, const ServedModel& model,
                                      const std::shared_ptr<CompletionStream>& stream) {
  // shared: see engine/request.h
  const auto request = std::make_shared<engine::Request>();
  request->arrival_ns = clock_->NowNs();
  request->deadline_ns = DeadlineNs(context->raw_deadline(), *clock_);
  if (request->deadline_ns == engine::kNoDeadline && model.default_deadline_ns > 0) {
    request->deadline_ns = request->arrival_ns + model.default_deadline_ns;
  }
  v1::CompleteRequest message;
  absl::Status status = ParseMessage(bytes, &message);
  if (!status.ok()) return status;
  stream->SetLabel(message.request_id());
  absl::StatusOr<ValidatedRequest> validated = Validate(message, model.deployment);
  if (!validated.ok()) return validated.status();
  request->id = validated->request_id;
  if (request->id.empty()) request->id = absl::StrFormat("augur-%016x", DrawRandom64());
  request->sink = stream;
  stream->Attach(request);
  return model.router->Route(*std::move(validated), request);
}

absl::Status CompletionService::CheckServingText(const ServedModel* model) const {
  if (draining_.load()) return ShuttingDownError();
  if (model == nullptr) return absl::UnavailableError("the model is still loading");
  if (model->tokenizer == nullptr) {
    return absl::FailedPreconditionError("this deployment has no tokenizer");
  }
  return absl::OkStatus();
}

grpc::ServerUnaryReactor* CompletionService::Tokenize(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  const UnaryCall call(this, UnaryMethod::kTokenize, context, request->Length());
  const ServedModel* model = model_.load();
  // shared: std::function must be copyable
  const auto message = std::make_shared<v1::TokenizeRequest>();
  absl::Status status = CheckServingText(model);
  if (status.ok()) status = ParseMessage(*request, message.get());
  // The answer repeats the text token by token.
  if (status.ok()) status = CheckResponseSize("text", message->text().size());
  if (!status.ok()) {
    call.Finish(status);
    return call.reactor();
  }
  AnswerLater(*model, static_cast<int64_t>(message->text().size()), call, response,
              [message, model] { return TokenizeText(*message, *model); });
  return call.reactor();
}

grpc::ServerUnaryReactor* CompletionService::Detokenize(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request,
                                                        grpc::ByteBuffer* response) {
  const UnaryCall call(this, UnaryMethod::kDetokenize, context, request->Length());
  const ServedModel* model = model_.load();
  // shared: std::function must be copyable
  const auto message = std::make_shared<v1::DetokenizeRequest>();
  absl::Status status = CheckServingText(model);
  if (status.ok()) status = ParseMessage(*request, message.get());
  if (status.ok() && message->ids_size() > kMaxDetokenizeIds) {
    status = absl::InvalidArgumentError(absl::StrCat("ids: expected at most ", kMaxDetokenizeIds,
                                                     " ids, found ", message->ids_size()));
  }
  if (status.ok()) status = CheckTokenIds(message->ids(), "ids", model->deployment);
  if (!status.ok()) {
    call.Finish(status);
    return call.reactor();
  }
  AnswerLater(*model, message->ids_size() * int64_t{4}, call, response,
              [message, model] { return DetokenizeIds(*message, *model); });
  return call.reactor();
}

namespace {

void DescribeKv(const ServedModel& model, v1::KvInfo* kv) {
  const KvDescription& known = model.deployment.kv;
  const engine::EngineStats& stats = *model.engine_stats;
  kv->set_residency(known.residency);
  kv->set_page_bytes(static_cast<uint64_t>(known.page_bytes));
  kv->set_host_page_bytes(static_cast<uint64_t>(known.host_page_bytes));
  kv->set_slots(static_cast<uint32_t>(known.slots));
  kv->set_full_context(known.full_context);
  const auto add = [kv](const char* tier, int64_t bytes, int64_t held, int64_t cached,
                        int64_t free) {
    v1::KvPool* pool = kv->add_pools();
    pool->set_tier(tier);
    pool->set_unit_bytes(static_cast<uint64_t>(bytes));
    pool->set_total(static_cast<uint64_t>(held + cached + free));
    pool->set_held(static_cast<uint64_t>(held));
    pool->set_cached(static_cast<uint64_t>(cached));
    pool->set_free(static_cast<uint64_t>(free));
  };
  add("device", known.frame_bytes, stats.blocks_held, stats.blocks_cached, stats.blocks_free);
  if (stats.host_blocks_total == 0) return;
  add("host", known.host_block_bytes, stats.host_blocks_held, stats.host_blocks_cached,
      stats.host_blocks_free);
}

}  // namespace

grpc::ServerUnaryReactor* CompletionService::GetModel(grpc::CallbackServerContext* context,
                                                      const v1::GetModelRequest* request,
                                                      v1::GetModelResponse* response) {
  const UnaryCall call(this, UnaryMethod::kGetModel, context, request->ByteSizeLong());
  const ServedModel* model = model_.load();
  if (model == nullptr) {
    call.Finish(absl::UnavailableError("the model is still loading"));
    return call.reactor();
  }
  const Deployment& deployment = model->deployment;
  response->set_model(deployment.served_name);
  response->set_family(deployment.family);
  response->set_vocab_size(static_cast<uint32_t>(deployment.vocab_size));
  response->set_max_context(static_cast<uint32_t>(deployment.max_context));
  response->set_num_parameters(static_cast<uint64_t>(deployment.num_parameters));
  response->set_dtype(deployment.dtype);
  for (const engine::TokenId id : deployment.eos_token_ids) {
    response->add_eos_token_ids(static_cast<uint32_t>(id));
  }
  response->set_text(deployment.has_tokenizer);
  for (const engine::AttentionPolicy policy : deployment.policies) {
    response->add_policies(WireOf(policy));
  }
  response->set_version(deployment.version);
  if (request->kv()) DescribeKv(*model, response->mutable_kv());
  call.Finish(absl::OkStatus());
  return call.reactor();
}

}  // namespace augur::server
