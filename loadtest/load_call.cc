#include "loadtest/load_call.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "loadtest/exact_match.h"

namespace augur::loadtest {
namespace {

const char* ReasonName(v1::FinishReason reason) {
  switch (reason) {
    case v1::FINISH_REASON_STOP:
      return "stop";
    case v1::FINISH_REASON_LENGTH:
      return "length";
    case v1::FINISH_REASON_EOS:
      return "eos";
    default:
      return "unspecified";
  }
}

bool IsRight(const std::string& completion, const std::vector<std::string>& answers) {
  return answers.size() == 1 ? IsExactMatch(completion, answers[0])
                             : HasAllAnswers(completion, answers);
}

}  // namespace

LoadCall::LoadCall(const PlannedRequest& planned, v1::CompleteRequest request,
                   LoadCallOptions options)
    : planned_(planned), options_(options), request_(std::move(request)) {
  record_.index = planned.index;
  record_.choices = planned.choices;
  record_.has_deadline = planned.deadline_s > 0;
  record_.slow_reader = planned.read_pause_s > 0;
}

double LoadCall::Now() const {
  return std::chrono::duration<double>(LoadClock::now() - epoch_).count();
}

void LoadCall::Start(v1::Completions::Stub* stub, grpc::CompletionQueue* queue,
                     LoadClock::time_point epoch, std::optional<double> intended_s) {
  epoch_ = epoch;
  const double limit_s = record_.has_deadline ? planned_.deadline_s : options_.call_limit_s;
  if (limit_s > 0) {
    context_.set_deadline(std::chrono::system_clock::now() +
                          std::chrono::microseconds(static_cast<int64_t>(limit_s * 1e6)));
  }
  record_.sent_s = Now();
  record_.intended_s = intended_s.value_or(record_.sent_s);
  reader_ = stub->PrepareAsyncComplete(&context_, request_, queue);
  request_ = {};
  reader_->StartCall(this);
}

LoadCall::Next LoadCall::Read() {
  if (planned_.read_pause_s > 0 && !first_read_) {
    state_ = State::kPausing;
    return Next::kPause;
  }
  first_read_ = false;
  Resume();
  return Next::kWait;
}

void LoadCall::Resume() {
  state_ = State::kReading;
  reader_->Read(&response_, this);
}

LoadCall::Next LoadCall::Proceed(bool ok) {
  const double at_s = Now();
  if (state_ == State::kFinishing) {
    record_.end_s = at_s;
    record_.code = status_.error_code();
    record_.message = absl::Utf8SafeCEscape(status_.error_message());
    if (options_.answers != nullptr) {
      record_.answer_right = IsRight(record_.text, *options_.answers);
    }
    if (!options_.keep_text) record_.text.clear();
    return Next::kEnded;
  }
  if (!ok) {
    state_ = State::kFinishing;
    reader_->Finish(&status_, this);
    return Next::kWait;
  }
  if (state_ == State::kReading) Note(response_, at_s);
  return Read();
}

void LoadCall::Note(const v1::CompleteResponse& response, double at_s) {
  switch (response.event_case()) {
    case v1::CompleteResponse::kAccepted:
      if (!record_.accepted_s) record_.accepted_s = at_s;
      break;
    case v1::CompleteResponse::kChunk:
      if (response.chunk().num_tokens() > 0) {
        record_.arrivals.push_back({at_s, response.chunk().num_tokens(), response.chunk().index()});
      }
      if (response.chunk().index() == 0 && (options_.keep_text || options_.answers != nullptr)) {
        record_.text += response.chunk().text();
      }
      break;
    case v1::CompleteResponse::kFinished:
      NoteFinished(response.finished());
      break;
    default:
      break;
  }
}

void LoadCall::NoteFinished(const v1::Finished& finished) {
  record_.finish_reason = ReasonName(finished.finish_reason());
  record_.prompt_tokens = finished.usage().prompt_tokens();
  record_.cached_tokens = finished.usage().cached_tokens();
  record_.ends.push_back({finished.index(), finished.usage().completion_tokens()});
  if (!finished.has_timings()) return;
  const v1::Timings& timings = finished.timings();
  record_.ends.back().server = {
      timings.queue_ms(),  timings.prefill_ms(),          timings.first_token_ms(),
      timings.decode_ms(), timings.mean_inter_token_ms(), timings.total_ms()};
}

}  // namespace augur::loadtest
