#include "loadtest/stage_run.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace augur::loadtest {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

double ProcessCpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace

StageRun::StageRun(const StagePlan& plan, const RequestSource& source, const RunnerOptions& options,
                   const Stubs& stubs)
    : plan_(plan),
      source_(source),
      options_(options),
      stubs_(stubs),
      epoch_(LoadClock::now()),
      collector_(options.goodput, plan.requests.size(), options.keep_records) {
  for (int i = 0; i < options.threads; ++i) {
    queues_.push_back(std::make_unique<grpc::CompletionQueue>());
  }
}

StageRun::~StageRun() = default;

double StageRun::Now() const {
  return std::chrono::duration<double>(LoadClock::now() - epoch_).count();
}

LoadClock::time_point StageRun::TimeOf(double at_s) const {
  return epoch_ + std::chrono::duration_cast<LoadClock::duration>(
                      std::chrono::duration<double>(std::min(at_s, 1e8)));
}

StageResult StageRun::Run() {
  std::vector<std::thread> pollers;
  for (const auto& queue : queues_) {
    pollers.emplace_back([this, &queue] { Poll(queue.get()); });
  }
  const double cpu_before = ProcessCpuSeconds();
  if (plan_.open_loop && !plan_.requests.empty()) prepared_ = Prepare(plan_.requests[0]);
  {
    const std::lock_guard lock(mutex_);
    epoch_ = LoadClock::now();
    if (!plan_.open_loop) {
      for (uint32_t i = 0; i < plan_.concurrency; ++i) {
        AddTimer({plan_.ramp_s * i / plan_.concurrency, Timer::Kind::kStartSlot, i});
      }
    }
  }
  Pace();
  for (const auto& queue : queues_) queue->Shutdown();
  for (std::thread& poller : pollers) poller.join();

  StageResult result;
  result.client_cpu_s = ProcessCpuSeconds() - cpu_before;
  const std::lock_guard lock(mutex_);
  result.figures = collector_.Finish(max_in_flight_);
  result.records = collector_.TakeRecords();
  result.in_flight = std::move(samples_);
  result.complete = !stopped_;
  return result;
}

void StageRun::Pace() {
  std::unique_lock lock(mutex_);
  while (!IsDone()) {
    NoteSendingOver();
    const double due = NextDue();
    if (due > Now()) {
      if (due == kNever) {
        wake_.wait(lock);
      } else {
        wake_.wait_until(lock, TimeOf(due));
      }
      continue;
    }
    // Once the stage is over for whatever reason, nothing that is paused waits any longer.
    if (!timers_.empty() && (stopped_ || gave_up_ || timers_.top().at_s <= due)) {
      const Timer timer = timers_.top();
      timers_.pop();
      lock.unlock();
      Fire(timer);
    } else {
      lock.unlock();
      SendArrival();
    }
    lock.lock();
  }
}

double StageRun::NextDue() const {
  if (!timers_.empty() && (stopped_ || gave_up_)) return 0;
  double due = timers_.empty() ? kNever : timers_.top().at_s;
  if (plan_.open_loop && !stopped_ && !gave_up_ && next_ < plan_.requests.size()) {
    due = std::min(due, plan_.requests[next_].at_s);
  }
  return due;
}

bool StageRun::SendingIsOver() const {
  if (stopped_ || gave_up_) return true;
  if (next_ < plan_.requests.size()) {
    return !plan_.open_loop && plan_.send_limit_s > 0 && Now() >= plan_.send_limit_s;
  }
  return waiting_.empty();
}

bool StageRun::IsDone() const { return SendingIsOver() && in_flight_ == 0; }

// The drain limit begins with the last intended send: a client's queue that does not empty is given
// up too.
void StageRun::NoteSendingOver() {
  const bool all_due = plan_.open_loop ? next_ >= plan_.requests.size() : SendingIsOver();
  if (drain_set_ || !all_due) return;
  drain_set_ = true;
  AddTimer({Now() + options_.drain_limit_s, Timer::Kind::kGiveUp, 0});
}

void StageRun::AddTimer(Timer timer) {
  timers_.push(timer);
  wake_.notify_one();
}

void StageRun::GiveUp() {
  gave_up_ = true;
  waiting_.clear();
  for (auto& [index, live] : live_) {
    live.overdue = true;
    live.call->TryCancel();
  }
}

void StageRun::Fire(const Timer& timer) {
  if (timer.kind == Timer::Kind::kStartSlot) {
    std::optional<Outgoing> outgoing;
    {
      const std::lock_guard lock(mutex_);
      outgoing = TakeNext();
    }
    if (outgoing) Send(*outgoing, Prepare(*outgoing->planned));
    return;
  }
  const std::lock_guard lock(mutex_);
  if (timer.kind == Timer::Kind::kGiveUp) {
    GiveUp();
    return;
  }
  const auto found = live_.find(timer.index);
  if (found == live_.end()) return;  // it has ended before
  if (timer.kind == Timer::Kind::kCancel) {
    found->second.cancelled = true;
    found->second.call->TryCancel();
  } else {
    found->second.call->Resume();
  }
}

