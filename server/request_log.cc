#include "server/request_log.h"

#include <spdlog/spdlog.h>

#include <array>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "server/quote.h"

namespace augur::server {
namespace {

void AppendMs(const char* key, double ms, std::string* line) {
  if (ms < 0) return;
  char text[32];
  std::snprintf(text, sizeof(text), "%.3f", ms);
  absl::StrAppend(line, " ", key, "=", text);
}

}  // namespace

const char* StatusCodeName(int code) {
  static constexpr std::array<const char*, kStatusCodes> kNames = {"OK",
                                                                   "CANCELLED",
                                                                   "UNKNOWN",
                                                                   "INVALID_ARGUMENT",
                                                                   "DEADLINE_EXCEEDED",
                                                                   "NOT_FOUND",
                                                                   "ALREADY_EXISTS",
                                                                   "PERMISSION_DENIED",
                                                                   "RESOURCE_EXHAUSTED",
                                                                   "FAILED_PRECONDITION",
                                                                   "ABORTED",
                                                                   "OUT_OF_RANGE",
                                                                   "UNIMPLEMENTED",
                                                                   "INTERNAL",
                                                                   "UNAVAILABLE",
                                                                   "DATA_LOSS",
                                                                   "UNAUTHENTICATED"};
  return code >= 0 && static_cast<size_t>(code) < kNames.size() ? kNames[code] : "UNKNOWN";
}

const char* EndReasonName(EndReason reason) {
  switch (reason) {
    case EndReason::kStop:
      return "stop";
    case EndReason::kLength:
      return "length";
    case EndReason::kEos:
      return "eos";
    case EndReason::kNone:
    case EndReason::kCount:
      break;
  }
  return "none";
}

std::string FormatRequestRecord(const RequestRecord& record) {
  std::string line =
      absl::StrCat("request id=", Quoted(record.id), " peer=", Quoted(record.peer),
                   " code=", StatusCodeName(record.code), " reason=", EndReasonName(record.reason),
                   " prompt_tokens=", record.prompt_tokens, " cached_tokens=", record.cached_tokens,
                   " completion_tokens=", record.completion_tokens);
  AppendMs("queue_ms", record.queue_ms, &line);
  AppendMs("prefill_ms", record.prefill_ms, &line);
  AppendMs("first_token_ms", record.first_token_ms, &line);
  AppendMs("total_ms", record.total_ms, &line);
  absl::StrAppend(&line, " preemptions=", record.preemptions);
  if (!record.message.empty()) absl::StrAppend(&line, " message=", Quoted(record.message, 256));
  return line;
}

const char* UnaryMethodName(UnaryMethod method) {
  switch (method) {
    case UnaryMethod::kTokenize:
      return "Tokenize";
    case UnaryMethod::kDetokenize:
      return "Detokenize";
    case UnaryMethod::kGetModel:
      return "GetModel";
    case UnaryMethod::kCount:
      break;
  }
  return "none";
}

std::string FormatCallRecord(const CallRecord& record) {
  std::string line =
      absl::StrCat("call method=", UnaryMethodName(record.method), " peer=", Quoted(record.peer),
                   " code=", StatusCodeName(record.code), " bytes=", record.bytes);
  AppendMs("total_ms", record.total_ms, &line);
  if (!record.message.empty()) absl::StrAppend(&line, " message=", Quoted(record.message, 256));
  return line;
}

void LogCall(const CallRecord& record) { spdlog::info("{}", FormatCallRecord(record)); }

void LogRequest(const RequestRecord& record) { spdlog::info("{}", FormatRequestRecord(record)); }

}  // namespace augur::server
