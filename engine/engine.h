// The engine: a thread that admits, plans, runs and retires, and a thread that turns tokens into
// text.
//
// Thread: Submit, Wake, BeginDrain, stats and CountCachedTokens from any; everything else happens
// on the engine's own threads. The model runner and KV manager belong to the engine thread alone.
// Ownership: the engine owns the runner; requests are shared (engine/request.h).
// Failure: Submit returns a status and the request is untouched; after an OK Submit the request's
// sink gets exactly one terminal call, whatever happens, before the engine is destroyed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine_core.h"
#include "engine/engine_options.h"
#include "engine/engine_stats.h"
#include "engine/model_runner.h"
#include "engine/request.h"
#include "engine/token_emitter.h"
#include "engine/tokenizer/tokenizer.h"
#include "memory/base/clock.h"

namespace augur::engine {

class Engine {
 public:
  // `tokenizer` may be null (token ids only); it outlives the engine, as do `kv` and `clock`. From
  // now on `kv` is the engine thread's.
  Engine(const EngineOptions& options, std::vector<TokenId> eos_token_ids,
         std::unique_ptr<ModelRunner> runner, memory::KvStore* kv, const Tokenizer* tokenizer,
         const memory::Clock* clock);
  // Ends what is left with UNAVAILABLE.
  ~Engine();

  // Statuses:
  //   INVALID_ARGUMENT     it can never fit: prompt + max_tokens beyond the context or the KV pool
  //   RESOURCE_EXHAUSTED   the queue is full, in requests or in prompt tokens
  //   UNAVAILABLE          draining
  // OnAccepted is called before Submit returns, and before any other call of the sink.
  absl::Status Submit(std::shared_ptr<Request> request);

  // Tells the engine thread that a request's atomics changed, so that an idle engine looks at them.
  void Wake();

  // No new work from now on: what is queued ends UNAVAILABLE at once, what runs goes on until
  // `deadline_ns` of the clock and then ends UNAVAILABLE. Returns at once; idle() tells when it is
  // over. A second call may bring the deadline forward.
  void BeginDrain(int64_t deadline_ns);
  // For the engine thread alone, out of a step that will never end: every request ends with
  // `status`, new ones are refused.
  void EndAllWithinStep(const absl::Status& status);
  // Nothing queued, nothing running, and every sink has had its terminal call.
  bool idle() const;

  // Prefix hit that `keys` would have now, in tokens, at most prompt_tokens - 1. Any thread.
  uint32_t CountCachedTokens(const std::vector<memory::BlockKey>& keys,
                             uint32_t prompt_tokens) const;

  const EngineStats& stats() const { return stats_; }
  const EngineOptions& options() const { return options_; }
  // Nanoseconds since the engine thread last finished a turn of its loop while it had work; 0 when
  // idle.
  int64_t StalledNs() const;

 private:
  // What the engine thread takes with it from the shared state at the start of a turn.
  struct Turn {
    std::deque<std::shared_ptr<Request>> arrivals;
    bool draining = false;
    bool stopping = false;
    int64_t drain_deadline_ns = kNoDeadline;
  };

  void RunLoop();
  // Sleeps while there is neither news nor work (can_run: the last step moved something).
  // awaits_copies: only copies are outstanding, whose end nobody announces.
  Turn WaitForTurn(bool can_run, bool awaits_copies);
  void Release(const StepReport& report);

  const EngineOptions options_;
  const memory::Clock* const clock_;
  EngineStats stats_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Request>> inbox_;
  // Choices accepted, not yet admitted or ended: inbox, queue and Submits under way.
  int reserved_requests_ = 0;
  int64_t reserved_tokens_ = 0;
  bool draining_ = false;
  int64_t drain_deadline_ns_ = kNoDeadline;
  bool stopping_ = false;
  bool poked_ = false;
  std::atomic<int64_t> busy_since_ns_{0};

  // After the shared state: sinks that the emitter still calls while it ends may call Wake.
  const memory::KvPools pools_;
  std::unique_ptr<ModelRunner> runner_;
  TokenEmitter emitter_;
  EngineCore core_;
  std::thread thread_;
};

}  // namespace augur::engine
