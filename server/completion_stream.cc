#include "server/completion_stream.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "server/wire_message.h"

namespace augur::server {
namespace {

// A status message travels as an HTTP/2 header; clients bound all headers together at 8 KiB.
constexpr size_t kMaxStatusMessageBytes = 1024;
// Merged chunks stay well below the 4 MiB that a client accepts.
constexpr int64_t kMaxMergedBytes = 64 << 10;

v1::FinishReason ToProto(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case engine::FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case engine::FinishReason::kEos:
      return v1::FINISH_REASON_EOS;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

EndReason ToEndReason(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kStop:
      return EndReason::kStop;
    case engine::FinishReason::kLength:
      return EndReason::kLength;
    case engine::FinishReason::kEos:
      return EndReason::kEos;
  }
  return EndReason::kNone;
}

// Milliseconds between two instants; 0 where one of them never came.
double MsBetween(int64_t from_ns, int64_t to_ns) {
  if (from_ns == engine::RequestTimes::kUnset || to_ns == engine::RequestTimes::kUnset) return 0;
  return static_cast<double>(to_ns - from_ns) / memory::kNsPerMs;
}

void FillTimings(const engine::Completion& completion, v1::Timings* timings) {
  const engine::RequestTimes& times = completion.times;
  const double decode_ms = MsBetween(times.first_token_ns, times.finished_ns);
  timings->set_queue_ms(MsBetween(times.arrival_ns, times.admitted_ns));
  timings->set_prefill_ms(MsBetween(times.admitted_ns, times.first_token_ns));
  timings->set_first_token_ms(MsBetween(times.arrival_ns, times.first_token_ns));
  timings->set_decode_ms(decode_ms);
  if (completion.completion_tokens > 1) {
    timings->set_mean_inter_token_ms(decode_ms / (completion.completion_tokens - 1));
  }
  timings->set_total_ms(MsBetween(times.arrival_ns, times.finished_ns));
}

void FillLogprob(engine::TokenLogprob logprob, v1::TokenLogprob* to) {
  to->set_token_id(static_cast<uint32_t>(logprob.token));
  to->set_logprob(logprob.logprob);
  to->set_rank(logprob.rank);
  to->set_token(std::move(logprob.bytes));
}

void FillLogprobs(std::vector<engine::TokenLogprobs> logprobs,
                  google::protobuf::RepeatedPtrField<v1::TokenLogprobs>* to) {
  to->Reserve(static_cast<int>(logprobs.size()));
  for (engine::TokenLogprobs& one : logprobs) {
    v1::TokenLogprobs* told = to->Add();
    if (one.chosen.token < 0) continue;  // the prompt's first token
    FillLogprob(std::move(one.chosen), told->mutable_chosen());
    for (engine::TokenLogprob& other : one.top) FillLogprob(std::move(other), told->add_top());
  }
}

v1::CompleteResponse ToProto(const engine::Completion& completion) {
  v1::CompleteResponse message;
  v1::Finished* finished = message.mutable_finished();
  finished->set_index(completion.index);
  finished->set_finish_reason(ToProto(completion.reason));
  if (completion.stop_token_id >= 0) {
    finished->set_stop_token_id(static_cast<uint32_t>(completion.stop_token_id));
  } else if (!completion.stop_string.empty()) {
    finished->set_stop_string(completion.stop_string);
  }
  v1::Usage* usage = finished->mutable_usage();
  usage->set_prompt_tokens(completion.prompt_tokens);
  usage->set_cached_tokens(completion.cached_tokens);
  usage->set_completion_tokens(completion.completion_tokens);
  FillTimings(completion, finished->mutable_timings());
  return message;
}

}  // namespace

std::shared_ptr<CompletionStream> CompletionStream::Create(grpc::CallbackServerContext* context,
                                                           const StreamEnvironment* environment) {
  std::shared_ptr<CompletionStream> stream(new CompletionStream(context, environment));
  stream->self_ = stream;
  return stream;
}

CompletionStream::CompletionStream(grpc::CallbackServerContext* context,
                                   const StreamEnvironment* environment)
    : context_(context), environment_(environment), created_ns_(environment->clock->NowNs()) {
  record_.peer = context->peer();
  environment_->stats->open_streams.fetch_add(1);
}

CompletionStream::~CompletionStream() { AUGUR_CHECK(finish_called_); }

void CompletionStream::Attach(std::shared_ptr<engine::Request> request) {
  const std::lock_guard lock(mutex_);
  request_ = std::move(request);
  record_.id = request_->id;
}

void CompletionStream::SetLabel(const std::string& request_id) {
  const std::lock_guard lock(mutex_);
  record_.id = request_id;
}

void CompletionStream::Open() { StartSendInitialMetadata(); }

void CompletionStream::Refuse(const absl::Status& status) {
  {
    const std::lock_guard lock(mutex_);
    started_ = true;  // Finish sends the headers along
    SetEnd(status);
  }
  Pump();
}

void CompletionStream::OnAccepted(uint32_t cached_tokens) {
  {
    const std::lock_guard lock(mutex_);
    if (request_ == nullptr) return;
    accepted_ = true;
    v1::CompleteResponse message;
    v1::Accepted* accepted = message.mutable_accepted();
    accepted->set_request_id(request_->id);
    accepted->set_prompt_tokens(static_cast<uint32_t>(request_->prompt.size()));
    accepted->set_cached_tokens(cached_tokens);
    accepted->set_model(environment_->model);
    accepted->set_seed(request_->sampling.seed);
    record_.prompt_tokens = accepted->prompt_tokens();
    record_.cached_tokens = cached_tokens;
    Enqueue(std::move(message));
  }
  Pump();
}

void CompletionStream::OnProgress(const engine::PrefillProgress& progress) {
  {
    const std::lock_guard lock(mutex_);
    v1::CompleteResponse message;
    v1::PrefillProgress* report = message.mutable_progress();
    report->set_processed_tokens(progress.processed_tokens);
    report->set_cached_tokens(progress.cached_tokens);
    report->set_total_tokens(progress.total_tokens);
    report->set_elapsed_ms(static_cast<uint64_t>(progress.elapsed_ns / memory::kNsPerMs));
    Enqueue(std::move(message));
  }
  Pump();
}

void CompletionStream::OnPrompt(engine::PromptTokens tokens) {
  {
    const std::lock_guard lock(mutex_);
    v1::CompleteResponse message;
    v1::PromptTokens* part = message.mutable_prompt_tokens();
    part->set_first_position(tokens.first_position);
    part->set_text(std::move(tokens.text));
    for (const engine::TokenId id : tokens.token_ids) {
      part->add_token_ids(static_cast<uint32_t>(id));
    }
    FillLogprobs(std::move(tokens.logprobs), part->mutable_logprobs());
    Enqueue(std::move(message));
  }
  Pump();
}

void CompletionStream::OnChunk(engine::TokenChunk chunk) {
  {
    const std::lock_guard lock(mutex_);
    v1::CompleteResponse message;
    v1::TokenChunk* part = message.mutable_chunk();
    part->set_index(chunk.index);
    part->set_text(std::move(chunk.text));
    for (const engine::TokenId id : chunk.token_ids) part->add_token_ids(static_cast<uint32_t>(id));
    part->set_num_tokens(chunk.num_tokens);
    FillLogprobs(std::move(chunk.logprobs), part->mutable_logprobs());
    if (record_.first_token_ms < 0 && chunk.num_tokens > 0) {
      record_.first_token_ms = MsBetween(created_ns_, environment_->clock->NowNs());
    }
    record_.completion_tokens += chunk.num_tokens;
    Enqueue(std::move(message));
  }
  Pump();
}

void CompletionStream::OnFinished(const engine::Completion& completion) {
  {
    const std::lock_guard lock(mutex_);
    const engine::RequestTimes& times = completion.times;
    record_.reason = ToEndReason(completion.reason);
    record_.prompt_tokens = completion.prompt_tokens;
    record_.cached_tokens = completion.cached_tokens;
    record_.preemptions += completion.preemptions;
    if (completion.index == 0) {
      record_.queue_ms = MsBetween(times.arrival_ns, times.admitted_ns);
      record_.prefill_ms = MsBetween(times.admitted_ns, times.first_token_ns);
      record_.first_token_ms = MsBetween(times.arrival_ns, times.first_token_ns);
    }
    Enqueue(ToProto(completion));
    if (completion.last) SetEnd(absl::OkStatus());
  }
  Pump();
}

void CompletionStream::OnError(const absl::Status& status) {
  AUGUR_CHECK(!status.ok());
  {
    const std::lock_guard lock(mutex_);
    SetEnd(status);
  }
  Pump();
}

void CompletionStream::OnSendInitialMetadataDone(bool ok) {
  {
    const std::lock_guard lock(mutex_);
    started_ = true;
    // The stream is broken; OnCancel tells the engine.
    if (!ok) cancelled_ = true;
  }
  Pump();
}

void CompletionStream::OnWriteDone(bool ok) {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    in_flight_.Clear();
    if (ok) {
      ++writes_done_;
    } else {
      cancelled_ = true;
      if (request_ != nullptr) request_->cancelled.store(true);
      DropQueue();
      wake = true;
    }
    const bool was_paused = paused_;
    UpdatePause();
    wake = wake || (was_paused && !paused_);
  }
  if (wake) environment_->engine->Wake();
  Pump();
}

