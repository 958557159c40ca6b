// The engine's mutable state of one choice of an accepted request. Owned and touched by the engine
// thread alone.
//
// A sequence is waiting (not yet admitted, preempted with nothing left, or saved on the host) or
// running (open in the KV store). tokens holds prompt and generated ids; the KV of the first
// num_computed of them is in its blocks. What remains is computed in chunks; the step that computes
// the last one samples the next. A decode is the case of one remaining token, a resumed sequence
// that of many: nothing else tells them apart.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "engine/logit_rules.h"
#include "engine/request.h"
#include "memory/kv_manager.h"

namespace augur::engine {

struct Sequence {
  memory::SequenceId id = 0;  // rises with arrival: the age order; choices of a request in a row
  uint32_t choice = 0;
  std::shared_ptr<Request> request;
  std::vector<TokenId> tokens;  // prompt, then generated
  std::optional<LogitRules> rules;
  int num_computed = 0;
  int high_water = 0;  // most tokens ever computed: beyond it work is new, below it recomputed
  int published_blocks = 0;    // of the prompt, offered to the prefix cache
  int told_prompt = 0;         // tokens of the prompt that the client was told of, where it asks
  uint32_t cached_tokens = 0;  // prefix hit at the request's first admission
  uint32_t preemptions = 0;
  int64_t last_token_ns = 0;
  int64_t paused_since_ns = RequestTimes::kUnset;
  int64_t warming_since_ns = RequestTimes::kUnset;  // admitted cold, and not warm yet
  RequestTimes times;

  int num_tokens() const { return static_cast<int>(tokens.size()); }
  int remaining() const { return num_tokens() - num_computed; }
  int num_prompt() const { return static_cast<int>(request->prompt.size()); }
  int num_generated() const { return num_tokens() - num_prompt(); }
  bool decoding() const { return num_generated() > 0 && remaining() == 1; }
  memory::SequenceId first_choice() const { return id - choice; }
  bool stop_matched() const {
    return ((request->stop_matched.load(std::memory_order_acquire) >> choice) & 1) != 0;
  }
  // One choice tells of the prompt: the one that computes it.
  bool shows_prompt() const { return choice == 0 && request->output.shows_prompt(); }
  bool admitted_before() const { return times.admitted_ns != RequestTimes::kUnset; }
};

}  // namespace augur::engine
