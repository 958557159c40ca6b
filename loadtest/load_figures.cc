#include "loadtest/load_figures.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace augur::loadtest {
namespace {

constexpr size_t kMostSeconds = 10'000'000;
constexpr size_t kMostErrorKinds = 64;

double Milliseconds(double from_s, double to_s) { return (to_s - from_s) * 1000; }

// Of a choice: from the first token to the last over the tokens after the first; nothing for a
// single one.
std::optional<double> TimePerToken(const std::vector<TokenArrival>& arrivals) {
  uint64_t tokens = 0;
  for (const TokenArrival& arrival : arrivals) tokens += arrival.tokens;
  if (tokens < 2) return std::nullopt;
  return Milliseconds(arrivals.front().at_s, arrivals.back().at_s) /
         static_cast<double>(tokens - 1);
}

uint64_t* CountOf(Outcome outcome, StageCounts* counts) {
  switch (outcome) {
    case Outcome::kCompleted:
      return &counts->completed;
    case Outcome::kCancelled:
      return &counts->cancelled;
    case Outcome::kExpired:
      return &counts->expired;
    case Outcome::kRefused:
      return &counts->refused;
    case Outcome::kFailed:
      return &counts->failed;
    case Outcome::kLost:
      return &counts->lost;
    case Outcome::kInterrupted:
      break;
  }
  return &counts->interrupted;
}

}  // namespace

absl::StatusOr<GoodputLimits> ParseGoodput(const std::vector<std::string>& limits) {
  GoodputLimits parsed;
  for (const std::string& limit : limits) {
    const size_t colon = limit.find(':');
    const std::string name = limit.substr(0, colon);
    std::optional<double>* into = name == "ttft"   ? &parsed.ttft_ms
                                  : name == "tpot" ? &parsed.tpot_ms
                                  : name == "e2el" ? &parsed.e2el_ms
                                                   : nullptr;
    double ms = 0;
    if (into == nullptr || colon == std::string::npos ||
        !absl::SimpleAtod(limit.substr(colon + 1), &ms) || !(ms > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--goodput: \"", limit, "\" is none of ttft:MS, tpot:MS, e2el:MS"));
    }
    *into = ms;
  }
  return parsed;
}

FigureCollector::FigureCollector(GoodputLimits limits, uint64_t planned, bool keep_records)
    : limits_(limits), keep_records_(keep_records) {
  figures_.counts.planned = planned;
}

void FigureCollector::Add(RequestRecord record) {
  const Outcome outcome = OutcomeOf(record);
  ++figures_.counts.sent;
  ++*CountOf(outcome, &figures_.counts);
  const double waited = record.sent_s - record.intended_s;
  figures_.latencies.client_queue_time.Add(waited * 1000);
  figures_.late_s = std::max(figures_.late_s, waited);
  figures_.duration_s = std::max(figures_.duration_s, record.end_s);
  if (record.accepted_s) {
    figures_.latencies.acceptance.Add(Milliseconds(record.sent_s, *record.accepted_s));
  }
  AddTokens(record);
  if (outcome == Outcome::kCompleted) {
    if (!record.AddsUp()) ++figures_.miscounted;
    if (!record.slow_reader) AddLatencies(record);
    if (IsGood(record)) ++figures_.good;
    if (record.answer_right) {
      ++figures_.answers;
      if (*record.answer_right) ++figures_.right;
    }
    ++figures_.finish_reasons[record.finish_reason];
  } else if (outcome != Outcome::kCancelled && outcome != Outcome::kExpired) {
    std::string key = absl::StrCat(OutcomeName(outcome), " ", CodeName(record.code));
    if (figures_.errors.size() >= kMostErrorKinds && figures_.errors.count(key) == 0) {
      key = "others";
    }
    ++figures_.errors[key];
    figures_.error_texts.emplace(key, record.message.substr(0, 500));
  }
  if (keep_records_) records_.push_back(std::move(record));
}

