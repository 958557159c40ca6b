#include "engine/token_emitter.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"

namespace augur::engine {
namespace {

Outcome OutcomeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kCancelled:
      return Outcome::kCancelled;
    case absl::StatusCode::kDeadlineExceeded:
      return Outcome::kDeadline;
    case absl::StatusCode::kResourceExhausted:
      return Outcome::kSlowReader;
    case absl::StatusCode::kUnavailable:
      return Outcome::kDraining;
    default:
      return Outcome::kInternal;
  }
}

Outcome OutcomeOf(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return Outcome::kStop;
    case FinishReason::kLength:
      return Outcome::kLength;
    case FinishReason::kEos:
      return Outcome::kEos;
  }
  return Outcome::kInternal;
}

void DeliverChunk(const TokenEvent& event, TextStream* text) {
  TokenChunk chunk;
  if (!text->TakeChunk(&chunk)) return;
  chunk.index = event.choice;
  event.request->sink->OnChunk(std::move(chunk));
}

TokenLogprobs TokenLogprobsOf(const Tokenizer* tokenizer, const kernels::TokenLogprobsRow& row,
                              int top) {
  const auto one = [&](const kernels::RankedLogprob& ranked, int rank) {
    return TokenLogprob{
        .token = ranked.token,
        .logprob = ranked.logprob,
        .rank = static_cast<uint32_t>(rank),
        .bytes = tokenizer != nullptr ? tokenizer->TokenBytes(ranked.token) : std::string()};
  };
  TokenLogprobs told{.chosen = one(row.chosen, row.rank), .top = {}};
  // A small vocabulary has fewer.
  for (int i = 0; i < top && row.top[i].token >= 0; ++i) told.top.push_back(one(row.top[i], i + 1));
  return told;
}

}  // namespace

PromptStream::PromptStream(const Tokenizer* tokenizer, const Request& request)
    : tokenizer_(tokenizer), request_(request) {
  const OutputOptions& output = request.output;
  if (tokenizer != nullptr && output.echo && output.text) {
    decoder_.emplace(tokenizer, output.skip_special_tokens);
  }
}

void PromptStream::Push(const TokenEvent& event, const Sink& sink) {
  const bool has_logprobs = request_.output.prompt_logprobs >= 0;
  const int first_row = std::max(1, event.first_position);  // position 0 has none
  for (int position = event.first_position; position < event.end_position; ++position) {
    const kernels::TokenLogprobsRow* row = nullptr;
    if (has_logprobs && position > 0) row = &event.logprobs.at(position - first_row);
    pending_bytes_ += Add(request_.prompt[position], row);
    if (pending_bytes_ >= kMessageBytes) Flush(position + 1, sink);
  }
  const bool is_end = event.end_position == static_cast<int>(request_.prompt.size());
  if (is_end && decoder_.has_value()) {
    pending_.text += decoder_->Flush();
    pending_bytes_ += 1;
  }
  if (pending_bytes_ > 0) Flush(event.end_position, sink);
}

// The bytes that it adds, or a little more.
size_t PromptStream::Add(TokenId token, const kernels::TokenLogprobsRow* row) {
  constexpr size_t kFieldBytes = 24;  // of numbers and lengths around a token's own bytes
  size_t bytes = 1;
  if (decoder_.has_value()) {
    const std::string text = decoder_->Push(token);
    bytes += text.size();
    pending_.text += text;
  }
  if (request_.output.echo && request_.output.token_ids) {
    pending_.token_ids.push_back(token);
    bytes += sizeof(TokenId) + 1;
  }
  if (request_.output.prompt_logprobs < 0) return bytes;
  TokenLogprobs& told = pending_.logprobs.emplace_back();
  if (row != nullptr) told = TokenLogprobsOf(tokenizer_, *row, request_.output.prompt_logprobs);
  bytes += kFieldBytes + told.chosen.bytes.size();
  for (const TokenLogprob& one : told.top) bytes += kFieldBytes + one.bytes.size();
  return bytes;
}

void PromptStream::Flush(int next_position, const Sink& sink) {
  sink(std::exchange(pending_, PromptTokens{}));
  pending_.first_position = static_cast<uint32_t>(next_position);
  pending_bytes_ = 0;
}

TextStream::TextStream(const Tokenizer* tokenizer, const Request& request)
    : tokenizer_(tokenizer),
      stopping_(request.stopping),
      output_(request.output),
      matcher_(request.stopping.stop) {
  if (tokenizer != nullptr && request.output.text) {
    decoder_.emplace(tokenizer, request.output.skip_special_tokens,
                     IncrementalDecoder::Place::kContinuesText);
  }
}

bool TextStream::Push(TokenId token, bool hidden, std::string* matched_stop,
                      const kernels::TokenLogprobsRow* logprobs) {
  if (logprobs != nullptr) {
    pending_.logprobs.push_back(TokenLogprobsOf(tokenizer_, *logprobs, output_.logprobs));
  }
  ++pending_.num_tokens;
  if (output_.token_ids) pending_.token_ids.push_back(token);
  if (hidden || !decoder_.has_value()) return false;
  return PushText(decoder_->Push(token), matched_stop);
}

bool TextStream::PushText(std::string text, std::string* matched_stop) {
  if (text.empty()) return false;
  StopMatcher::Result result = matcher_.Push(text, stopping_.include_stop);
  pending_.text += result.text;
  if (!result.matched.has_value()) return false;
  *matched_stop = stopping_.stop[*result.matched];
  over_ = true;
  return true;
}

