// The front and the real engine together, over a model that continues the alphabet.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "eventually.h"
#include "fake_runner.h"
#include "front_server.h"
#include "server/warm_up.h"
#include "tests/support/bare_kv.h"

namespace augur::server {
namespace {

class EngineUnderFront final : public EngineEntry {
 public:
  explicit EngineUnderFront(const engine::EngineOptions& options)
      : engine(options, {FakeTokenizer::kEnd}, std::make_unique<FakeRunner>(&gate), kv_.store(),
               &tokenizer_, &clock_) {}
  absl::Status Submit(std::shared_ptr<engine::Request> request) override {
    return engine.Submit(std::move(request));
  }
  void Wake() override { engine.Wake(); }

  RunnerGate gate;

 private:
  const FakeTokenizer tokenizer_;
  const memory::SteadyClock clock_;
  tests::BareKv kv_{128};

 public:
  engine::Engine engine;
};

engine::EngineOptions SmallEngine() {
  engine::EngineOptions options;
  options.max_context = 4096;
  options.max_batch = 8;
  options.max_batched_tokens = 128;
  options.max_queued_requests = 64;
  return options;
}

class RoundTripTest : public testing::Test {
 protected:
  v1::CompleteRequest Greedy(const std::string& text, uint32_t max_tokens) {
    v1::CompleteRequest request = TextRequest(text);
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    return request;
  }
  bool AllBlocksAreBack() {
    const engine::EngineStats& stats = engine_.engine.stats();
    return Eventually([&] {
      return engine_.engine.idle() && server_.stats.open_streams == 0 && stats.blocks_held == 0 &&
             stats.running == 0 && stats.waiting == 0;
    });
  }

  EngineUnderFront engine_{SmallEngine()};
  FrontServer server_{&engine_, {}};
};

TEST_F(RoundTripTest, WarmUpGeneratesOneToken) {
  EXPECT_TRUE(WarmUp(&engine_, server_.clock).ok());
  EXPECT_EQ(engine_.engine.stats().generated_tokens, 1u);
}

TEST_F(RoundTripTest, ContinuesTheAlphabet) {
  v1::CompleteRequest request = Greedy("xyza", 6);
  request.mutable_output()->set_token_ids(true);
  request.mutable_output()->set_progress(true);
  const Received received = Complete(server_.stub.get(), request);
  ASSERT_TRUE(received.status.ok()) << received.status.error_message();
  EXPECT_EQ(received.text(), "bcdefg");
  EXPECT_TRUE(received.messages.front().has_accepted());
  EXPECT_NE(received.messages.front().accepted().request_id(), "");
  const v1::Finished& finished = received.messages.back().finished();
  EXPECT_EQ(finished.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(finished.usage().prompt_tokens(), 5u);
  EXPECT_EQ(finished.usage().completion_tokens(), 6u);
  EXPECT_GE(finished.timings().total_ms(), finished.timings().first_token_ms());
  std::vector<uint32_t> ids;
  uint32_t tokens = 0;
  int progress = 0;
  for (const auto& message : received.messages) {
    ids.insert(ids.end(), message.chunk().token_ids().begin(), message.chunk().token_ids().end());
    tokens += message.chunk().num_tokens();
    progress += message.has_progress() ? 1 : 0;
  }
  EXPECT_EQ(ids, (std::vector<uint32_t>{'b', 'c', 'd', 'e', 'f', 'g'}));
  EXPECT_EQ(tokens, 6u);
  EXPECT_EQ(progress, 1);
  EXPECT_TRUE(AllBlocksAreBack());
}

TEST_F(RoundTripTest, StopsAndReusesAPrefix) {
  v1::CompleteRequest request = Greedy(std::string(300, 'm') + "a", 20);
  request.mutable_stopping()->add_stop("efg");
  for (const uint32_t cached : {0u, 256u}) {
    const Received received = Complete(server_.stub.get(), request);
    ASSERT_TRUE(received.status.ok());
    EXPECT_EQ(received.text(), "bcd");
    EXPECT_EQ(received.messages.back().finished().stop_string(), "efg");
    EXPECT_EQ(received.messages.back().finished().usage().cached_tokens(), cached);
    EXPECT_TRUE(AllBlocksAreBack());
  }
  request.set_bypass_prefix_cache(true);
  EXPECT_EQ(
      Complete(server_.stub.get(), request).messages.back().finished().usage().cached_tokens(), 0u);
  request.set_bypass_prefix_cache(false);
  request.set_cache_salt("tenant");
  EXPECT_EQ(
      Complete(server_.stub.get(), request).messages.back().finished().usage().cached_tokens(), 0u);
}

TEST_F(RoundTripTest, ANumberThatIsNotFiniteEndsOneRequest) {
  const Received received = Complete(server_.stub.get(), Greedy("aN", 5));
  EXPECT_EQ(received.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(Complete(server_.stub.get(), Greedy("a", 2)).text(), "bc");
  EXPECT_TRUE(AllBlocksAreBack());
}

TEST_F(RoundTripTest, TextBothWays) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text("h\xc3\xa9");
  v1::TokenizeResponse tokens;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server_.stub->Tokenize(&context, tokenize, &tokens).ok());
  }
  EXPECT_EQ(std::vector<uint32_t>(tokens.ids().begin(), tokens.ids().end()),
            (std::vector<uint32_t>{FakeTokenizer::kBegin, 'h', 0xc3, 0xa9}));
  EXPECT_EQ(tokens.tokens(2), "\xc3");
  EXPECT_EQ(tokens.max_context(), 4096u);
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_ids() = tokens.ids();
  v1::DetokenizeResponse text;
  {
    grpc::ClientContext context;
    ASSERT_TRUE(server_.stub->Detokenize(&context, detokenize, &text).ok());
  }
  EXPECT_EQ(text.text(), "h\xc3\xa9");
  detokenize.add_ids(FakeTokenizer::kVocabSize);
  grpc::ClientContext context;
  const grpc::Status status = server_.stub->Detokenize(&context, detokenize, &text);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(),
            "ids[4]: expected an id below the vocabulary size 258, found 258");
  const auto& unary = server_.stats.unary;
  EXPECT_EQ(unary[static_cast<size_t>(UnaryMethod::kTokenize)][0], 1u);
  EXPECT_EQ(unary[static_cast<size_t>(UnaryMethod::kDetokenize)][0], 1u);
  EXPECT_EQ(unary[static_cast<size_t>(UnaryMethod::kDetokenize)][3], 1u);
}

