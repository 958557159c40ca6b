// A client's call as the engine sees it, and the way its results travel back.
//
// Ownership: Request is shared by the front that made it, the engine and the emitter; everything
// but the atomics is written before Engine::Submit and read-only after. The sink must stay valid
// until it has had its one terminal call (OnFinished of the last choice, or OnError).
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/attention/attention_policy.h"
#include "engine/tokenizer/tokenizer.h"
#include "memory/block_key.h"

namespace augur::engine {

// Choices of one request at most: their stop matches are bits of one word.
inline constexpr uint32_t kMaxChoices = 64;

inline constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();

enum class FinishReason { kStop, kLength, kEos };

struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy
  uint32_t top_k = 0;        // 0: off
  float top_p = 1.0f;        // 1: off
  float min_p = 0.0f;        // 0: off
  uint64_t seed = 0;         // always set; the front draws one where the client gave none
  // Rules, in the order and with the formulae of kernels/ops/adjust_logits.h.
  float repetition_penalty = 1.0f;                    // 1: off
  float presence_penalty = 0.0f;                      // 0: off
  float frequency_penalty = 0.0f;                     // 0: off
  std::vector<std::pair<TokenId, float>> logit_bias;  // each id once
  std::vector<TokenId> allowed_token_ids;             // empty: all
};

struct StoppingCriteria {
  uint32_t max_tokens = 16;       // 0: the prompt is computed and told, nothing is drawn
  uint32_t min_tokens = 0;        // neither end-of-sequence nor stop ids are drawn before
  std::vector<std::string> stop;  // matched in the decoded text
  std::vector<TokenId> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop = false;  // the text shows the stop string
};

struct OutputOptions {
  bool token_ids = false;
  bool progress = false;
  bool skip_special_tokens = true;
  bool text = true;  // false when the deployment has no tokenizer
  // Log probabilities of tokens and of so many most probable ones at their place; -1: none.
  int logprobs = -1;         // of generated tokens
  int prompt_logprobs = -1;  // of the prompt's; such a request reads nothing from the prefix cache
  bool echo = false;         // the prompt's text, and ids where token_ids are asked for

  bool shows_prompt() const { return echo || prompt_logprobs >= 0; }
};

// Under the softmax of the logits as the model gave them, before rules, temperature and filters.
struct TokenLogprob {
  TokenId token = -1;    // -1: there is none
  float logprob = 0.0f;  // natural logarithm
  uint32_t rank = 0;     // 1 is the most probable; ties go by rising id
  std::string bytes;     // the token's own; empty without a tokenizer
};

struct TokenLogprobs {
  TokenLogprob chosen;
  std::vector<TokenLogprob> top;  // by rank
};

// Consecutive tokens of the prompt; what was asked for is filled.
struct PromptTokens {
  uint32_t first_position = 0;
  std::string text;                     // echo; cut between characters
  std::vector<TokenId> token_ids;       // echo with token_ids
  std::vector<TokenLogprobs> logprobs;  // one for each token; the prompt's first has none
};

struct PrefillProgress {
  uint32_t processed_tokens = 0;  // of total_tokens, cached ones included
  uint32_t cached_tokens = 0;
  uint32_t total_tokens = 0;
  int64_t elapsed_ns = 0;  // since the request left the queue
};

struct TokenChunk {
  uint32_t index = 0;                   // of the choice
  std::string text;                     // valid UTF-8, may be empty
  std::vector<TokenId> token_ids;       // only when OutputOptions::token_ids
  uint32_t num_tokens = 0;              // generated tokens that this chunk accounts for
  std::vector<TokenLogprobs> logprobs;  // with OutputOptions::logprobs: of each of these tokens
};

// Instants of a request's life; each is kUnset until it happens.
struct RequestTimes {
  static constexpr int64_t kUnset = -1;
  int64_t arrival_ns = kUnset;
  int64_t admitted_ns = kUnset;
  int64_t first_token_ns = kUnset;
  int64_t finished_ns = kUnset;
};

struct Completion {
  uint32_t index = 0;  // of the choice
  bool last = false;   // every other choice has ended before: nothing comes after
  FinishReason reason = FinishReason::kLength;
  TokenId stop_token_id = -1;  // set when a stop or end-of-sequence id ended it
  std::string stop_string;     // set when a stop string ended it
  // Of the request, the same for each choice: choices share one prompt.
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  // Of this choice.
  uint32_t completion_tokens = 0;  // as told to the client: up to and with the token that ended it
  uint32_t preemptions = 0;
  RequestTimes times;
};

// Where results go. OnFinished comes once a choice; choices' chunks come in any order among each
// other.
// Calls for one request come in order and from one thread at a time (OnAccepted
// from the submitting thread before any other, the rest from the emitter's); they must not block
// and must not throw.
class ResponseSink {
 public:
  virtual ~ResponseSink() = default;
  // cached_tokens is the prefix hit as seen now; what was really reused is in Completion.
  virtual void OnAccepted(uint32_t cached_tokens) = 0;
  virtual void OnProgress(const PrefillProgress& progress) = 0;
  // Before any chunk, in order of positions; only when OutputOptions::shows_prompt().
  virtual void OnPrompt(PromptTokens /*tokens*/) {}
  virtual void OnChunk(TokenChunk chunk) = 0;
  virtual void OnFinished(const Completion& completion) = 0;
  // The only end of a request that failed, was cancelled, ran out of time or met a drain, whatever
  // choices had finished before.
  virtual void OnError(const absl::Status& status) = 0;
};

struct Request {
  std::string id;               // the client's label, or one made by the server; not unique
  std::vector<TokenId> prompt;  // at least one id, all inside the vocabulary
  // One for each full block of the prompt; empty: no prefix cache, and every choice computes the
  // prompt.
  std::vector<memory::BlockKey> block_keys;
  uint32_t num_choices = 1;  // 1 to kMaxChoices; they differ in their draws
  int32_t priority = 0;      // a higher number goes first
  SamplingParams sampling;
  StoppingCriteria stopping;
  OutputOptions output;
  AttentionChoice attention;
  int64_t deadline_ns = kNoDeadline;  // on the engine's clock
  int64_t arrival_ns = 0;
  std::shared_ptr<ResponseSink> sink;

  // Set by the front (client gone), read by the engine at every step: CANCELLED, everything freed.
  std::atomic<bool> cancelled{false};
  // Set by the front while the reader is behind: the sequence keeps its blocks but takes no step;
  // when it stays so for EngineOptions::slow_reader_timeout_ns the engine ends it with
  // RESOURCE_EXHAUSTED.
  std::atomic<bool> paused{false};
  // A bit a choice, set by the emitter when a stop string matched: the engine retires the sequence
  // without another word.
  std::atomic<uint64_t> stop_matched{0};
};

}  // namespace augur::engine
