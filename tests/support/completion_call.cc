#include "tests/support/completion_call.h"

#include <chrono>

#include "engine/tokenizer/utf8.h"

namespace augur::tests {
namespace {

// Notes a message, and what is wrong with its place in the stream.
class StreamCheck {
 public:
  StreamCheck(CallResult* result, uint32_t choices) : result_(result), choices_(choices) {}

  void Take(const v1::CompleteResponse& response) {
    Require(response.has_accepted() == !result_->accepted,
            "Accepted is not exactly the first message");
    switch (response.event_case()) {
      case v1::CompleteResponse::kAccepted:
        result_->accepted = response.accepted();
        break;
      case v1::CompleteResponse::kProgress:
        TakeProgress(response.progress());
        break;
      case v1::CompleteResponse::kPromptTokens:
        TakePrompt(response);
        break;
      case v1::CompleteResponse::kChunk:
        TakeChunk(response.chunk());
        break;
      case v1::CompleteResponse::kFinished:
        Require(result_->choices.emplace(response.finished().index(), response.finished()).second,
                "a choice finished twice");
        result_->finished = response.finished();
        break;
      default:
        Require(false, "a message without a known event");
    }
  }

  void End() {
    Require((result_->choices.size() == choices_) == result_->status.ok(),
            "Finished and OK do not go together");
    for (const auto& [index, finished] : result_->choices) {
      Require(index < choices_, "a choice that was not asked for");
      uint64_t tokens = 0;
      for (const v1::TokenChunk& chunk : result_->chunks) {
        if (chunk.index() == index) tokens += chunk.num_tokens();
      }
      Require(tokens == finished.usage().completion_tokens(), "chunks and usage count differently");
      Require(finished.usage().prompt_tokens() == result_->accepted->prompt_tokens(),
              "Accepted and usage count the prompt differently");
    }
  }

 private:
  void Require(bool condition, const char* fault) {
    if (!condition) result_->faults.push_back(fault);
  }

  void TakeProgress(const v1::PrefillProgress& progress) {
    Require(result_->chunks.empty(), "progress after a chunk");
    Require(progress.processed_tokens() <= progress.total_tokens(), "progress beyond the total");
    Require(result_->progress.empty() ||
                result_->progress.back().processed_tokens() < progress.processed_tokens(),
            "progress does not grow");
    result_->progress.push_back(progress);
  }

  void TakePrompt(const v1::CompleteResponse& response) {
    const v1::PromptTokens& prompt = response.prompt_tokens();
    Require(result_->chunks.empty(), "the prompt after a chunk");
    Require(engine::IsValidUtf8(prompt.text()), "cut UTF-8");
    Require(response.ByteSizeLong() <= size_t{4} << 20, "a message beyond 4 MiB");
    Require(result_->prompt.empty() ||
                result_->prompt.back().first_position() < prompt.first_position(),
            "positions of the prompt do not grow");
    result_->prompt.push_back(prompt);
  }

  void TakeChunk(const v1::TokenChunk& chunk) {
    Require(
        chunk.logprobs().empty() || chunk.logprobs_size() == static_cast<int>(chunk.num_tokens()),
        "log probabilities are not one a token");
    Require(engine::IsValidUtf8(chunk.text()), "cut UTF-8");
    Require(!result_->choices.contains(chunk.index()), "something of a choice after its Finished");
    result_->chunks.push_back(chunk);
  }

  CallResult* const result_;
  const uint32_t choices_;
};

}  // namespace

std::string CallResult::Text(uint32_t choice) const {
  std::string text;
  for (const v1::TokenChunk& chunk : chunks) {
    if (chunk.index() == choice) text += chunk.text();
  }
  return text;
}

std::string CallResult::PromptText() const {
  std::string text;
  for (const v1::PromptTokens& piece : prompt) text += piece.text();
  return text;
}

std::vector<v1::TokenLogprobs> CallResult::PromptLogprobs() const {
  std::vector<v1::TokenLogprobs> all;
  for (const v1::PromptTokens& piece : prompt) {
    all.insert(all.end(), piece.logprobs().begin(), piece.logprobs().end());
  }
  return all;
}

std::vector<v1::TokenLogprobs> CallResult::Logprobs(uint32_t choice) const {
  std::vector<v1::TokenLogprobs> all;
  for (const v1::TokenChunk& chunk : chunks) {
    if (chunk.index() != choice) continue;
    all.insert(all.end(), chunk.logprobs().begin(), chunk.logprobs().end());
  }
  return all;
}

std::vector<uint32_t> CallResult::TokenIds(uint32_t choice) const {
  std::vector<uint32_t> ids;
  for (const v1::TokenChunk& chunk : chunks) {
    if (chunk.index() != choice) continue;
    ids.insert(ids.end(), chunk.token_ids().begin(), chunk.token_ids().end());
  }
  return ids;
}

std::string CallResult::Describe() const {
  std::string text =
      status.ok() ? "OK"
                  : "status " + std::to_string(status.error_code()) + " " + status.error_message();
  text += "; " + std::to_string(messages) + (messages == 1 ? " message" : " messages");
  for (const std::string& fault : faults) text += "; " + fault;
  return text;
}

CallResult RunCall(v1::Completions::Stub* stub, const v1::CompleteRequest& request,
                   const CallOptions& options) {
  CallResult result;
  StreamCheck check(&result, request.sampling().has_n() ? request.sampling().n() : 1);
  grpc::ClientContext own;
  grpc::ClientContext& context = options.context == nullptr ? own : *options.context;
  if (options.deadline) context.set_deadline(std::chrono::system_clock::now() + *options.deadline);
  const auto reader = stub->Complete(&context, request);
  for (v1::CompleteResponse response; reader->Read(&response);) {
    ++result.messages;
    check.Take(response);
    if (options.on_message) options.on_message(result.messages);
  }
  result.status = reader->Finish();
  for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
    result.trailers.emplace(std::string(key.data(), key.size()),
                            std::string(value.data(), value.size()));
  }
  check.End();
  return result;
}

std::unique_ptr<v1::Completions::Stub> NewStub(const std::string& address,
                                               grpc::ChannelArguments arguments) {
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::Completions::NewStub(
      grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
}

std::unique_ptr<v1::Completions::Stub> NewStub(const std::string& address) {
  return NewStub(address, grpc::ChannelArguments());
}

v1::CompleteRequest GreedyRequest(const std::string& text, uint32_t max_tokens) {
  v1::CompleteRequest request;
  request.set_text(text);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  return request;
}

}  // namespace augur::tests