void CompletionStream::OnCancel() {
  bool wake = false;
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    DropQueue();
    if (request_ != nullptr) {
      // gRPC cancels a call whose deadline passed, too. The engine knows the deadline and ends the
      // request with the better status; it only has to look.
      if (!PastDeadline()) request_->cancelled.store(true);
      request_->paused.store(false);
      wake = true;
    }
  }
  if (wake) environment_->engine->Wake();
  Pump();
}

void CompletionStream::OnDone() {
  std::shared_ptr<CompletionStream> self;
  std::shared_ptr<engine::Request> request;
  std::unique_ptr<grpc::Alarm> linger;
  {
    // Taking the mutex also waits for a thread that is still on its way out of a callback.
    const std::lock_guard lock(mutex_);
    FillRecord();
    self = std::move(self_);
    request = std::move(request_);
    linger = std::move(linger_);
  }
  environment_->stats->CountRequest(record_.code, record_.reason);
  LogRequest(record_);
  // Last, for a drain that waits for it: nothing of the environment is used afterwards.
  environment_->stats->open_streams.fetch_sub(1);
}

void CompletionStream::Enqueue(v1::CompleteResponse message) {
  if (cancelled_ || end_.has_value()) return;
  if (!MergeIntoQueue(message)) {
    Queued queued;
    queued.bytes = static_cast<int64_t>(message.ByteSizeLong());
    queued.message = std::move(message);
    queued_bytes_ += queued.bytes;
    queue_.push_back(std::move(queued));
  }
  ++queued_events_;
  UpdatePause();
}

