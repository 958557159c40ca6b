// From a validated request to the engine's queue: encodes the prompt, checks that it fits the
// context, names its blocks for the prefix cache and submits it.
//
// Thread: Route from any (it only queues); the work happens on the text intake's threads.
// Ownership: the request travels by shared_ptr (engine/request.h); its sink has exactly one
// terminal call.
// Failure: Route returns RESOURCE_EXHAUSTED when the intake is full, and the sink is then not
// called. After an OK every failure goes to the sink's OnError: INVALID_ARGUMENT (does not fit),
// RESOURCE_EXHAUSTED (queue full), CANCELLED and DEADLINE_EXCEEDED (while it waited here),
// UNAVAILABLE (draining).
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/request.h"
#include "engine/tokenizer/tokenizer.h"
#include "memory/base/clock.h"
#include "memory/block_key.h"
#include "server/deployment.h"
#include "server/engine_entry.h"
#include "server/request_validation.h"
#include "server/text_intake.h"

namespace augur::server {

class Router {
 public:
  // Everything is the caller's and outlives the router and the intake's jobs; `tokenizer` may be
  // null.
  Router(const Deployment* deployment, const engine::Tokenizer* tokenizer, EngineEntry* engine,
         TextIntake* intake, const memory::Clock* clock);

  // `request` has its id, deadline, arrival and sink; the rest is filled in from `validated`.
  absl::Status Route(ValidatedRequest validated, std::shared_ptr<engine::Request> request);

 private:
  void EncodeAndSubmit(const ValidatedRequest& validated,
                       const std::shared_ptr<engine::Request>& request);
  absl::Status FillPrompt(const ValidatedRequest& validated, engine::Request* request) const;
  // Names of the prompt's blocks for the prefix cache; none where nothing may be shared.
  std::vector<memory::BlockKey> MakeKeys(const ValidatedRequest& validated,
                                         const engine::Request& request) const;
  absl::Status CheckStillWanted(const engine::Request& request) const;

  const Deployment* const deployment_;
  const engine::Tokenizer* const tokenizer_;
  EngineEntry* const engine_;
  TextIntake* const intake_;
  const memory::Clock* const clock_;
  const memory::BlockKeySecret block_key_secret_;
};

// 64 bits from the operating system, for seeds and request ids.
uint64_t DrawRandom64();

}  // namespace augur::server
