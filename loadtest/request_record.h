// What became of one request: times, tokens, status. Plain data that the runner notes and the
// figures are made from.
//
// Thread: plain functions and values. Units: seconds since the stage began, on the client's
// monotonic clock; tokens. Failure: none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace augur::loadtest {

// A message with tokens. Messages without any (progress, text that was held back) are none.
struct TokenArrival {
  double at_s = 0;
  uint32_t tokens = 1;
  uint32_t choice = 0;
};

// Finished.timings: the server's own clock, milliseconds.
struct ServerTimings {
  double queue_ms = 0;
  double prefill_ms = 0;
  double first_token_ms = 0;
  double decode_ms = 0;
  double mean_inter_token_ms = 0;
  double total_ms = 0;
};

// A Finished, of one choice.
struct ChoiceEnd {
  uint32_t choice = 0;
  uint32_t completion_tokens = 0;  // as the daemon counts them
  std::optional<ServerTimings> server = {};
};

struct RequestRecord {
  uint32_t index = 0;
  uint32_t choices = 1;   // that were asked for
  double intended_s = 0;  // open loop: the plan's time; closed loop: when it could be sent
  double sent_s = 0;      // when the call was begun
  std::optional<double> accepted_s;
  std::vector<TokenArrival> arrivals;
  double end_s = 0;  // when its status was there

  int code = 0;  // of grpc::StatusCode
  std::string message;
  bool cancelled = false;    // we cancelled it, as planned
  bool overdue = false;      // we gave it up after the drain limit
  bool interrupted = false;  // we ended it because the whole run was ended
  bool has_deadline = false;
  bool slow_reader = false;

  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  std::vector<ChoiceEnd> ends;  // in the order of their coming
  std::string finish_reason;    // of the choice that ended last, as the daemon counts a request

  // Of the first choice.
  std::optional<bool> answer_right;  // where the prompt is a question
  std::string text;                  // where it is wanted

  bool finished() const { return ends.size() == choices; }
  // Tokens that came, whatever the end.
  uint64_t TokensSeen() const;
  // By the daemon's count, of the choices that ended.
  uint64_t CompletionTokens() const;
  // Whether what came of each choice adds up to what the daemon counts.
  bool AddsUp() const;
  // Choice by choice, each in the order of coming.
  std::vector<std::vector<TokenArrival>> ArrivalsByChoice() const;
};

enum class Outcome {
  kCompleted,    // OK, and a Finished of each choice before it
  kCancelled,    // by us, as planned
  kExpired,      // DEADLINE_EXCEEDED, and a deadline was planned
  kRefused,      // an error before it was accepted
  kFailed,       // an error after that
  kLost,         // ended OK without all of those, or did not end until the drain limit had passed,
                 // or was accepted and then its connection broke (UNAVAILABLE)
  kInterrupted,  // the run was ended
};

Outcome OutcomeOf(const RequestRecord& record);
const char* OutcomeName(Outcome outcome);

// "OK", "RESOURCE_EXHAUSTED", ...
std::string CodeName(int code);

}  // namespace augur::loadtest