// The waiting message that `message` can become part of; null: none. Chunks of a choice are in
// order among themselves alone.
CompletionStream::Queued* CompletionStream::FindMergeable(const v1::CompleteResponse& message) {
  if (message.has_progress()) {
    const bool waits = !queue_.empty() && queue_.back().message.has_progress();
    return waits ? &queue_.back() : nullptr;
  }
  if (!message.has_chunk()) return nullptr;
  for (auto queued = queue_.rbegin(); queued != queue_.rend(); ++queued) {
    if (!queued->message.has_chunk()) continue;
    if (queued->message.chunk().index() != message.chunk().index()) continue;
    return queued->bytes < kMaxMergedBytes ? &*queued : nullptr;
  }
  return nullptr;
}

// Joins text with text that still waits, and lets a newer progress report replace an older one:
// what waits for a slow reader is then a handful of messages for each choice.
bool CompletionStream::MergeIntoQueue(const v1::CompleteResponse& message) {
  Queued* queued = FindMergeable(message);
  if (queued == nullptr) return false;
  if (message.has_chunk()) {
    v1::TokenChunk* chunk = queued->message.mutable_chunk();
    chunk->mutable_text()->append(message.chunk().text());
    chunk->mutable_token_ids()->MergeFrom(message.chunk().token_ids());
    chunk->mutable_logprobs()->MergeFrom(message.chunk().logprobs());
    chunk->set_num_tokens(chunk->num_tokens() + message.chunk().num_tokens());
  } else {
    *queued->message.mutable_progress() = message.progress();
  }
  const auto bytes = static_cast<int64_t>(queued->message.ByteSizeLong());
  queued_bytes_ += bytes - queued->bytes;
  queued->bytes = bytes;
  ++queued->events;
  return true;
}

