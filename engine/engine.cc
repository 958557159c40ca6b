#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/pool_fit.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

absl::Status DrainingError() { return absl::UnavailableError("the server is shutting down"); }

// How long an engine that has sequences but can run none of them sleeps at most: a reader that
// catches up or goes away pokes it, so this only bounds the harm of a lost wake-up.
constexpr int64_t kLongestNapNs = 100 * memory::kNsPerMs;

// How long it sleeps between looks at copies that a sequence waits for: short against a step, long
// against a look.
constexpr int64_t kCopyNapNs = memory::kNsPerMs / 2;

}  // namespace

Engine::Engine(const EngineOptions& options, std::vector<TokenId> eos_token_ids,
               std::unique_ptr<ModelRunner> runner, memory::KvStore* kv, const Tokenizer* tokenizer,
               const memory::Clock* clock)
    : options_(options),
      clock_(clock),
      pools_(kv->pools()),
      runner_(std::move(runner)),
      emitter_(tokenizer, &stats_, clock),
      core_(options, std::move(eos_token_ids), runner_.get(), kv, &emitter_, &stats_, clock),
      thread_([this] { RunLoop(); }) {}

Engine::~Engine() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    draining_ = true;
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

absl::Status Engine::Submit(std::shared_ptr<Request> request) {
  if (absl::Status fits = CheckFits(*request, options_, pools_); !fits.ok()) return fits;
  const int64_t prompt = static_cast<int64_t>(request->prompt.size());
  const auto choices = static_cast<int>(request->num_choices);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (draining_) return DrainingError();
    // An empty queue takes any request that fits the batch and the context, else it could never be
    // served.
    if (reserved_requests_ > 0 && reserved_requests_ + choices > options_.max_queued_requests) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the queue holds ", reserved_requests_, " requests (choices counted) and ",
                       choices, " more are too many, its limit is ", options_.max_queued_requests));
    }
    if (reserved_requests_ > 0 && reserved_tokens_ + prompt > options_.max_queued_tokens) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the queue holds ", reserved_tokens_, " prompt tokens and the request has ",
                       prompt, ", its limit is ", options_.max_queued_tokens));
    }
    reserved_requests_ += choices;
    reserved_tokens_ += prompt;
    emitter_.Expect();
  }
  stats_.accepted += 1;
  // Before the engine can see the request, so that nothing overtakes it.
  const bool reads_cache = request->output.prompt_logprobs < 0;
  request->sink->OnAccepted(
      reads_cache
          ? CountCachedTokens(request->block_keys, static_cast<uint32_t>(request->prompt.size()))
          : 0);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    inbox_.push_back(std::move(request));
  }
  wake_.notify_one();
  return absl::OkStatus();
}

void Engine::Wake() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    poked_ = true;
  }
  wake_.notify_one();
}

void Engine::BeginDrain(int64_t deadline_ns) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    draining_ = true;
    drain_deadline_ns_ = std::min(drain_deadline_ns_, deadline_ns);
    poked_ = true;
  }
  wake_.notify_one();
}

void Engine::EndAllWithinStep(const absl::Status& status) {
  std::deque<std::shared_ptr<Request>> arrivals;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    draining_ = true;
    arrivals.swap(inbox_);
  }
  for (std::shared_ptr<Request>& request : arrivals) core_.Add(std::move(request));
  core_.EndAll(status);
}

bool Engine::idle() const { return emitter_.outstanding() == 0; }

uint32_t Engine::CountCachedTokens(const std::vector<memory::BlockKey>& keys,
                                   uint32_t prompt_tokens) const {
  return core_.CountCachedTokens(keys, prompt_tokens);
}

int64_t Engine::StalledNs() const {
  const int64_t since = busy_since_ns_.load(std::memory_order_relaxed);
  return since == 0 ? 0 : std::max<int64_t>(0, clock_->NowNs() - since);
}

Engine::Turn Engine::WaitForTurn(bool can_run, bool awaits_copies) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto has_news = [this] { return stopping_ || poked_ || !inbox_.empty(); };
  if (!can_run && !has_news()) {
    busy_since_ns_.store(0, std::memory_order_relaxed);
    if (core_.idle()) {
      wake_.wait(lock, has_news);
    } else {
      const int64_t timer_ns = std::min(core_.NextTimerNs(), drain_deadline_ns_);
      const int64_t longest_ns = awaits_copies ? kCopyNapNs : kLongestNapNs;
      const int64_t nap_ns = std::clamp<int64_t>(timer_ns - clock_->NowNs(), 0, longest_ns);
      wake_.wait_for(lock, std::chrono::nanoseconds(nap_ns), has_news);
    }
  }
  poked_ = false;
  Turn turn;
  turn.arrivals.swap(inbox_);
  turn.draining = draining_;
  turn.drain_deadline_ns = drain_deadline_ns_;
  turn.stopping = stopping_;
  return turn;
}

void Engine::Release(const StepReport& report) {
  if (report.left_queue_requests == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  reserved_requests_ -= report.left_queue_requests;
  reserved_tokens_ -= report.left_queue_tokens;
  AUGUR_CHECK(reserved_requests_ >= 0 && reserved_tokens_ >= 0);
}

void Engine::RunLoop() {
  bool can_run = false;
  bool awaits_copies = false;
  while (true) {
    Turn turn = WaitForTurn(can_run, awaits_copies);
    busy_since_ns_.store(clock_->NowNs(), std::memory_order_relaxed);
    for (std::shared_ptr<Request>& request : turn.arrivals) core_.Add(std::move(request));
    if (turn.stopping) {
      Release(core_.EndAll(DrainingError()));
      // A Submit that had its place before draining_ was set may still be on its way to the inbox.
      const std::lock_guard<std::mutex> lock(mutex_);
      if (reserved_requests_ == 0) return;
      can_run = true;
      continue;
    }
    if (turn.draining) {
      Release(core_.EndQueued(DrainingError()));
      if (clock_->NowNs() >= turn.drain_deadline_ns) Release(core_.EndAll(DrainingError()));
    }
    const StepReport report = core_.Step();
    Release(report);
    can_run = report.moved;
    awaits_copies = report.awaits_copies;
  }
}

}  // namespace augur::engine
