// What the engine core says about its requests, as plain events in order. The emitter turns them
// into text and sink calls; the simulation reads them directly.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "engine/request.h"
#include "kernels/ops/top_logprobs.h"

namespace augur::engine {

struct TokenEvent {
  enum class Kind {
    kProgress,  // progress is set
    kPrompt,    // some more tokens of the prompt are to be told
    kToken,     // one generated token
    kFinished,  // completion is set; the token that ended it, if any, came as a kToken before
    kFailed,    // status is set; all choices of the request fail together
    kRetired,   // gone without a word: the emitter had ended it already (stop string)
  };

  std::shared_ptr<Request> request;
  uint32_t choice = 0;
  Kind kind = Kind::kToken;
  TokenId token = 0;
  bool hidden = false;  // kToken: ends the sequence and is not part of its text
  // kToken: its own, where asked for. kPrompt: of all its tokens but the one at position 0,
  // likewise.
  std::vector<kernels::TokenLogprobsRow> logprobs;
  int first_position = 0;  // kPrompt: positions [first_position, end_position)
  int end_position = 0;
  PrefillProgress progress;
  Completion
      completion;  // kToken: what the sequence looks like with this token, for a stop-string end
  absl::Status status;
};

// Exactly one of kFinished, kFailed, kRetired per choice, and nothing of it after that.
class TokenOutput {
 public:
  virtual ~TokenOutput() = default;
  virtual void Post(std::vector<TokenEvent> events) = 0;
};

}  // namespace augur::engine
