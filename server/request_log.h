// The one structured line that every call leaves in the log at its end, whatever the end was.
//
// Thread: any.
// Failure: none; the log drops lines rather than wait (server/logging.h).
#pragma once

#include <cstdint>
#include <string>

#include "server/front_stats.h"

namespace augur::server {

struct RequestRecord {
  static constexpr double kUnknown = -1;

  std::string id;  // as the client gave it: escaped when written
  std::string peer;
  int code = 0;  // gRPC's number
  EndReason reason = EndReason::kNone;
  std::string message;  // of a status that is not OK
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t completion_tokens = 0;
  uint32_t preemptions = 0;
  double queue_ms = kUnknown;
  double prefill_ms = kUnknown;
  double first_token_ms = kUnknown;
  double total_ms = 0;
};

// "OK", "INVALID_ARGUMENT"; "UNKNOWN" for numbers that gRPC lacks.
const char* StatusCodeName(int code);
const char* EndReasonName(EndReason reason);

// key=value pairs, one line, values from outside quoted.
std::string FormatRequestRecord(const RequestRecord& record);

void LogRequest(const RequestRecord& record);

// A call that is no completion.
struct CallRecord {
  UnaryMethod method = UnaryMethod::kTokenize;
  std::string peer;
  int code = 0;
  std::string message;
  int64_t bytes = 0;  // of the request
  double total_ms = 0;
};

// "Tokenize".
const char* UnaryMethodName(UnaryMethod method);
std::string FormatCallRecord(const CallRecord& record);
void LogCall(const CallRecord& record);

}  // namespace augur::server