void FigureCollector::AddTokens(const RequestRecord& record) {
  if (OutcomeOf(record) == Outcome::kCompleted) {
    figures_.input_tokens += record.prompt_tokens;
    figures_.cached_tokens += record.cached_tokens;
    figures_.output_tokens += record.CompletionTokens();
  } else {
    figures_.other_output_tokens += record.TokensSeen();
  }
  for (const TokenArrival& arrival : record.arrivals) {
    const auto second = std::min(static_cast<size_t>(std::max(arrival.at_s, 0.0)), kMostSeconds);
    if (second >= tokens_of_second_.size()) tokens_of_second_.resize(second + 1);
    tokens_of_second_[second] += arrival.tokens;
    figures_.max_output_tokens_per_s =
        std::max(figures_.max_output_tokens_per_s, static_cast<double>(tokens_of_second_[second]));
  }
}

void FigureCollector::AddLatencies(const RequestRecord& record) {
  StageLatencies* all = &figures_.latencies;
  all->e2el.Add(Milliseconds(record.sent_s, record.end_s));
  all->e2el_with_queue.Add(Milliseconds(record.intended_s, record.end_s));
  if (!record.arrivals.empty()) {
    const double first = record.arrivals.front().at_s;
    all->ttft.Add(Milliseconds(record.intended_s, first));
    all->ttft_from_send.Add(Milliseconds(record.sent_s, first));
  }
  for (const std::vector<TokenArrival>& arrivals : record.ArrivalsByChoice()) {
    for (size_t i = 1; i < arrivals.size(); ++i) {
      const double gap = Milliseconds(arrivals[i - 1].at_s, arrivals[i].at_s);
      all->itl.Add(gap / arrivals[i].tokens, arrivals[i].tokens);
    }
    const std::optional<double> tpot = TimePerToken(arrivals);
    if (tpot) all->tpot.Add(*tpot);
  }
  AddServerTimes(record);
}

void FigureCollector::AddServerTimes(const RequestRecord& record) {
  StageLatencies* all = &figures_.latencies;
  std::optional<double> first_ms, total_ms;  // of all choices
  for (const ChoiceEnd& end : record.ends) {
    if (!end.server) continue;
    const ServerTimings& server = *end.server;
    all->server_queue.Add(server.queue_ms);
    all->server_prefill.Add(server.prefill_ms);
    all->server_ttft.Add(server.first_token_ms);
    all->server_decode.Add(server.decode_ms);
    if (end.completion_tokens > 1) all->server_itl.Add(server.mean_inter_token_ms);
    all->server_total.Add(server.total_ms);
    first_ms = std::min(first_ms.value_or(server.first_token_ms), server.first_token_ms);
    total_ms = std::max(total_ms.value_or(server.total_ms), server.total_ms);
  }
  if (!total_ms) return;
  all->e2el_beyond_server.Add(Milliseconds(record.sent_s, record.end_s) - *total_ms);
  if (!record.arrivals.empty()) {
    all->ttft_beyond_server.Add(Milliseconds(record.sent_s, record.arrivals.front().at_s) -
                                *first_ms);
  }
}

bool FigureCollector::IsGood(const RequestRecord& record) const {
  if (limits_.ttft_ms) {
    if (record.arrivals.empty()) return false;
    const double ttft = Milliseconds(record.intended_s, record.arrivals.front().at_s);
    if (ttft > *limits_.ttft_ms) return false;
  }
  if (limits_.tpot_ms) {
    for (const std::vector<TokenArrival>& arrivals : record.ArrivalsByChoice()) {
      if (TimePerToken(arrivals).value_or(0) > *limits_.tpot_ms) return false;
    }
  }
  return !limits_.e2el_ms || Milliseconds(record.intended_s, record.end_s) <= *limits_.e2el_ms;
}

StageFigures FigureCollector::Finish(uint64_t max_in_flight) {
  figures_.max_in_flight = max_in_flight;
  return figures_;
}

}  // namespace augur::loadtest
