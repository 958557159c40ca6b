#include "loadtest/request_record.h"

#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace augur::loadtest {
namespace {

constexpr int kOk = 0;
constexpr int kCancelledCode = 1;
constexpr int kDeadlineExceeded = 4;
constexpr int kUnavailable = 14;
constexpr std::array kNames = {
    "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
    "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
    "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED"};

}  // namespace

uint64_t RequestRecord::TokensSeen() const {
  uint64_t tokens = 0;
  for (const TokenArrival& arrival : arrivals) tokens += arrival.tokens;
  return tokens;
}

uint64_t RequestRecord::CompletionTokens() const {
  uint64_t tokens = 0;
  for (const ChoiceEnd& end : ends) tokens += end.completion_tokens;
  return tokens;
}

bool RequestRecord::AddsUp() const {
  std::map<uint32_t, uint64_t> seen, counted;
  for (const TokenArrival& arrival : arrivals) seen[arrival.choice] += arrival.tokens;
  for (const ChoiceEnd& end : ends) {
    if (end.completion_tokens > 0) counted[end.choice] += end.completion_tokens;
  }
  return seen == counted;
}

std::vector<std::vector<TokenArrival>> RequestRecord::ArrivalsByChoice() const {
  std::map<uint32_t, std::vector<TokenArrival>> by_choice;
  for (const TokenArrival& arrival : arrivals) by_choice[arrival.choice].push_back(arrival);
  std::vector<std::vector<TokenArrival>> all;
  for (auto& [choice, own] : by_choice) all.push_back(std::move(own));
  return all;
}

Outcome OutcomeOf(const RequestRecord& record) {
  // The daemon may have been done before our cancel arrived.
  if (record.code == kOk) return record.finished() ? Outcome::kCompleted : Outcome::kLost;
  if (record.interrupted) return Outcome::kInterrupted;
  if (record.overdue) return Outcome::kLost;
  if (record.cancelled && record.code == kCancelledCode) return Outcome::kCancelled;
  if (record.has_deadline && record.code == kDeadlineExceeded) return Outcome::kExpired;
  if (!record.accepted_s) return Outcome::kRefused;
  return record.code == kUnavailable ? Outcome::kLost : Outcome::kFailed;
}

const char* OutcomeName(Outcome outcome) {
  switch (outcome) {
    case Outcome::kCompleted:
      return "completed";
    case Outcome::kCancelled:
      return "cancelled";
    case Outcome::kExpired:
      return "expired";
    case Outcome::kRefused:
      return "refused";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kLost:
      return "lost";
    case Outcome::kInterrupted:
      return "interrupted";
  }
  return "";
}

std::string CodeName(int code) {
  if (code < 0 || code >= static_cast<int>(kNames.size())) return absl::StrCat("CODE_", code);
  return kNames[static_cast<size_t>(code)];
}

}  // namespace augur::loadtest
