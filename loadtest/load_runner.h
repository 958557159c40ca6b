// Applies a stage's plan to a daemon: sends what is planned when it is planned, reads every stream
// to its end, and counts all of them.
//
// A few connections, each a channel of its own, and a few threads that poll completion queues; the
// calling thread of Run paces what has a time: sends, cancels, slow reads, the drain limit. Calls
// are spread over connections and queues by their index. Slow readers have a connection of their
// own with small windows, so that they hold up nobody of ours.
//
// Thread: Connect and Run by one thread; Cancel and progress from any. Ownership: owns channels;
// plan and source outlive Run. Units: seconds. Failure: Connect gives Unavailable naming the
// address; Run none: what failed is in its figures.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "augur/v1/completions.grpc.pb.h"
#include "loadtest/load_figures.h"
#include "loadtest/request_record.h"
#include "loadtest/request_source.h"
#include "loadtest/workload_plan.h"

namespace augur::loadtest {

struct RunnerOptions {
  std::string address = "127.0.0.1:50051";
  int connections = 4;
  int threads = 1;             // that poll completion queues
  double call_limit_s = 600;   // of a request without a planned deadline; 0: none
  double drain_limit_s = 120;  // after the last send; then streams are given up as lost
  bool keep_records = false;   // every request's, with its text
  GoodputLimits goodput = {};
};

// How many requests were under way or waiting in the client when one was meant to be sent.
struct InFlightSample {
  double at_s = 0;
  uint32_t in_flight = 0;
};

struct StageResult {
  StageFigures figures;
  std::vector<RequestRecord> records;  // with keep_records, in the order of their ends
  std::vector<InFlightSample> in_flight;
  double client_cpu_s = 0;  // of this whole process
  bool complete = false;    // not ended by Cancel
};

struct StageProgress {
  uint64_t planned = 0;
  uint64_t sent = 0;
  uint64_t ended = 0;
  uint64_t errors = 0;
  uint64_t output_tokens = 0;  // of ended requests
  double elapsed_s = 0;
};

class StageRun;

class LoadRunner {
 public:
  explicit LoadRunner(RunnerOptions options);
  ~LoadRunner();
  LoadRunner(const LoadRunner&) = delete;
  LoadRunner& operator=(const LoadRunner&) = delete;

  // Opens all connections, so that no request pays for one.
  absl::Status Connect(double limit_s);
  StageResult Run(const StagePlan& plan, const RequestSource& source);

  // Ends the stage that runs, and all later ones.
  void Cancel();
  // Of the stage that runs; zeros between stages.
  StageProgress progress() const;

 private:
  const RunnerOptions options_;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<v1::Completions::Stub>> stubs_;  // the last one for slow readers
  mutable std::mutex mutex_;
  StageRun* running_ = nullptr;  // under mutex_
  bool cancelled_ = false;       // under mutex_
};

}  // namespace augur::loadtest
