// The figures of one stage, made of its requests' records. README.md defines each one; the names
// here are those of the JSON.
//
// Every request that was sent has exactly one outcome, and a figure says which outcomes it is over:
// latencies are over completed requests that were not read slowly on purpose.
//
// Thread: one owner. Ownership: values; memory is bounded whatever the number of requests, but for
// the detailed records, which are kept where they are wanted. Units: milliseconds, seconds, tokens.
// Failure: ParseGoodput gives InvalidArgument naming the flag.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/latency_samples.h"
#include "loadtest/request_record.h"

namespace augur::loadtest {

// Limits in milliseconds that a good request stays within.
struct GoodputLimits {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> e2el_ms;
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

// Each "ttft:MS", "tpot:MS" or "e2el:MS".
absl::StatusOr<GoodputLimits> ParseGoodput(const std::vector<std::string>& limits);

struct StageCounts {
  uint64_t planned = 0;
  uint64_t sent = 0;  // the sum of those that follow, but for unsent ones
  uint64_t completed = 0;
  uint64_t cancelled = 0;
  uint64_t expired = 0;
  uint64_t refused = 0;
  uint64_t failed = 0;
  uint64_t lost = 0;
  uint64_t interrupted = 0;
  uint64_t unsent() const { return planned - sent; }
  // All that went wrong.
  uint64_t errors() const { return refused + failed + lost; }
};

struct StageLatencies {
  LatencySamples ttft;            // intended time to first token
  LatencySamples ttft_from_send;  // the same from the moment of sending
  LatencySamples itl;
  LatencySamples tpot;
  LatencySamples e2el;               // sending to end
  LatencySamples e2el_with_queue;    // intended time to end
  LatencySamples client_queue_time;  // intended time to sending: lateness too; over all sent
  LatencySamples acceptance;         // sending to Accepted
  // The server's own.
  LatencySamples server_queue;
  LatencySamples server_prefill;
  LatencySamples server_ttft;
  LatencySamples server_decode;
  LatencySamples server_itl;
  LatencySamples server_total;
  // What lies between the two clocks: the client's time less the server's.
  LatencySamples ttft_beyond_server;
  LatencySamples e2el_beyond_server;
};

struct StageFigures {
  StageCounts counts;
  StageLatencies latencies;
  std::map<std::string, uint64_t> errors;          // outcome and status, e.g. "refused UNAVAILABLE"
  std::map<std::string, std::string> error_texts;  // the first message of each
  std::map<std::string, uint64_t> finish_reasons;
  double duration_s = 0;             // from the stage's beginning to the last end
  uint64_t input_tokens = 0;         // of completed requests
  uint64_t cached_tokens = 0;        // of those
  uint64_t output_tokens = 0;        // of completed requests
  uint64_t other_output_tokens = 0;  // that came in streams that did not complete
  uint64_t miscounted = 0;           // completed requests whose chunks do not add up to Usage
  uint64_t good = 0;                 // within the limits
  uint64_t answers = 0;              // completed requests with a known answer
  uint64_t right = 0;
  uint64_t max_in_flight = 0;
  double max_output_tokens_per_s = 0;  // the best whole second, all streams
  double late_s = 0;                   // the largest client_queue_time

  double PerSecond(uint64_t count) const {
    return duration_s > 0 ? static_cast<double>(count) / duration_s : 0;
  }
};

class FigureCollector {
 public:
  // `keep_records`: Finish hands out every record too.
  FigureCollector(GoodputLimits limits, uint64_t planned, bool keep_records);

  // A request that was sent and has ended.
  void Add(RequestRecord record);

  // Of those added so far.
  const StageFigures& figures() const { return figures_; }
  std::vector<RequestRecord> TakeRecords() { return std::move(records_); }
  // `max_in_flight`: as the runner saw it.
  StageFigures Finish(uint64_t max_in_flight);

 private:
  void AddTokens(const RequestRecord& record);
  void AddLatencies(const RequestRecord& record);
  void AddServerTimes(const RequestRecord& record);
  bool IsGood(const RequestRecord& record) const;

  const GoodputLimits limits_;
  const bool keep_records_;
  StageFigures figures_;
  std::vector<uint64_t> tokens_of_second_;
  std::vector<RequestRecord> records_;
};

}  // namespace augur::loadtest
