// The gRPC service augur.v1.Completions: parses and validates calls, hands completions to the
// router and text calls to the intake.
//
// Thread: handlers run on gRPC's threads and do no work that grows with a prompt but parsing it;
// Open and StopAdmitting from the lifecycle's thread.
// Ownership: what it is given outlives it; it outlives the gRPC server.
// Failure: a status for the call. Before Open and after StopAdmitting, completions are UNAVAILABLE.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "augur/v1/completions.grpc.pb.h"
#include "engine/engine_stats.h"
#include "engine/tokenizer/tokenizer.h"
#include "memory/base/clock.h"
#include "server/completion_stream.h"
#include "server/deployment.h"
#include "server/front_stats.h"
#include "server/router.h"
#include "server/text_intake.h"

namespace augur::server {

// No message to a client exceeds what a client accepts unless told otherwise.
inline constexpr int64_t kMaxResponseBytes = 4 << 20;
// Detokenize: ids of one call.
inline constexpr int kMaxDetokenizeIds = 1 << 20;

// What there is once a model is loaded.
struct ServedModel {
  Deployment deployment;
  const engine::Tokenizer* tokenizer = nullptr;  // null: token ids only
  const engine::EngineStats* engine_stats = nullptr;
  Router* router = nullptr;
  TextIntake* intake = nullptr;
  StreamEnvironment streams;
  int64_t default_deadline_ns = 0;  // after the arrival, where the client sets none; 0: none
};

// Text may be any bytes on the wire, so the methods that carry text take their requests raw.
using CompletionServiceBase =
    v1::Completions::WithRawCallbackMethod_Complete<v1::Completions::WithRawCallbackMethod_Tokenize<
        v1::Completions::WithRawCallbackMethod_Detokenize<
            v1::Completions::WithCallbackMethod_GetModel<v1::Completions::Service>>>>;

class CompletionService final : public CompletionServiceBase {
 public:
  // `refusals` is the environment of streams that end before there is a model (its engine is not
  // used).
  CompletionService(const StreamEnvironment& refusals, const memory::Clock* clock);

  // Serves `model` from now on.
  void Open(const ServedModel* model);
  // Calls that are under way go on.
  void StopAdmitting();

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Complete(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetModel(grpc::CallbackServerContext* context,
                                     const v1::GetModelRequest* request,
                                     v1::GetModelResponse* response) override;

 private:
  absl::Status Admit(grpc::CallbackServerContext* context, const grpc::ByteBuffer& bytes,
                     const ServedModel& model, const std::shared_ptr<CompletionStream>& stream);
  absl::Status CheckServingText(const ServedModel* model) const;
  // A call of the other methods, begun now.
  class UnaryCall;
  // Runs `answer` on the intake's threads and ends the call with what it gives.
  template <typename Answer>
  void AnswerLater(const ServedModel& model, int64_t bytes, const UnaryCall& call,
                   grpc::ByteBuffer* response, Answer answer);

  const StreamEnvironment refusals_;
  const memory::Clock* const clock_;
  std::atomic<const ServedModel*> model_{nullptr};
  std::atomic<bool> draining_{false};
};

// A gRPC deadline as an instant of `clock`, by the time that is left: wall clocks stay out of it.
int64_t DeadlineNs(gpr_timespec deadline, const memory::Clock& clock);

}  // namespace augur::server