TEST_F(RoundTripTest, AnAnswerBeyondTheLimitIsRefused) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text(std::string(1 << 20, 'x'));  // three bytes of text and lengths for each
  v1::TokenizeResponse tokens;
  grpc::ClientContext context;
  const grpc::Status status = server_.stub->Tokenize(&context, tokenize, &tokens);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
}

TEST_F(RoundTripTest, ManyStreamsAtOnce) {
  std::vector<std::thread> clients;
  for (int i = 0; i < 32; ++i) {
    clients.emplace_back([this, i] {
      const std::string prompt(1 + i * 7, static_cast<char>('a' + i % 20));
      const Received received = Complete(server_.stub.get(), Greedy(prompt, 5));
      EXPECT_TRUE(received.status.ok()) << received.status.error_message();
      std::string expected;
      for (int k = 1; k <= 5; ++k) expected += static_cast<char>('a' + i % 20 + k);
      EXPECT_EQ(received.text(), expected);
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(AllBlocksAreBack());
}

TEST_F(RoundTripTest, CancelsAtAnyMomentLeaveNothing) {
  std::mt19937 random(11);
  std::atomic<uint64_t> answered = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([this, &answered, seed = random()] {
      std::mt19937 own(seed);
      for (int k = 0; k < 50; ++k) {
        grpc::ClientContext context;
        v1::CompleteRequest request = Greedy(std::string(1 + own() % 600, 'q'), 2000);
        request.mutable_stopping()->set_ignore_eos(true);
        const auto reader = server_.stub->Complete(&context, request);
        v1::CompleteResponse message;
        bool was_answered = false;
        for (uint32_t reads = own() % 20; reads > 0 && reader->Read(&message); --reads) {
          was_answered = true;
        }
        context.TryCancel();
        while (reader->Read(&message)) was_answered = true;
        answered += was_answered;
        EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(AllBlocksAreBack());
  // The server may have sent all before it heard of the cancel.
  const auto& requests = server_.stats.requests;
  const uint64_t ended = requests[1][0] + requests[0][static_cast<size_t>(EndReason::kLength)];
  // Of a call that is cancelled at once the server may never hear.
  EXPECT_GE(ended, answered);
  EXPECT_LE(ended, 200u);
  EXPECT_GE(answered, 150u);
  // How many depends on who is faster; that cancels really arrived does not.
  EXPECT_GT(requests[1][0], 0u);
}

// A drain under load: every stream ends once, with OK or UNAVAILABLE, and later calls are refused.
TEST_F(RoundTripTest, ADrainEndsEveryStreamOnce) {
  engine_.gate.Hold();
  std::vector<Received> results(24);
  std::vector<std::thread> clients;
  for (size_t i = 0; i < results.size(); ++i) {
    clients.emplace_back([this, i, &results] {
      results[i] = Complete(server_.stub.get(), Greedy("a", i % 2 == 0 ? 3 : 3000));
    });
  }
  EXPECT_TRUE(Eventually([&] { return engine_.engine.stats().accepted == results.size(); }));
  server_.service().StopAdmitting();
  engine_.engine.BeginDrain(server_.clock.NowNs() + 50 * memory::kNsPerMs);
  engine_.gate.Release();
  for (std::thread& client : clients) client.join();
  size_t cut = 0;
  for (const Received& result : results) {
    const bool finished = !result.messages.empty() && result.messages.back().has_finished();
    EXPECT_EQ(finished, result.status.ok());
    if (result.status.ok()) continue;
    ++cut;
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE)
        << result.status.error_message();
  }
  EXPECT_GE(cut, results.size() - 8);  // the queue beyond the batch ends at once
  EXPECT_EQ(Complete(server_.stub.get(), Greedy("a", 1)).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(AllBlocksAreBack());
}

// Health is answered while a step takes long.
TEST_F(RoundTripTest, HealthDoesNotWaitForAStep) {
  server_.health.Set("", true);
  engine_.gate.Hold();
  grpc::ClientContext context;
  const auto reader = server_.stub->Complete(&context, Greedy("a", 1));
  v1::CompleteResponse message;
  ASSERT_TRUE(reader->Read(&message));
  EXPECT_TRUE(message.has_accepted());
  const auto health = grpc::health::v1::Health::NewStub(server_.NewChannel());
  for (int i = 0; i < 20; ++i) {
    grpc::ClientContext check;
    check.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    grpc::health::v1::HealthCheckResponse response;
    EXPECT_TRUE(health->Check(&check, {}, &response).ok());
  }
  engine_.gate.Release();
  EXPECT_TRUE(ReadAll(reader.get()).status.ok());
}

}  // namespace
}  // namespace augur::server
