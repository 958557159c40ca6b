// Streams and the service before an engine that the test plays: order, back-pressure, cancellation,
// and exactly one end for every call.

#include "server/completion_stream.h"

#include <grpcpp/impl/codegen/client_unary_call.h>
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "fake_engine.h"
#include "front_server.h"

namespace augur::server {
namespace {

using engine::Completion;
using engine::FinishReason;

constexpr int64_t kMs = memory::kNsPerMs;

Completion CompletionOf(FinishReason reason, uint32_t tokens) {
  Completion completion;
  completion.last = true;
  completion.reason = reason;
  completion.prompt_tokens = 3;
  completion.cached_tokens = 1;
  completion.completion_tokens = tokens;
  completion.times = {
      .arrival_ns = 0, .admitted_ns = 2 * kMs, .first_token_ns = 10 * kMs, .finished_ns = 30 * kMs};
  return completion;
}

class CompletionStreamTest : public testing::Test {
 protected:
  uint64_t Ended(int code, EndReason reason = EndReason::kNone) const {
    return server_.stats.requests[code][static_cast<size_t>(reason)];
  }
  bool NoStreamIsLeft() {
    return Eventually([&] { return server_.stats.open_streams == 0; });
  }

  FakeEngine engine_;
  FrontServer server_{&engine_,
                      {.buffer_bytes = 8 << 10, .buffer_messages = 16, .linger_ns = 200 * kMs}};
};

TEST_F(CompletionStreamTest, TellsTheWholeStoryInOrder) {
  v1::CompleteRequest request = TextRequest("abc");
  request.set_request_id("label");
  request.mutable_sampling()->set_seed(5);
  grpc::ClientContext context;
  const auto reader = server_.stub->Complete(&context, request);
  const auto submitted = engine_.Take();
  ASSERT_NE(submitted, nullptr);
  EXPECT_EQ(submitted->prompt,
            (std::vector<engine::TokenId>{FakeTokenizer::kBegin, 'a', 'b', 'c'}));
  EXPECT_EQ(submitted->sampling.seed, 5u);
  EXPECT_EQ(submitted->deadline_ns, engine::kNoDeadline);
  v1::CompleteResponse message;
  ASSERT_TRUE(reader->Read(&message));  // before any prefill
  EXPECT_EQ(message.accepted().request_id(), "label");
  EXPECT_EQ(message.accepted().prompt_tokens(), 4u);
  EXPECT_EQ(message.accepted().model(), "fake");
  EXPECT_EQ(message.accepted().seed(), 5u);
  submitted->sink->OnProgress(
      {.processed_tokens = 4, .cached_tokens = 1, .total_tokens = 4, .elapsed_ns = 3 * kMs});
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_EQ(message.progress().processed_tokens(), 4u);
  EXPECT_EQ(message.progress().elapsed_ms(), 3u);
  submitted->sink->OnChunk(ChunkOf("hi"));
  Completion completion = CompletionOf(FinishReason::kStop, 2);
  completion.stop_string = "!";
  submitted->sink->OnFinished(completion);
  const Received rest = ReadAll(reader.get());
  EXPECT_TRUE(rest.status.ok());
  EXPECT_EQ(rest.text(), "hi");
  const v1::Finished& finished = rest.messages.back().finished();
  EXPECT_EQ(finished.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(finished.stop_string(), "!");
  EXPECT_EQ(finished.usage().cached_tokens(), 1u);
  EXPECT_EQ(finished.timings().queue_ms(), 2);
  EXPECT_EQ(finished.timings().prefill_ms(), 8);
  EXPECT_EQ(finished.timings().first_token_ms(), 10);
  EXPECT_EQ(finished.timings().decode_ms(), 20);
  EXPECT_EQ(finished.timings().mean_inter_token_ms(), 20);
  EXPECT_EQ(finished.timings().total_ms(), 30);
  EXPECT_TRUE(NoStreamIsLeft());
  EXPECT_EQ(Ended(0, EndReason::kStop), 1u);
}

// One call of three choices whose events come in any order among each other; gives how many
// messages they became.
size_t SendThreeChoices(FrontServer& server, FakeEngine& engine) {
  v1::CompleteRequest request = TextRequest("abc");
  request.mutable_sampling()->set_n(3);
  request.set_priority(-7);
  grpc::ClientContext context;
  const auto reader = server.stub->Complete(&context, request);
  const auto submitted = engine.Take();
  EXPECT_NE(submitted, nullptr);
  if (submitted == nullptr) return 0;
  EXPECT_EQ(submitted->num_choices, 3u);
  EXPECT_EQ(submitted->priority, -7);
  std::map<uint32_t, std::string> sent;
  // 42 events: with Accepted and three ends still no more than 16 a choice, at which a stream whose
  // messages all wait is paused.
  for (int i = 0; i < 14; ++i) {
    for (const uint32_t choice : {2u, 0u, 1u}) {
      engine::TokenChunk chunk = ChunkOf(std::to_string(choice) + "." + std::to_string(i) + " ");
      chunk.index = choice;
      sent[choice] += chunk.text;
      submitted->sink->OnChunk(std::move(chunk));
    }
  }
  for (const uint32_t choice : {1u, 2u, 0u}) {
    Completion completion = CompletionOf(FinishReason::kLength, 14);
    completion.index = choice;
    completion.last = choice == 0;
    submitted->sink->OnFinished(completion);
  }
  const Received received = ReadAll(reader.get());
  EXPECT_TRUE(received.status.ok());
  std::map<uint32_t, std::string> texts;
  std::vector<uint32_t> finished;
  for (const v1::CompleteResponse& message : received.messages) {
    if (message.has_chunk()) texts[message.chunk().index()] += message.chunk().text();
    if (message.has_finished()) finished.push_back(message.finished().index());
  }
  EXPECT_EQ(texts, sent);
  EXPECT_EQ(finished, (std::vector<uint32_t>{1, 2, 0}));
  return received.messages.size();
}

// The last Finished ends the stream, and what waits for a reader is merged choice by choice.
// Whether anything waits is up to who is faster: it does in one of a hundred calls at least.
TEST_F(CompletionStreamTest, ChoicesAreToldApart) {
  uint64_t calls = 0;
  bool was_merged = false;
  while (!was_merged && calls < 100) {
    ++calls;
    const size_t messages = SendThreeChoices(server_, engine_);
    ASSERT_GE(messages, 1 + 3 + 3u);
    ASSERT_LE(messages, 1 + 42 + 3u);
    was_merged = messages < 1 + 42 + 3u;
  }
  EXPECT_TRUE(was_merged);
  EXPECT_EQ(server_.stats.reader_pauses, 0u);
  EXPECT_TRUE(NoStreamIsLeft());
  EXPECT_EQ(Ended(0, EndReason::kLength), calls);
}

TEST_F(CompletionStreamTest, AnErrorEndsAllChoices) {
  v1::CompleteRequest request = TextRequest("abc");
  request.mutable_sampling()->set_n(2);
  grpc::ClientContext context;
  const auto reader = server_.stub->Complete(&context, request);
  const auto submitted = engine_.Take();
  Completion completion = CompletionOf(FinishReason::kEos, 1);
  completion.last = false;
  submitted->sink->OnFinished(completion);
  submitted->sink->OnError(absl::InternalError("not finite"));
  const Received received = ReadAll(reader.get());
  EXPECT_TRUE(received.messages.back().has_finished());
  EXPECT_EQ(received.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_TRUE(NoStreamIsLeft());
  EXPECT_EQ(Ended(13), 1u);
}

// The prompt's first token has none; chunks that wait are joined with all that is told of theirs.
TEST_F(CompletionStreamTest, LogprobsArriveWithTheirTokens) {
  grpc::ClientContext context;
  const auto reader = server_.stub->Complete(&context, TextRequest("abc"));
  const auto submitted = engine_.Take();
  engine::PromptTokens prompt;
  prompt.first_position = 7;
  prompt.text = "ab";
  prompt.token_ids = {3, 4};
  prompt.logprobs.resize(2);
  prompt.logprobs[1].chosen = {.token = 4, .logprob = -0.5f, .rank = 2, .bytes = "\xff"};
  prompt.logprobs[1].top = {{.token = 9, .logprob = -0.25f, .rank = 1, .bytes = "x"}};
  submitted->sink->OnPrompt(prompt);
  for (engine::TokenId token = 0; token < 10; ++token) {
    engine::TokenChunk chunk = ChunkOf("t");
    chunk.logprobs.resize(1);
    chunk.logprobs[0].chosen = {.token = token, .logprob = -1.0f, .rank = 1, .bytes = "t"};
    submitted->sink->OnChunk(chunk);
  }
  submitted->sink->OnFinished(CompletionOf(FinishReason::kLength, 10));
  const Received received = ReadAll(reader.get());
  EXPECT_TRUE(received.status.ok());
  uint32_t next = 0;
  for (const v1::CompleteResponse& message : received.messages) {
    if (message.has_prompt_tokens()) {
      const v1::PromptTokens& told = message.prompt_tokens();
      EXPECT_EQ(told.first_position(), 7u);
      EXPECT_EQ(told.text(), "ab");
      EXPECT_EQ(told.token_ids(1), 4u);
      ASSERT_EQ(told.logprobs_size(), 2);
      EXPECT_FALSE(told.logprobs(0).has_chosen());
      EXPECT_EQ(told.logprobs(1).chosen().token(), "\xff");
      EXPECT_EQ(told.logprobs(1).chosen().rank(), 2u);
      EXPECT_EQ(told.logprobs(1).top(0).token_id(), 9u);
      EXPECT_EQ(told.logprobs(1).top(0).logprob(), -0.25f);
    }
    EXPECT_EQ(message.chunk().logprobs_size(), static_cast<int>(message.chunk().num_tokens()));
    for (const v1::TokenLogprobs& one : message.chunk().logprobs()) {
      EXPECT_EQ(one.chosen().token_id(), next++);
    }
  }
  EXPECT_EQ(next, 10u);
}

TEST_F(CompletionStreamTest, AnErrorIsTheOnlyEnd) {
  grpc::ClientContext context;
  const auto reader = server_.stub->Complete(&context, TextRequest("abc"));
  const auto submitted = engine_.Take();
  submitted->sink->OnChunk(ChunkOf("part"));
  submitted->sink->OnError(absl::InternalError("row 3: logits are not finite"));
  const Received received = ReadAll(reader.get());
  EXPECT_EQ(received.text(), "part");
  EXPECT_FALSE(received.messages.back().has_finished());
  EXPECT_EQ(received.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(received.status.error_message(), "row 3: logits are not finite");
  EXPECT_TRUE(NoStreamIsLeft());
  EXPECT_EQ(Ended(13), 1u);
}

// A reader that stops is paused within a bound, and goes on where it was when it reads again.
TEST_F(CompletionStreamTest, ASlowReaderIsPausedAndResumed) {
  grpc::ClientContext context;
  const auto reader = server_.stub->Complete(&context, TextRequest("abc"));
  const auto submitted = engine_.Take();
  std::string sent;
  ASSERT_TRUE(Eventually([&] {
    if (submitted->paused) return true;
    const std::string part(1000, static_cast<char>('a' + sent.size() / 1000 % 26));
    submitted->sink->OnChunk(ChunkOf(part));
    sent += part;
    return submitted->paused.load();
  }));
  EXPECT_EQ(server_.stats.reader_pauses, 1u);
  // The buffer, and what the connection's windows and gRPC hold.
  EXPECT_LT(sent.size(), 256u << 10);
  const int wakes = engine_.wakes;
  v1::CompleteResponse message;
  std::string text;
  std::thread rest([&] {
    EXPECT_TRUE(Eventually([&] { return !submitted->paused && engine_.wakes > wakes; }));
    submitted->sink->OnFinished(CompletionOf(FinishReason::kLength, 9));
  });
  int messages = 0;
  while (reader->Read(&message)) {
    text += message.chunk().text();
    ++messages;
    EXPECT_LT(message.ByteSizeLong(), 128u << 10);
  }
  rest.join();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, sent);
  EXPECT_TRUE(message.has_finished());
  EXPECT_TRUE(NoStreamIsLeft());
}

// What the engine decides about a reader that never comes back costs the stream a bounded time.
TEST_F(CompletionStreamTest, AReaderThatNeverReadsIsCutOff) {
  grpc::ClientContext context;
  const auto reader = server_.stub->Complete(&context, TextRequest("abc"));
  const auto submitted = engine_.Take();
  ASSERT_TRUE(Eventually([&] {
    submitted->sink->OnChunk(ChunkOf(std::string(4000, 'x')));
    return submitted->paused.load();
  }));
  submitted->sink->OnError(absl::ResourceExhaustedError("the reader stayed behind"));
  EXPECT_TRUE(NoStreamIsLeft());
  EXPECT_EQ(Ended(8), 1u);
  EXPECT_FALSE(ReadAll(reader.get()).status.ok());
}

// Neighbours on other streams see nothing of it.
TEST_F(CompletionStreamTest, ASlowReaderHurtsNobodyElse) {
  grpc::ClientContext slow_context;
  const auto slow = server_.stub->Complete(&slow_context, TextRequest("slow"));
  const auto slow_request = engine_.Take();
  ASSERT_TRUE(Eventually([&] {
    slow_request->sink->OnChunk(ChunkOf(std::string(4000, 'x')));
    return slow_request->paused.load();
  }));
  const auto stub = v1::Completions::NewStub(server_.NewChannel());
  grpc::ClientContext context;
  const auto reader = stub->Complete(&context, TextRequest("quick"));
  const auto request = engine_.Take();
  request->sink->OnChunk(ChunkOf("ok"));
  request->sink->OnFinished(CompletionOf(FinishReason::kEos, 1));
  const Received received = ReadAll(reader.get());
  EXPECT_TRUE(received.status.ok());
  EXPECT_EQ(received.text(), "ok");
  EXPECT_FALSE(request->paused);
  slow_context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return slow_request->cancelled.load(); }));
  slow_request->sink->OnError(absl::CancelledError("cancelled"));
  EXPECT_TRUE(NoStreamIsLeft());
}

TEST_F(CompletionStreamTest, ACancelReachesTheEngine) {
  grpc::ClientContext context;
  const auto reader = server_.stub->Complete(&context, TextRequest("abc"));
  const auto submitted = engine_.Take();
  context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return submitted->cancelled.load() && engine_.wakes > 0; }));
  EXPECT_EQ(server_.stats.open_streams, 1);  // until the engine has let go
  submitted->sink->OnChunk(ChunkOf("too late"));
  submitted->sink->OnError(absl::CancelledError("cancelled"));
  EXPECT_EQ(ReadAll(reader.get()).status.error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(NoStreamIsLeft());
  EXPECT_EQ(Ended(1), 1u);
}

