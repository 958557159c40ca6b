// Turns the core's token events into text for the sinks, on a thread of its own, so that neither
// detokenising nor anything outside runs on the engine thread. Matches stop strings across token
// edges and never releases a cut character.
//
// Thread: Post from the engine thread; Expect from any; sinks are called on the emitter's thread.
// Ownership: holds a request from its Expect to its terminal event. Bounded: Post waits while
// kMaxQueuedEvents events are queued, so the engine cannot run ahead of a stuck emitter.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/engine_stats.h"
#include "engine/text/stop_matcher.h"
#include "engine/token_output.h"
#include "engine/tokenizer/incremental_decoder.h"
#include "engine/tokenizer/tokenizer.h"
#include "memory/base/clock.h"

namespace augur::engine {

// One request's way from ids of its prompt to what the client is told of them: pure state, no
// thread.
class PromptStream {
 public:
  using Sink = std::function<void(PromptTokens)>;

  // `tokenizer` may be null: ids only.
  PromptStream(const Tokenizer* tokenizer, const Request& request);

  // Takes a kPrompt event; gives `sink` what it tells in pieces of some kMessageBytes, which is all
  // of the event but the bytes of a character that is not complete before the prompt's end.
  void Push(const TokenEvent& event, const Sink& sink);

  // A piece ends with the token that brings it there: far from what a client accepts.
  static constexpr size_t kMessageBytes = 64 << 10;

 private:
  size_t Add(TokenId token, const kernels::TokenLogprobsRow* row);
  void Flush(int next_position, const Sink& sink);

  const Tokenizer* const tokenizer_;
  const Request& request_;
  std::optional<IncrementalDecoder> decoder_;  // of what is echoed as text
  PromptTokens pending_;
  size_t pending_bytes_ = 0;
};

// One request's way from ids to text: pure state, no thread, tested on its own.
class TextStream {
 public:
  // `tokenizer` may be null: ids only.
  TextStream(const Tokenizer* tokenizer, const Request& request);

  // Feeds a token. Returns whether a stop string matched; then `matched_stop` names it and nothing
  // more may be fed. With include_stop the text ends with it.
  bool Push(TokenId token, bool hidden, std::string* matched_stop,
            const kernels::TokenLogprobsRow* logprobs = nullptr);
  // The sequence is over: what was held back becomes part of the pending chunk.
  void Close();
  // The text, ids and count gathered since the last call; false while there is nothing to show.
  // A chunk with log probabilities has one for each token that it counts, and at most kMaxLogprobs:
  // tokens without text do not wait for some for ever.
  // Over all chunks the counts add up to the tokens fed, those after the last text included once
  // the stream is over.
  bool TakeChunk(TokenChunk* chunk);
  static constexpr size_t kMaxLogprobs = 256;

 private:
  bool PushText(std::string text, std::string* matched_stop);

  const Tokenizer* const tokenizer_;
  const StoppingCriteria& stopping_;
  const OutputOptions& output_;
  std::optional<IncrementalDecoder> decoder_;  // none: ids only
  StopMatcher matcher_;
  TokenChunk pending_;
  bool over_ = false;  // closed, or a stop string matched
};

class TokenEmitter final : public TokenOutput {
 public:
  static constexpr size_t kMaxQueuedEvents = 65536;

  // `tokenizer` may be null. All outlive the emitter.
  TokenEmitter(const Tokenizer* tokenizer, EngineStats* stats, const memory::Clock* clock);
  // Delivers what is queued, then joins.
  ~TokenEmitter() override;

  // A request will have events: counted until its terminal event was delivered.
  void Expect();
  // Takes back an Expect whose request never reached the core.
  void Forget();
  void Post(std::vector<TokenEvent> events) override;
  // Requests expected and not yet at their end.
  int outstanding() const { return outstanding_.load(std::memory_order_acquire); }

 private:
  struct Choice {
    std::optional<TextStream> text;  // from its first token to its end
    bool done = false;  // ended by a stop string; the core's terminal event is still to come
  };
  struct Live {
    std::optional<PromptStream> prompt;  // where it is told
    std::vector<Choice> choices;
    uint32_t finished = 0;  // OnFinished was called so often
    uint32_t ended = 0;     // terminal events of the core
    bool failed = false;    // OnError was called
    explicit Live(const Request& request) : choices(request.num_choices) {}
  };

  void RunLoop();
  void Handle(const TokenEvent& event);
  // False: the event is the last of its request.
  bool HandleLive(const TokenEvent& event, Live* live);
  void HandlePrompt(const TokenEvent& event, Live* live);
  void HandleToken(const TokenEvent& event, Live* live);
  void Finish(const TokenEvent& event, Live* live);
  void DeliverEnd(const TokenEvent& event, Completion completion, Live* live);

  const Tokenizer* const tokenizer_;
  EngineStats* const stats_;
  const memory::Clock* const clock_;
  std::atomic<int> outstanding_{0};
  std::unordered_map<const Request*, std::unique_ptr<Live>> live_;  // emitter thread only

  std::mutex mutex_;
  std::condition_variable posted_;
  std::condition_variable taken_;
  std::deque<TokenEvent> queue_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace augur::engine
