// One Complete call from its start to its status, everything that came noted.
//
// Thread: one thread makes and reads a call. Ownership: values.
// Failure: the status of the call; breaches of the stream's own rules are in `faults`.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "augur/v1/completions.grpc.pb.h"

namespace augur::tests {

struct CallResult {
  grpc::Status status;
  std::optional<v1::Accepted> accepted;
  std::vector<v1::PrefillProgress> progress;
  std::vector<v1::PromptTokens> prompt;
  std::vector<v1::TokenChunk> chunks;
  std::optional<v1::Finished> finished;      // of the choice that ended last
  std::map<uint32_t, v1::Finished> choices;  // by index
  std::multimap<std::string, std::string> trailers;
  int messages = 0;  // of any kind
  // "a chunk before Accepted", "something after Finished", "cut UTF-8", ...: empty for a good
  // stream.
  std::vector<std::string> faults;

  // Of one choice.
  std::string Text(uint32_t choice = 0) const;
  std::vector<uint32_t> TokenIds(uint32_t choice = 0) const;
  std::vector<v1::TokenLogprobs> Logprobs(uint32_t choice = 0) const;
  // Of all pieces of the prompt.
  std::string PromptText() const;
  std::vector<v1::TokenLogprobs> PromptLogprobs() const;
  // "OK", or the status' number and message, how many messages had come, and the faults: for
  // assertion messages.
  std::string Describe() const;
};

struct CallOptions {
  std::optional<std::chrono::milliseconds> deadline = std::nullopt;
  // Called after every message with how many have come.
  std::function<void(int messages)> on_message = nullptr;
  // The caller's, where it wants to cancel; made anew otherwise.
  grpc::ClientContext* context = nullptr;
};

CallResult RunCall(v1::Completions::Stub* stub, const v1::CompleteRequest& request,
                   const CallOptions& options = {});

// A channel of its own (no sharing of connections between tests' clients).
std::unique_ptr<v1::Completions::Stub> NewStub(const std::string& address);
std::unique_ptr<v1::Completions::Stub> NewStub(const std::string& address,
                                               grpc::ChannelArguments arguments);

// Greedy, on `text`.
v1::CompleteRequest GreedyRequest(const std::string& text, uint32_t max_tokens);

}  // namespace augur::tests
