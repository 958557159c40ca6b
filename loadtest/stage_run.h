// One stage while it runs; load_runner.h says what happens. Part of LoadRunner.
//
// Thread: Run by one thread, which is the pacer; Cancel and progress from any. mutex_ guards what
// is named so; a call's own operations are by the thread that holds its last event. Ownership:
// owns its queues, pollers and calls; all are gone when Run returns.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <queue>
#include <thread>
#include <unordered_map>
#include <vector>

#include "loadtest/load_call.h"
#include "loadtest/load_runner.h"

namespace augur::loadtest {

class StageRun {
 public:
  using Stubs = std::vector<std::unique_ptr<v1::Completions::Stub>>;

  StageRun(const StagePlan& plan, const RequestSource& source, const RunnerOptions& options,
           const Stubs& stubs);
  ~StageRun();

  StageResult Run();
  void Cancel();
  StageProgress progress() const;

 private:
  struct Timer {
    double at_s;
    enum class Kind { kStartSlot, kCancel, kResume, kGiveUp } kind;
    uint32_t index;
    bool operator>(const Timer& other) const { return at_s > other.at_s; }
  };
  // A request on its way to being sent.
  struct Outgoing {
    const PlannedRequest* planned = nullptr;
    std::optional<double> intended_s;
  };

  double Now() const;
  LoadClock::time_point TimeOf(double at_s) const;

  void Pace();
  void Fire(const Timer& timer);
  double NextDue() const;          // under mutex_
  bool IsDone() const;             // under mutex_
  bool SendingIsOver() const;      // under mutex_
  void NoteSendingOver();          // under mutex_
  void AddTimer(Timer timer);      // under mutex_
  void GiveUp();                   // under mutex_
  void SampleInFlight(double at);  // under mutex_
  // Takes what may be sent now out of the plan or the client's queue; under mutex_.
  std::optional<Outgoing> TakeNext();
  std::unique_ptr<LoadCall> Prepare(const PlannedRequest& planned) const;
  void Send(const Outgoing& outgoing, std::unique_ptr<LoadCall> call);
  void SendArrival();

  void Poll(grpc::CompletionQueue* queue);
  void End(std::unique_ptr<LoadCall> call);

  const StagePlan& plan_;
  const RequestSource& source_;
  const RunnerOptions& options_;
  const Stubs& stubs_;
  LoadClock::time_point epoch_;
  std::vector<std::unique_ptr<grpc::CompletionQueue>> queues_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  size_t next_ = 0;               // of the plan; under mutex_
  std::deque<uint32_t> waiting_;  // open loop: due, and too many are under way; under mutex_
  uint32_t in_flight_ = 0;        // under mutex_
  uint32_t max_in_flight_ = 0;    // under mutex_
  bool stopped_ = false;          // Cancel was called; under mutex_
  bool gave_up_ = false;          // the drain limit has passed; under mutex_
  bool drain_set_ = false;        // under mutex_
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;  // under mutex_
  struct Live {
    LoadCall* call = nullptr;
    bool cancelled = false;
    bool overdue = false;
    bool interrupted = false;
  };
  std::unordered_map<uint32_t, Live> live_;  // under mutex_
  FigureCollector collector_;                // under mutex_
  std::vector<InFlightSample> samples_;      // under mutex_
  std::unique_ptr<LoadCall> prepared_;       // the pacer's: the next arrival, made ahead of time
};

}  // namespace augur::loadtest
