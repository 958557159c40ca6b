// Calls to a running daemon: what it serves, how many tokens a text has, one greedy completion.
//
// Thread: all methods from any thread, Cancel too. Ownership: owns its channel; outlives its calls.
// Units: milliseconds on the client's monotonic clock. Failure: the status of the call, with the
// daemon's message; Unavailable names the address; Cancelled after Cancel.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "augur/v1/completions.grpc.pb.h"
#include "loadtest/attention_policies.h"

namespace augur::loadtest {

struct CompletionQuery {
  std::string prompt;
  v1::AttentionPolicy policy = v1::ATTENTION_POLICY_UNSPECIFIED;
  v1::AttentionPolicy prefill_policy = v1::ATTENTION_POLICY_UNSPECIFIED;
  std::optional<uint32_t> top_k_blocks;
  std::optional<uint32_t> value_samples;  // 0: exact values; unset: the daemon's choice
  uint64_t seed = 0;                      // of the draws of values
  uint32_t max_tokens = 16;
  std::string cache_salt;  // at most 64 bytes
};

struct CompletionAnswer {
  std::string text;  // up to the first line end
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t completion_tokens = 0;
  double first_token_ms = 0;  // from the call to the first token that arrives
  double total_ms = 0;        // from the call to its end
};

class CompletionClient {
 public:
  // `call_limit_s`: of each Complete; the other calls have 60 seconds at most.
  CompletionClient(std::string address, double call_limit_s);
  CompletionClient(const CompletionClient&) = delete;
  CompletionClient& operator=(const CompletionClient&) = delete;

  absl::StatusOr<v1::GetModelResponse> GetModel();
  absl::StatusOr<int64_t> CountTokens(const std::string& text);
  // Without what the tokenizer adds around a text.
  absl::StatusOr<std::vector<uint32_t>> Tokenize(const std::string& text);
  absl::StatusOr<CompletionAnswer> Complete(const CompletionQuery& query);
  // Natural logarithms of the probabilities of a prompt's tokens, each after those before it; 0 for
  // the first. The prompt is computed whole, under the variant's policy for prompts.
  absl::StatusOr<std::vector<double>> ScorePrompt(const std::vector<uint32_t>& ids,
                                                  const AttentionVariant& variant);

  // Ends all calls that are under way and every later one with Cancelled.
  void Cancel();

 private:
  class OpenCall;

  absl::Status ToStatus(const grpc::Status& status) const;

  const std::string address_;
  const double call_limit_s_;
  const std::unique_ptr<v1::Completions::Stub> stub_;
  std::mutex mutex_;
  bool cancelled_ = false;                // under mutex_
  std::set<grpc::ClientContext*> calls_;  // under mutex_
};

}  // namespace augur::loadtest
