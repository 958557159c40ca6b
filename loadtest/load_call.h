// One streaming Complete call on a completion queue. It notes when what came and reads on, until
// its status is there.
//
// One operation at a time is under way, and the call itself is its tag: the thread that polls the
// queue hands it to Proceed. TryCancel may come from any thread at any time before the end.
//
// Thread: Start, Proceed and Resume by one thread at a time. Ownership: the run owns the call and
// deletes it once Proceed said kEnded. Units: seconds since Start's epoch. Failure: the call's
// status is in the record, whatever it is.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "augur/v1/completions.grpc.pb.h"
#include "loadtest/request_record.h"
#include "loadtest/workload_plan.h"

namespace augur::loadtest {

using LoadClock = std::chrono::steady_clock;

struct LoadCallOptions {
  double call_limit_s = 0;  // gRPC deadline where none is planned; 0: none
  bool keep_text = false;
  // As RequestSource::Answers; text is kept until it was compared.
  const std::vector<std::string>* answers = nullptr;
};

class LoadCall {
 public:
  enum class Next {
    kWait,   // for the queue
    kPause,  // nothing is under way: Resume in read_pause_s
    kEnded,
  };

  LoadCall(const PlannedRequest& planned, v1::CompleteRequest request, LoadCallOptions options);
  LoadCall(const LoadCall&) = delete;
  LoadCall& operator=(const LoadCall&) = delete;

  // Sends it now. `intended_s` unset: a closed loop, whose intended time is that of sending.
  void Start(v1::Completions::Stub* stub, grpc::CompletionQueue* queue, LoadClock::time_point epoch,
             std::optional<double> intended_s);
  Next Proceed(bool ok);
  void Resume();
  void TryCancel() { context_.TryCancel(); }

  const PlannedRequest& planned() const { return planned_; }
  // After kEnded.
  RequestRecord TakeRecord() { return std::move(record_); }

 private:
  enum class State { kStarting, kReading, kPausing, kFinishing };

  double Now() const;
  Next Read();
  void Note(const v1::CompleteResponse& response, double at_s);
  void NoteFinished(const v1::Finished& finished);

  const PlannedRequest planned_;
  const LoadCallOptions options_;
  v1::CompleteRequest request_;
  LoadClock::time_point epoch_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReader<v1::CompleteResponse>> reader_;
  v1::CompleteResponse response_;
  grpc::Status status_;
  State state_ = State::kStarting;
  bool first_read_ = true;
  RequestRecord record_;
};

}  // namespace augur::loadtest
