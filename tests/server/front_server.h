// The front on a loopback port: service, router, intake and health before an engine of the test's
// choice.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>
#include <vector>

#include "augur/v1/completions.grpc.pb.h"
#include "fake_tokenizer.h"
#include "memory/base/clock.h"
#include "server/completion_service.h"
#include "server/grpc_server.h"
#include "server/health_service.h"
#include "server/router.h"
#include "server/text_intake.h"
#include "server/wire_message.h"

namespace augur::server {

inline Deployment FakeDeployment() {
  Deployment deployment;
  deployment.served_name = "fake";
  deployment.family = "fake";
  deployment.dtype = "float32";
  deployment.version = "test";
  deployment.num_parameters = 7;
  deployment.vocab_size = FakeTokenizer::kVocabSize;
  deployment.max_context = 4096;
  deployment.max_batch = 8;
  deployment.eos_token_ids = {FakeTokenizer::kEnd};
  deployment.has_tokenizer = true;
  deployment.longest_token_bytes = 9;
  deployment.kv_variant = "fake";
  return deployment;
}

class FrontServer {
 public:
  // `engine` outlives it. With `open` false the model is still loading.
  FrontServer(EngineEntry* engine, const StreamLimits& limits,
              const TextIntakeOptions& intake_options = {}, bool open = true)
      : service_({.model = "fake", .stats = &stats, .clock = &clock, .limits = limits}, &clock) {
    SilenceProtobufLog();
    spdlog::set_level(spdlog::level::warn);  // no line for every request
    model_.deployment = FakeDeployment();
    intake_ = std::make_unique<TextIntake>(intake_options, &stats);
    router_ =
        std::make_unique<Router>(&model_.deployment, &tokenizer_, engine, intake_.get(), &clock);
    model_.tokenizer = &tokenizer_;
    model_.router = router_.get();
    model_.intake = intake_.get();
    model_.streams = {
        .model = "fake", .engine = engine, .stats = &stats, .clock = &clock, .limits = limits};
    if (open) Open();
    auto server = GrpcServer::Start({.listen = "127.0.0.1:0"}, {&service_, &health});
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub = v1::Completions::NewStub(NewChannel());
  }

  ~FrontServer() {
    server_.reset();
    intake_.reset();
  }

  void Open() { service_.Open(&model_); }
  CompletionService& service() { return service_; }
  GrpcServer& server() { return *server_; }
  TextIntake& intake() { return *intake_; }
  // Before the first call.
  void SetDefaultDeadline(int64_t ns) { model_.default_deadline_ns = ns; }
  const FakeTokenizer& tokenizer() const { return tokenizer_; }

  // A connection of its own, whose window does not grow: a reader that stops is felt after 64 KiB.
  std::shared_ptr<grpc::Channel> NewChannel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return grpc::CreateCustomChannel(server_->address(), grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  memory::SteadyClock clock;
  FrontStats stats;
  HealthService health;
  std::unique_ptr<v1::Completions::Stub> stub;

 private:
  FakeTokenizer tokenizer_;
  ServedModel model_;
  std::unique_ptr<Router> router_;
  std::unique_ptr<TextIntake> intake_;
  CompletionService service_;
  std::unique_ptr<GrpcServer> server_;
};

// What a client saw of one call.
struct Received {
  std::vector<v1::CompleteResponse> messages;
  grpc::Status status;

  std::string text() const {
    std::string all;
    for (const auto& message : messages) all += message.chunk().text();
    return all;
  }
};

inline Received ReadAll(grpc::ClientReader<v1::CompleteResponse>* reader) {
  Received received;
  v1::CompleteResponse message;
  while (reader->Read(&message)) received.messages.push_back(message);
  received.status = reader->Finish();
  return received;
}

inline Received Complete(v1::Completions::Stub* stub, const v1::CompleteRequest& request) {
  grpc::ClientContext context;
  return ReadAll(stub->Complete(&context, request).get());
}

inline v1::CompleteRequest TextRequest(const std::string& text) {
  v1::CompleteRequest request;
  request.set_text(text);
  return request;
}

}  // namespace augur::server