void TextStream::Close() {
  over_ = true;
  if (!decoder_.has_value()) return;
  std::string matched_stop;
  // A repaired tail (U+FFFD) can complete a stop string; the sequence is over either way.
  if (!PushText(decoder_->Flush(), &matched_stop)) pending_.text += matcher_.Flush();
}

bool TextStream::TakeChunk(TokenChunk* chunk) {
  // A count without text waits for the text that it belongs to, if there may still be some.
  const bool count_alone = pending_.num_tokens > 0 && (over_ || !decoder_.has_value() ||
                                                       pending_.logprobs.size() >= kMaxLogprobs);
  if (pending_.text.empty() && pending_.token_ids.empty() && !count_alone) return false;
  *chunk = std::exchange(pending_, TokenChunk{});
  return true;
}

TokenEmitter::TokenEmitter(const Tokenizer* tokenizer, EngineStats* stats,
                           const memory::Clock* clock)
    : tokenizer_(tokenizer), stats_(stats), clock_(clock), thread_([this] { RunLoop(); }) {}

TokenEmitter::~TokenEmitter() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stopping_ = true;
  }
  posted_.notify_all();
  thread_.join();
}

void TokenEmitter::Expect() { outstanding_.fetch_add(1, std::memory_order_acq_rel); }

void TokenEmitter::Forget() { outstanding_.fetch_sub(1, std::memory_order_acq_rel); }

void TokenEmitter::Post(std::vector<TokenEvent> events) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    taken_.wait(lock, [this] { return queue_.size() < kMaxQueuedEvents; });
    for (TokenEvent& event : events) queue_.push_back(std::move(event));
  }
  posted_.notify_one();
}

void TokenEmitter::RunLoop() {
  std::deque<TokenEvent> batch;
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      posted_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
      if (queue_.empty()) return;
      batch.swap(queue_);
    }
    taken_.notify_one();
    for (const TokenEvent& event : batch) Handle(event);
    batch.clear();
  }
}

void TokenEmitter::Handle(const TokenEvent& event) {
  std::unique_ptr<Live>& live = live_[event.request.get()];
  if (live == nullptr) live = std::make_unique<Live>(*event.request);
  if (HandleLive(event, live.get())) return;
  live_.erase(event.request.get());
  outstanding_.fetch_sub(1, std::memory_order_acq_rel);
}

bool TokenEmitter::HandleLive(const TokenEvent& event, Live* live) {
  const bool done = live->failed || live->choices[event.choice].done;
  switch (event.kind) {
    case TokenEvent::Kind::kProgress:
      if (!done) event.request->sink->OnProgress(event.progress);
      return true;
    case TokenEvent::Kind::kPrompt:
      if (!done) HandlePrompt(event, live);
      return true;
    case TokenEvent::Kind::kToken:
      if (!done) HandleToken(event, live);
      return true;
    case TokenEvent::Kind::kFinished:
      if (!done) Finish(event, live);
      break;
    case TokenEvent::Kind::kFailed:
      if (!done) {
        live->failed = true;
        stats_->outcomes[static_cast<size_t>(OutcomeOf(event.status))] += 1;
        event.request->sink->OnError(event.status);
      }
      break;
    case TokenEvent::Kind::kRetired:
      AUGUR_CHECK(done);
      break;
  }
  return ++live->ended < live->choices.size();
}

void TokenEmitter::HandlePrompt(const TokenEvent& event, Live* live) {
  if (!live->prompt.has_value()) live->prompt.emplace(tokenizer_, *event.request);
  live->prompt->Push(
      event, [&](PromptTokens tokens) { event.request->sink->OnPrompt(std::move(tokens)); });
}

void TokenEmitter::HandleToken(const TokenEvent& event, Live* live) {
  std::string matched_stop;
  Choice& choice = live->choices[event.choice];
  if (!choice.text.has_value()) choice.text.emplace(tokenizer_, *event.request);
  const bool stopped = choice.text->Push(event.token, event.hidden, &matched_stop,
                                         event.logprobs.empty() ? nullptr : &event.logprobs[0]);
  DeliverChunk(event, &*choice.text);
  if (!stopped) return;
  Completion completion = event.completion;
  completion.reason = FinishReason::kStop;
  completion.stop_string = std::move(matched_stop);
  completion.times.finished_ns = clock_->NowNs();
  choice.done = true;
  event.request->stop_matched.fetch_or(uint64_t{1} << event.choice, std::memory_order_release);
  DeliverEnd(event, std::move(completion), live);
}

void TokenEmitter::Finish(const TokenEvent& event, Live* live) {
  if (std::optional<TextStream>& text = live->choices[event.choice].text; text.has_value()) {
    text->Close();
    DeliverChunk(event, &*text);
  }
  DeliverEnd(event, event.completion, live);
}

void TokenEmitter::DeliverEnd(const TokenEvent& event, Completion completion, Live* live) {
  live->choices[event.choice].text.reset();
  completion.last = ++live->finished == live->choices.size();
  stats_->request_generated_tokens.Observe(completion.completion_tokens);
  if (completion.last) {
    stats_->outcomes[static_cast<size_t>(OutcomeOf(completion.reason))] += 1;
    stats_->request_seconds.Observe(
        static_cast<double>(completion.times.finished_ns - completion.times.arrival_ns) /
        memory::kNsPerSecond);
    stats_->request_prompt_tokens.Observe(completion.prompt_tokens);
  }
  event.request->sink->OnFinished(completion);
}

}  // namespace augur::engine