std::optional<StageRun::Outgoing> StageRun::TakeNext() {
  if (stopped_ || gave_up_) return std::nullopt;
  Outgoing outgoing;
  if (plan_.open_loop) {
    if (waiting_.empty()) return std::nullopt;
    if (plan_.max_in_flight > 0 && in_flight_ >= plan_.max_in_flight) return std::nullopt;
    outgoing.planned = &plan_.requests[waiting_.front()];
    outgoing.intended_s = outgoing.planned->at_s;
    waiting_.pop_front();
  } else {
    if (SendingIsOver()) return std::nullopt;
    SampleInFlight(Now());
    outgoing.planned = &plan_.requests[next_++];
  }
  max_in_flight_ = std::max(max_in_flight_, ++in_flight_);
  return outgoing;
}

void StageRun::SampleInFlight(double at) {
  samples_.push_back({at, in_flight_ + static_cast<uint32_t>(waiting_.size())});
}

std::unique_ptr<LoadCall> StageRun::Prepare(const PlannedRequest& planned) const {
  LoadCallOptions options;
  options.call_limit_s = options_.call_limit_s;
  options.keep_text = options_.keep_records;
  options.answers = source_.Answers(planned);
  return std::make_unique<LoadCall>(planned, source_.Make(plan_, planned), options);
}

// An arrival of the open loop is due.
void StageRun::SendArrival() {
  std::optional<Outgoing> outgoing;
  std::optional<size_t> following;
  {
    const std::lock_guard lock(mutex_);
    SampleInFlight(plan_.requests[next_].at_s);
    waiting_.push_back(static_cast<uint32_t>(next_++));
    if (next_ < plan_.requests.size()) following = next_;
    outgoing = TakeNext();
  }
  std::unique_ptr<LoadCall> call = std::move(prepared_);
  if (outgoing) {
    // With a queue in the client it may be the turn of an earlier one.
    const bool is_it = call != nullptr && call->planned().index == outgoing->planned->index;
    Send(*outgoing, is_it ? std::move(call) : Prepare(*outgoing->planned));
  }
  if (following) prepared_ = Prepare(plan_.requests[*following]);
}

void StageRun::Send(const Outgoing& outgoing, std::unique_ptr<LoadCall> call) {
  LoadCall* const sending = call.release();  // End takes it back
  const uint32_t index = outgoing.planned->index;
  const double cancel_after_s = outgoing.planned->cancel_after_s;
  {
    const std::lock_guard lock(mutex_);
    Live& live = live_[index];
    live.call = sending;
    live.interrupted = stopped_;
    if (stopped_) sending->TryCancel();
    // Before the call is begun, as it may be over at any time after that.
    if (cancel_after_s > 0) AddTimer({Now() + cancel_after_s, Timer::Kind::kCancel, index});
  }
  const size_t normal = stubs_.size() - 1;
  const size_t stub = outgoing.planned->read_pause_s > 0 ? normal : index % normal;
  sending->Start(stubs_[stub].get(), queues_[index % queues_.size()].get(), epoch_,
                 outgoing.intended_s);
}

void StageRun::Poll(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) {
    auto* const call = static_cast<LoadCall*>(tag);
    switch (call->Proceed(ok)) {
      case LoadCall::Next::kWait:
        break;
      case LoadCall::Next::kPause: {
        const std::lock_guard lock(mutex_);
        const double pause = stopped_ || gave_up_ ? 0 : call->planned().read_pause_s;
        AddTimer({Now() + pause, Timer::Kind::kResume, call->planned().index});
        break;
      }
      case LoadCall::Next::kEnded:
        End(std::unique_ptr<LoadCall>(call));
        break;
    }
  }
}

void StageRun::End(std::unique_ptr<LoadCall> call) {
  RequestRecord record = call->TakeRecord();
  std::optional<Outgoing> outgoing;
  {
    const std::lock_guard lock(mutex_);
    const Live live = live_[record.index];
    live_.erase(record.index);
    record.cancelled = live.cancelled;
    record.overdue = live.overdue;
    record.interrupted = live.interrupted;
    collector_.Add(std::move(record));
    --in_flight_;
    outgoing = TakeNext();
    wake_.notify_one();
  }
  call.reset();
  if (outgoing) Send(*outgoing, Prepare(*outgoing->planned));
}

void StageRun::Cancel() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  waiting_.clear();
  for (auto& [index, live] : live_) {
    live.interrupted = true;
    live.call->TryCancel();
  }
  wake_.notify_one();
}

StageProgress StageRun::progress() const {
  const std::lock_guard lock(mutex_);
  const StageFigures& figures = collector_.figures();
  return {.planned = plan_.requests.size(),
          .sent = figures.counts.sent + in_flight_,
          .ended = figures.counts.sent,
          .errors = figures.counts.errors(),
          .output_tokens = figures.output_tokens + figures.other_output_tokens,
          .elapsed_s = Now()};
}

}  // namespace augur::loadtest
