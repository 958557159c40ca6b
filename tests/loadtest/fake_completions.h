// A completions server in this process that does what it is told when it is told: for tests of
// what a client measures.
//
// Every call waits until each of its moments, counted from its arrival. During the stall nothing is
// sent: what falls into it comes at its end. With `slots`, so many calls are served at a time, in
// the order of arrival, and the others' time begins when their turn comes.
//
// Requests of stage kWarmUpStage ("load-9-...") are answered at once.
//
// Thread: calls are served by threads of gRPC; made and destroyed by one. Ownership: owns its
// server; calls that never end are ended with it. Units: seconds. Failure: address() is empty where
// it could not listen.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "augur/v1/completions.grpc.pb.h"

namespace augur::tests {

struct FakeFate {
  enum class Kind { kServed, kRefused, kFails, kNoFinish, kNeverEnds } kind = Kind::kServed;
  grpc::StatusCode code = grpc::StatusCode::OK;  // of kRefused and kFails
  int chunks_before = 0;                         // of kFails, kNoFinish, kNeverEnds
};

struct FakeScript {
  double accept_s = 0;
  double first_token_s = 0.1;
  double gap_s = 0.1;
  int chunks = 5;
  uint32_t tokens_per_chunk = 1;
  double choice_lag_s = 0;  // each choice of a request behind the one before it
  int slots = 0;            // 0: all at once
  double stall_from_s = 0;  // since the first call's arrival
  double stall_to_s = 0;
  std::string text = "x";              // of every chunk
  v1::Timings timings = {};            // as they are to be told
  std::map<int, FakeFate> fates = {};  // by the number at the end of request_id
};

class FakeCompletions : public v1::Completions::Service {
 public:
  static constexpr int kWarmUpStage = 9;

  explicit FakeCompletions(FakeScript script);
  ~FakeCompletions() override;
  const std::string& address() const { return address_; }

  grpc::Status Complete(grpc::ServerContext* context, const v1::CompleteRequest* request,
                        grpc::ServerWriter<v1::CompleteResponse>* writer) override;

 private:
  using Clock = std::chrono::steady_clock;

  // False where the call was cancelled or the server ends.
  bool WaitUntil(Clock::time_point at, const grpc::ServerContext* context);
  Clock::time_point AfterStall(Clock::time_point at) const;
  Clock::time_point TakeSlot();
  void GiveSlot();
  grpc::Status Serve(Clock::time_point begin, const v1::CompleteRequest& request,
                     grpc::ServerContext* context,
                     grpc::ServerWriter<v1::CompleteResponse>* writer);
  bool SendChunks(int count, uint32_t choices, Clock::time_point begin,
                  grpc::ServerContext* context, grpc::ServerWriter<v1::CompleteResponse>* writer);

  const FakeScript script_;
  std::string address_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ending_ = false;                     // under mutex_
  std::optional<Clock::time_point> first_;  // under mutex_ until it is set
  uint64_t next_ticket_ = 0;                // under mutex_
  uint64_t now_serving_ = 0;                // tickets below it have their turn; under mutex_
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace augur::tests
