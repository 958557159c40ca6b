// Tokenize and Detokenize behind a busy intake: calls that nobody waits for any more cost nothing.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "eventually.h"
#include "fake_engine.h"
#include "front_server.h"

namespace augur::server {
namespace {

constexpr int kCalls = 6;

class UnaryCallsTest : public testing::Test {
 protected:
  // The intake's only thread is busy until release_ is set.
  void SetUp() override {
    ASSERT_TRUE(server_.intake().TryPost(0, [this] { released_.wait(); }));
  }

  grpc::Status Tokenize(std::chrono::milliseconds limit) {
    v1::TokenizeRequest request;
    request.set_text("some text");
    v1::TokenizeResponse response;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + limit);
    return server_.stub->Tokenize(&context, request, &response);
  }

  std::promise<void> release_;
  std::shared_future<void> released_ = release_.get_future().share();
  FakeEngine engine_;
  FrontServer server_{&engine_, {}, {.threads = 1}};
};

TEST_F(UnaryCallsTest, CallsWhoseClientLeftAreNotComputed) {
  std::vector<std::thread> clients;
  for (int i = 0; i < kCalls; ++i) {
    clients.emplace_back([this] {
      EXPECT_EQ(Tokenize(std::chrono::milliseconds(100)).error_code(),
                grpc::StatusCode::DEADLINE_EXCEEDED);
    });
  }
  for (std::thread& client : clients) client.join();
  // The cancels travel before this call on the same connection.
  v1::GetModelResponse model;
  grpc::ClientContext context;
  EXPECT_TRUE(server_.stub->GetModel(&context, {}, &model).ok());
  release_.set_value();
  // Behind them in the queue.
  EXPECT_TRUE(Tokenize(std::chrono::seconds(20)).ok());
  // gRPC tells a handler of a cancel a moment after it came: some calls may slip through, not all.
  EXPECT_LT(server_.tokenizer().encodes.load(), 1 + kCalls);
}

TEST_F(UnaryCallsTest, ADrainDoesNotWaitForWhatIsQueued) {
  std::vector<std::thread> clients;
  for (int i = 0; i < kCalls; ++i) {
    clients.emplace_back([this] {
      EXPECT_EQ(Tokenize(std::chrono::seconds(20)).error_code(), grpc::StatusCode::UNAVAILABLE);
    });
  }
  EXPECT_TRUE(Eventually([this] { return server_.stats.intake_requests.load() >= kCalls; }));
  server_.service().StopAdmitting();
  release_.set_value();
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(server_.tokenizer().encodes.load(), 0);
}

}  // namespace
}  // namespace augur::server
