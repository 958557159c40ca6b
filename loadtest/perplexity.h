// Perplexity of a text under attention policies: how well each token is foretold from those before
// it, by a daemon's own log probabilities of a prompt. Texts one behind the other are cut into
// sequences of one length; of each the second half is scored, so that every scored token has a long
// history. Prompts have one policy, so of `dense/forecast` the first counts.
//
// A difference to dense is paired: means over stretches of 64 tokens, and their normal interval.
// Neighbouring stretches are taken as independent.
//
// Thread: one thread calls. Ownership: the caller keeps the client. Units: nats a token. Failure:
// each function says.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loadtest/accuracy_statistics.h"
#include "loadtest/attention_policies.h"
#include "loadtest/completion_client.h"

namespace augur::loadtest {

using TokenSequence = std::vector<uint32_t>;

struct PerplexityRun {
  AttentionVariant variant;
  int64_t length = 0;
  std::vector<double> nats = {};  // of scored tokens, sequence by sequence: the same in every run

  double mean() const;
  double perplexity() const;  // e to the mean
};

struct PerplexityReport {
  std::vector<PerplexityRun> runs;
  std::vector<std::string> refused;  // a line for each policy that the daemon does not have
};

struct NatsDifference {
  double difference = 0;  // mean of `here` minus that of `baseline`
  Interval interval;      // 95 %
};
// Of equal size; none where there are fewer than two stretches.
std::optional<NatsDifference> CompareNats(const std::vector<double>& here,
                                          const std::vector<double>& baseline);

// The first `most` sequences of `length` tokens. InvalidArgument where there is none.
absl::StatusOr<std::vector<TokenSequence>> CutSequences(const TokenSequence& tokens, int64_t length,
                                                        int most);

// Adds a run for each variant. One that is refused with FAILED_PRECONDITION is noted; any other
// failed call ends it with its status, and what was complete stays.
absl::Status ScoreVariants(const std::vector<TokenSequence>& sequences,
                           const std::vector<AttentionVariant>& variants, CompletionClient* client,
                           const std::function<void(const std::string& line)>& progress,
                           PerplexityReport* report);

std::string PerplexityText(const PerplexityReport& report);
std::string PerplexityJson(const PerplexityReport& report);

}  // namespace augur::loadtest