// A cancel that crosses the last token is a cancel: the client has not got it.
TEST_F(CompletionStreamTest, ACancelThatCrossesTheEnd) {
  for (int i = 0; i < 200; ++i) {
    grpc::ClientContext context;
    const auto reader = server_.stub->Complete(&context, TextRequest("abc"));
    const auto submitted = engine_.Take();
    std::thread canceller([&] { context.TryCancel(); });
    submitted->sink->OnChunk(ChunkOf("x"));
    submitted->sink->OnFinished(CompletionOf(FinishReason::kEos, 1));
    canceller.join();
    ReadAll(reader.get());
  }
  EXPECT_TRUE(NoStreamIsLeft());
  EXPECT_EQ(Ended(0, EndReason::kEos) + Ended(1), 200u);
}

TEST_F(CompletionStreamTest, ADeadlineIsTheEnginesToEnd) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(300));
  const auto reader = server_.stub->Complete(&context, TextRequest("abc"));
  const auto submitted = engine_.Take();
  const int64_t left_ns = submitted->deadline_ns - server_.clock.NowNs();
  // gRPC sends the time that is left in whole milliseconds: the client rounds its deadline up and
  // its clock down, the server its clock once more. Each adds less than 1 ms.
  EXPECT_LT(left_ns, 303 * kMs);
  EXPECT_EQ(ReadAll(reader.get()).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return server_.clock.NowNs() >= submitted->deadline_ns; }));
  submitted->sink->OnError(absl::DeadlineExceededError("the deadline passed in decode"));
  EXPECT_TRUE(NoStreamIsLeft());
  EXPECT_EQ(Ended(4), 1u);
}