void CompletionStream::UpdatePause() {
  if (request_ == nullptr || end_.has_value()) return;
  const StreamLimits& limits = environment_->limits;
  // A step has an event for each choice.
  const int64_t most_events = limits.buffer_messages * request_->num_choices;
  const bool full = queued_bytes_ > limits.buffer_bytes || queued_events_ > most_events;
  const bool half = queued_bytes_ <= limits.buffer_bytes / 2 && queued_events_ <= most_events / 2;
  if (!paused_ && full) {
    paused_ = true;
    request_->paused.store(true);
    environment_->stats->reader_pauses.fetch_add(1);
  } else if (paused_ && half) {
    paused_ = false;
    request_->paused.store(false);
  }
}

void CompletionStream::DropQueue() {
  queue_.clear();
  queued_bytes_ = 0;
  queued_events_ = 0;
}

void CompletionStream::SetEnd(const absl::Status& status) {
  // A second terminal call would be the engine's or the router's mistake.
  AUGUR_CHECK(!end_.has_value());
  end_ = status;
  if (!cancelled_) ArmLinger();
}

// The stream has ended but a write may never complete: nobody waits for such a reader longer than
// linger_ns without progress.
void CompletionStream::ArmLinger() {
  if (!writing_ && queue_.empty()) return;
  writes_at_linger_ = writes_done_;
  linger_ = std::make_unique<grpc::Alarm>();
  linger_->Set(
      std::chrono::system_clock::now() + std::chrono::nanoseconds(environment_->limits.linger_ns),
      [weak = weak_from_this()](bool expired) {
        const std::shared_ptr<CompletionStream> stream = weak.lock();
        if (expired && stream != nullptr) stream->CheckLinger();
      });
}

void CompletionStream::CheckLinger() {
  {
    const std::lock_guard lock(mutex_);
    if (finish_called_) return;
    if (writes_done_ != writes_at_linger_) {
      ArmLinger();
      return;
    }
    // Keeps Finish away, and with it the end of the context.
    cancelling_ = true;
  }
  context_->TryCancel();
  {
    const std::lock_guard lock(mutex_);
    cancelling_ = false;
  }
  Pump();
}

bool CompletionStream::PastDeadline() const {
  // gRPC's timer and the engine's clock were read a moment apart.
  constexpr int64_t kSlackNs = 2 * memory::kNsPerMs;
  return request_ != nullptr && request_->deadline_ns != engine::kNoDeadline &&
         environment_->clock->NowNs() + kSlackNs >= request_->deadline_ns;
}

void CompletionStream::Pump() {
  // Finish may end in OnDone on another thread before it returns here.
  const std::shared_ptr<CompletionStream> keep = shared_from_this();
  bool write = false;
  {
    const std::lock_guard lock(mutex_);
    if (!started_ || writing_ || finish_called_) return;
    if (!queue_.empty()) {
      in_flight_ = SerializeMessage(queue_.front().message);
      queued_bytes_ -= queue_.front().bytes;
      queued_events_ -= queue_.front().events;
      queue_.pop_front();
      writing_ = true;
      write = true;
    } else if (end_.has_value() && !cancelling_) {
      finish_called_ = true;
    } else {
      return;
    }
  }
  // Outside the mutex: gRPC may run handlers of other calls on this thread. Order is safe, because
  // whoever set writing_ or finish_called_ is alone.
  if (write) {
    StartWrite(&in_flight_);
  } else {
    Finish(EndOnTheWire());
  }
}

// Called by the one thread that set finish_called_, before Finish: end_ and accepted_ change no
// more.
grpc::Status CompletionStream::EndOnTheWire() {
  if (end_->ok()) return grpc::Status::OK;
  if (end_->code() == absl::StatusCode::kResourceExhausted && !accepted_) {
    context_->AddTrailingMetadata("grpc-retry-pushback-ms",
                                  absl::StrCat(environment_->limits.retry_pushback_ms));
  }
  return grpc::Status(static_cast<grpc::StatusCode>(end_->code()),
                      std::string(end_->message()).substr(0, kMaxStatusMessageBytes));
}

// With mutex_ held, after Finish.
void CompletionStream::FillRecord() {
  absl::Status end = *end_;
  if (end.ok() && cancelled_) {
    // The last words did not reach the client.
    end = PastDeadline()
              ? absl::DeadlineExceededError("the deadline passed before the client had read all")
              : absl::CancelledError("cancelled by the client");
  }
  if (!end.ok()) record_.reason = EndReason::kNone;
  record_.code = static_cast<int>(end.code());
  record_.message = std::string(end.message());
  record_.total_ms = MsBetween(created_ns_, environment_->clock->NowNs());
}

}  // namespace augur::server
