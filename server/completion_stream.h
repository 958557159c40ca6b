// One Complete call: takes what the engine says about it and writes it to the client, as fast as
// the client reads and no faster.
//
// What the engine produces is queued under a mutex; one write is in flight at a time. Chunks that
// wait are merged, and when more waits than StreamLimits allow, the request is paused (it keeps its
// blocks and takes no step) until half of it is gone; the engine ends a request that stays paused
// too long. So a reader that stops costs its own stream and a bounded buffer.
//
// Thread: ResponseSink's calls from intake and engine threads, On* from gRPC's, Attach/Open/Refuse
// from the handler before it returns the reactor. No other thread writes before
// OnSendInitialMetadataDone (what comes earlier is queued): the rule that keeps gRPC's backlog, and
// TSan, out of it.
// Ownership: shared between gRPC (until OnDone), the request's sink and callers on their way out;
// the last to let go frees it. `context` is used only before Finish, `environment` outlives every
// stream.
// Failure: a status given to OnError or Refuse is the only end of the stream. Finish is called
// exactly once.
#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/codegen/server_callback.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "augur/v1/completions.pb.h"
#include "engine/request.h"
#include "memory/base/clock.h"
#include "server/engine_entry.h"
#include "server/front_stats.h"
#include "server/request_log.h"

namespace augur::server {

struct StreamLimits {
  int64_t buffer_bytes = 64 << 10;  // of queued messages, before the request is paused
  int64_t buffer_messages = 256;    // of queued events of a choice, merged ones counted apart
  // How long an ended stream waits for a write that makes no progress.
  int64_t linger_ns = 30'000'000'000;
  int64_t retry_pushback_ms = 1000;  // advice to a client that found the queue full
};

// What all streams share.
struct StreamEnvironment {
  std::string model;  // as told in Accepted
  EngineEntry* engine = nullptr;
  FrontStats* stats = nullptr;
  const memory::Clock* clock = nullptr;
  StreamLimits limits;
};

class CompletionStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                               public engine::ResponseSink,
                               public std::enable_shared_from_this<CompletionStream> {
 public:
  static std::shared_ptr<CompletionStream> Create(grpc::CallbackServerContext* context,
                                                  const StreamEnvironment* environment);
  ~CompletionStream() override;

  // The request whose results these are, before anyone may call the sink.
  void Attach(std::shared_ptr<engine::Request> request);
  // The label for the log, for calls that never get a request.
  void SetLabel(const std::string& request_id);
  // Sends the headers; from here on the sink ends the stream.
  void Open();
  // Ends the stream instead; RESOURCE_EXHAUSTED carries the pushback.
  void Refuse(const absl::Status& status);

  void OnAccepted(uint32_t cached_tokens) override;
  void OnProgress(const engine::PrefillProgress& progress) override;
  void OnPrompt(engine::PromptTokens tokens) override;
  void OnChunk(engine::TokenChunk chunk) override;
  void OnFinished(const engine::Completion& completion) override;
  void OnError(const absl::Status& status) override;

  void OnSendInitialMetadataDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  struct Queued {
    v1::CompleteResponse message;
    int64_t bytes = 0;
    int64_t events = 1;
  };

  CompletionStream(grpc::CallbackServerContext* context, const StreamEnvironment* environment);

  // All with mutex_ held.
  void Enqueue(v1::CompleteResponse message);
  Queued* FindMergeable(const v1::CompleteResponse& message);
  bool MergeIntoQueue(const v1::CompleteResponse& message);
  void UpdatePause();
  void DropQueue();
  void SetEnd(const absl::Status& status);
  void ArmLinger();
  bool PastDeadline() const;
  void FillRecord();

  // Without mutex_: starts the next write, or Finish, when there is one and nothing is in flight.
  void Pump();
  void CheckLinger();
  grpc::Status EndOnTheWire();

  grpc::CallbackServerContext* const context_;
  const StreamEnvironment* const environment_;
  const int64_t created_ns_;

  std::mutex mutex_;
  std::shared_ptr<CompletionStream> self_;    // shared: gRPC's claim, until OnDone
  std::shared_ptr<engine::Request> request_;  // shared: see engine/request.h; until OnDone
  std::deque<Queued> queue_;
  int64_t queued_bytes_ = 0;
  int64_t queued_events_ = 0;
  grpc::ByteBuffer in_flight_;       // touched by whoever set writing_
  std::optional<absl::Status> end_;  // set by the terminal call
  std::unique_ptr<grpc::Alarm> linger_;
  uint64_t writes_done_ = 0;
  uint64_t writes_at_linger_ = 0;
  bool started_ = false;  // headers are out, writes may follow
  bool writing_ = false;
  bool finish_called_ = false;
  bool cancelling_ = false;  // TryCancel is under way and needs the context
  bool cancelled_ = false;   // the client will read no more
  bool paused_ = false;
  bool accepted_ = false;
  RequestRecord record_;
};

}  // namespace augur::server