TEST_F(CompletionStreamTest, TheDefaultDeadlineIsForThoseWhoSetNone) {
  server_.SetDefaultDeadline(3600 * memory::kNsPerSecond);
  for (const bool own : {false, true}) {
    grpc::ClientContext context;
    if (own) context.set_deadline(std::chrono::system_clock::now() + std::chrono::hours(2));
    const auto reader = server_.stub->Complete(&context, TextRequest("abc"));
    const auto submitted = engine_.Take();
    const int64_t limit_ns = submitted->deadline_ns - submitted->arrival_ns;
    if (own) {
      EXPECT_GT(limit_ns, 7000 * memory::kNsPerSecond);
    } else {
      EXPECT_EQ(limit_ns, 3600 * memory::kNsPerSecond);
    }
    submitted->sink->OnError(absl::DeadlineExceededError("the deadline passed"));
    EXPECT_EQ(ReadAll(reader.get()).status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
}

TEST_F(CompletionStreamTest, AFullQueueTellsWhenToComeBack) {
  engine_.on_submit = [] { return absl::ResourceExhaustedError("the queue is full"); };
  grpc::ClientContext context;
  const auto reader = server_.stub->Complete(&context, TextRequest("abc"));
  const Received received = ReadAll(reader.get());
  EXPECT_TRUE(received.messages.empty());
  EXPECT_EQ(received.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto trailers = context.GetServerTrailingMetadata();
  const auto pushback = trailers.find("grpc-retry-pushback-ms");
  ASSERT_NE(pushback, trailers.end());
  EXPECT_EQ(std::string(pushback->second.begin(), pushback->second.end()), "1000");
  EXPECT_TRUE(NoStreamIsLeft());
  EXPECT_EQ(Ended(8), 1u);
}

TEST_F(CompletionStreamTest, RefusalsReachNoEngine) {
  const auto code_of = [&](const v1::CompleteRequest& request) {
    return Complete(server_.stub.get(), request).status.error_code();
  };
  v1::CompleteRequest request;
  EXPECT_EQ(code_of(request), grpc::StatusCode::INVALID_ARGUMENT);
  request = TextRequest("a");
  request.set_model("other");
  EXPECT_EQ(code_of(request), grpc::StatusCode::NOT_FOUND);
  request = TextRequest("a");
  request.mutable_attention()->set_policy(v1::ATTENTION_POLICY_FORECAST);
  EXPECT_EQ(code_of(request), grpc::StatusCode::FAILED_PRECONDITION);
  request = TextRequest(std::string(4096, 'a'));  // encodes to 4,097 tokens
  const Received received = Complete(server_.stub.get(), request);
  EXPECT_EQ(received.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(received.status.error_message(),
            "prompt of 4097 tokens + max_tokens of 16 is beyond the context of 4096 tokens");
  EXPECT_TRUE(NoStreamIsLeft());
  EXPECT_EQ(Ended(3), 2u);
  EXPECT_EQ(Ended(5), 1u);
  EXPECT_EQ(Ended(9), 1u);
}

TEST_F(CompletionStreamTest, RawBytesAreRefusedWithTheirField) {
  const auto channel = server_.NewChannel();
  const auto code_of = [&](const char* method, const std::string& bytes) {
    const grpc::Slice slice(bytes);
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer response;
    grpc::ClientContext context;
    return grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
        channel.get(), grpc::internal::RpcMethod(method, grpc::internal::RpcMethod::NORMAL_RPC),
        &context, request, &response);
  };
  const grpc::Status text = code_of("/augur.v1.Completions/Complete", "\x1a\x02\xff\xfe");
  EXPECT_EQ(text.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(text.error_message(), "text: expected UTF-8 text, found bytes that are not");
  EXPECT_EQ(code_of("/augur.v1.Completions/Complete", "\xff\xff").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(code_of("/augur.v1.Completions/Tokenize", "\x0a\x01\xff").error_message(),
            "text: expected UTF-8 text, found bytes that are not");
  EXPECT_EQ(code_of("/augur.v1.Completions/Detokenize", "\x0a\x05\x01").error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(CompletionStreamTest, NothingIsAdmittedWhileDraining) {
  server_.service().StopAdmitting();
  EXPECT_EQ(Complete(server_.stub.get(), TextRequest("a")).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  v1::TokenizeRequest tokenize;
  v1::TokenizeResponse tokens;
  grpc::ClientContext context;
  EXPECT_EQ(server_.stub->Tokenize(&context, tokenize, &tokens).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(NoStreamIsLeft());
}

TEST(CompletionServiceTest, UnavailableWhileTheModelLoads) {
  FakeEngine engine;
  FrontServer server(&engine, {}, {}, /*open=*/false);
  EXPECT_EQ(Complete(server.stub.get(), TextRequest("a")).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  v1::GetModelResponse model;
  {
    grpc::ClientContext context;
    EXPECT_EQ(server.stub->GetModel(&context, {}, &model).error_code(),
              grpc::StatusCode::UNAVAILABLE);
  }
  server.Open();
  grpc::ClientContext context;
  EXPECT_TRUE(server.stub->GetModel(&context, {}, &model).ok());
  EXPECT_EQ(model.model(), "fake");
}

// With one thread held up and room for one job, the third call finds the intake full.
TEST(CompletionServiceTest, AFullIntakeRefusesAtOnce) {
  FakeEngine engine;
  std::atomic<bool> entered{false};
  std::atomic<bool> go_on{false};
  engine.on_submit = [&] {
    entered = true;
    Eventually([&] { return go_on.load(); });
    return absl::InternalError("done");
  };
  FrontServer server(&engine, {}, {.threads = 1, .max_jobs = 1, .max_bytes = 1 << 20});
  grpc::ClientContext contexts[3];
  const auto first = server.stub->Complete(&contexts[0], TextRequest("a"));
  ASSERT_TRUE(Eventually([&] { return entered.load(); }));
  const auto second = server.stub->Complete(&contexts[1], TextRequest("b"));
  ASSERT_TRUE(Eventually([&] { return server.stats.intake_requests == 1; }));
  const auto third = server.stub->Complete(&contexts[2], TextRequest("c"));
  EXPECT_EQ(ReadAll(third.get()).status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(contexts[2].GetServerTrailingMetadata().count("grpc-retry-pushback-ms"), 1u);
  go_on = true;
  EXPECT_EQ(ReadAll(first.get()).status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(ReadAll(second.get()).status.error_code(), grpc::StatusCode::INTERNAL);
}

TEST(DeadlineTest, IsTheTimeThatIsLeft) {
  const memory::FakeClock clock;
  EXPECT_EQ(DeadlineNs(gpr_inf_future(GPR_CLOCK_REALTIME), clock), engine::kNoDeadline);
  EXPECT_EQ(DeadlineNs(gpr_inf_past(GPR_CLOCK_MONOTONIC), clock), 0);
  const gpr_timespec soon =
      gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_seconds(10, GPR_TIMESPAN));
  const int64_t left_ns = DeadlineNs(soon, clock);
  EXPECT_LE(left_ns, 10 * memory::kNsPerSecond);
  EXPECT_GT(left_ns, 5 * memory::kNsPerSecond);
}

}  // namespace
}  // namespace augur::server
