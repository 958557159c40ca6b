#include "tests/loadtest/fake_completions.h"

#include <algorithm>
#include <cstdlib>

namespace augur::tests {
namespace {

constexpr auto kCancelPoll = std::chrono::milliseconds(20);

std::chrono::steady_clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

int NumberOf(const std::string& request_id) {
  const size_t dash = request_id.rfind('-');
  return dash == std::string::npos ? -1 : std::atoi(request_id.c_str() + dash + 1);
}

uint32_t PromptTokens(const v1::CompleteRequest& request) {
  return request.has_token_ids() ? static_cast<uint32_t>(request.token_ids().ids_size()) : 1;
}

}  // namespace

FakeCompletions::FakeCompletions(FakeScript script) : script_(std::move(script)) {
  if (script_.slots > 0) now_serving_ = static_cast<uint64_t>(script_.slots);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  if (server_ != nullptr && port != 0) address_ = "127.0.0.1:" + std::to_string(port);
}

FakeCompletions::~FakeCompletions() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_all();
  if (server_ != nullptr) server_->Shutdown();
}

bool FakeCompletions::WaitUntil(Clock::time_point at, const grpc::ServerContext* context) {
  std::unique_lock lock(mutex_);
  while (!ending_ && Clock::now() < at) {
    if (context->IsCancelled()) return false;
    wake_.wait_until(lock, std::min(at, Clock::now() + kCancelPoll));
  }
  return !ending_;
}

FakeCompletions::Clock::time_point FakeCompletions::AfterStall(Clock::time_point at) const {
  const Clock::time_point from = *first_ + Seconds(script_.stall_from_s);
  const Clock::time_point to = *first_ + Seconds(script_.stall_to_s);
  return at >= from && at < to ? to : at;
}

FakeCompletions::Clock::time_point FakeCompletions::TakeSlot() {
  const Clock::time_point arrival = Clock::now();
  std::unique_lock lock(mutex_);
  if (!first_) first_ = arrival;
  if (script_.slots == 0) return arrival;
  const uint64_t ticket = next_ticket_++;
  if (ticket < now_serving_) return arrival;
  wake_.wait(lock, [&] { return ending_ || ticket < now_serving_; });
  return Clock::now();
}

void FakeCompletions::GiveSlot() {
  const std::lock_guard lock(mutex_);
  ++now_serving_;
  wake_.notify_all();
}

grpc::Status FakeCompletions::Complete(grpc::ServerContext* context,
                                       const v1::CompleteRequest* request,
                                       grpc::ServerWriter<v1::CompleteResponse>* writer) {
  if (request->request_id().rfind("load-" + std::to_string(kWarmUpStage) + "-", 0) == 0) {
    v1::CompleteResponse response;
    response.mutable_finished()->mutable_usage();
    writer->Write(response);
    return grpc::Status::OK;
  }
  const Clock::time_point begin = TakeSlot();
  grpc::Status status = Serve(begin, *request, context, writer);
  GiveSlot();
  return status;
}

bool FakeCompletions::SendChunks(int count, uint32_t choices, Clock::time_point begin,
                                 grpc::ServerContext* context,
                                 grpc::ServerWriter<v1::CompleteResponse>* writer) {
  for (int i = 0; i < count; ++i) {
    for (uint32_t choice = 0; choice < choices; ++choice) {
      const auto due = begin + Seconds(script_.first_token_s + script_.gap_s * i +
                                       script_.choice_lag_s * choice);
      if (!WaitUntil(AfterStall(due), context)) return false;
      v1::CompleteResponse response;
      response.mutable_chunk()->set_index(choice);
      response.mutable_chunk()->set_text(script_.text);
      response.mutable_chunk()->set_num_tokens(script_.tokens_per_chunk);
      if (!writer->Write(response)) return false;
    }
  }
  return true;
}

grpc::Status FakeCompletions::Serve(Clock::time_point begin, const v1::CompleteRequest& request,
                                    grpc::ServerContext* context,
                                    grpc::ServerWriter<v1::CompleteResponse>* writer) {
  const auto found = script_.fates.find(NumberOf(request.request_id()));
  const FakeFate fate = found == script_.fates.end() ? FakeFate() : found->second;
  const grpc::Status gone(grpc::StatusCode::CANCELLED, "gone");
  if (!WaitUntil(AfterStall(begin + Seconds(script_.accept_s)), context)) return gone;
  if (fate.kind == FakeFate::Kind::kRefused) return {fate.code, "refused as told"};
  v1::CompleteResponse response;
  response.mutable_accepted()->set_prompt_tokens(PromptTokens(request));
  if (!writer->Write(response)) return gone;

  const bool whole = fate.kind == FakeFate::Kind::kServed;
  const uint32_t choices = request.sampling().has_n() ? request.sampling().n() : 1;
  const int chunks = whole ? script_.chunks : fate.chunks_before;
  if (!SendChunks(chunks, choices, begin, context, writer)) return gone;
  if (fate.kind == FakeFate::Kind::kFails) return {fate.code, "failed as told"};
  if (fate.kind == FakeFate::Kind::kNoFinish) return grpc::Status::OK;
  if (fate.kind == FakeFate::Kind::kNeverEnds) {
    WaitUntil(Clock::time_point::max(), context);
    return gone;
  }
  for (uint32_t choice = 0; choice < choices; ++choice) {
    response.Clear();
    v1::Finished* finished = response.mutable_finished();
    finished->set_index(choice);
    finished->set_finish_reason(v1::FINISH_REASON_LENGTH);
    finished->mutable_usage()->set_prompt_tokens(PromptTokens(request));
    finished->mutable_usage()->set_completion_tokens(static_cast<uint32_t>(script_.chunks) *
                                                     script_.tokens_per_chunk);
    *finished->mutable_timings() = script_.timings;
    writer->Write(response);
  }
  return grpc::Status::OK;
}

}  // namespace augur::tests
