// SIGTERM under load: every stream ends with exactly one status, the process with 0.
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "tests/support/completion_call.h"
#include "tests/support/daemon_process.h"

namespace augur::tests {
namespace {

constexpr int kWorkers = 8;
constexpr int kRoundsPerWorker = 25;
constexpr int kStreams = 4;
constexpr char kPrompt[] = "The server accepts connections on the address that is given by the key";

v1::CompleteRequest LongRequest(uint32_t max_tokens) {
  v1::CompleteRequest request = GreedyRequest(kPrompt, max_tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

// One life of a daemon: streams start, SIGTERM comes at a random message of theirs, all is over.
void RunRound(uint32_t seed, std::atomic<int>* finished, std::atomic<int>* cut) {
  std::mt19937 random(seed);
  const auto daemon = DaemonProcess::Start({"--threads", "1", "--set", "drain_limit=150ms"});
  ASSERT_NE(daemon, nullptr);
  const int kill_at = static_cast<int>(random() % 100);
  std::atomic<int> seen{0};
  std::vector<CallResult> results(kStreams);
  std::vector<std::thread> clients;
  for (CallResult& result : results) {
    const uint32_t max_tokens = random() % 2 == 0 ? 5 + random() % 60 : 6000;
    clients.emplace_back([&, max_tokens] {
      const auto stub = NewStub(daemon->grpc_address());
      result = RunCall(stub.get(), LongRequest(max_tokens), {.on_message = [&](int) {
                         if (seen.fetch_add(1) == kill_at) daemon->Signal(SIGTERM);
                       }});
    });
  }
  for (std::thread& client : clients) client.join();
  if (seen.load() <= kill_at) daemon->Signal(SIGTERM);  // all streams were short
  EXPECT_EQ(daemon->WaitExit(), 0) << daemon->Log();
  for (const CallResult& result : results) {
    EXPECT_TRUE(result.status.ok() || result.status.error_code() == grpc::StatusCode::UNAVAILABLE)
        << result.Describe();
    EXPECT_TRUE(result.faults.empty()) << result.Describe();
    ++*(result.status.ok() ? finished : cut);
  }
}

TEST(DrainTest, TwoHundredTimesUnderLoad) {
  std::atomic<int> finished{0};
  std::atomic<int> cut{0};
  std::vector<std::thread> workers;
  for (uint32_t worker = 0; worker < kWorkers; ++worker) {
    workers.emplace_back([&, worker] {
      for (uint32_t round = 0; round < kRoundsPerWorker; ++round) {
        RunRound(worker * 1000 + round, &finished, &cut);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  std::printf("%d streams finished, %d were cut by the drain limit\n", finished.load(), cut.load());
  EXPECT_EQ(finished + cut, kWorkers * kRoundsPerWorker * kStreams);
  EXPECT_GT(finished, 0);
  EXPECT_GT(cut, 0);
}

// Calls that keep coming, on connections that are there, to the very end of the process: refused
// with UNAVAILABLE, which tells a client to go elsewhere, never with another status.
TEST(DrainTest, CallsThatComeAtTheEndAreUnavailable) {
  constexpr int kCalls = 50;
  std::atomic<int> refused{0};
  for (int round = 0; round < 4; ++round) {
    const auto daemon = DaemonProcess::Start({"--threads", "1"});
    ASSERT_NE(daemon, nullptr);
    std::atomic<bool> over{false};
    std::atomic<int> finished{0};
    std::vector<std::thread> clients;
    for (int client = 0; client < 6; ++client) {
      clients.emplace_back([&] {
        const auto stub = NewStub(daemon->grpc_address());
        while (!over) {
          const CallResult result = RunCall(stub.get(), LongRequest(2));
          if (result.status.ok()) {
            if (++finished == kCalls) daemon->Signal(SIGTERM);
            continue;
          }
          EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE) << result.Describe();
          EXPECT_TRUE(result.faults.empty()) << result.Describe();
          ++refused;
        }
      });
    }
    EXPECT_EQ(daemon->WaitExit(), 0) << daemon->Log();
    over = true;
    for (std::thread& client : clients) client.join();
  }
  std::printf("%d calls were refused\n", refused.load());
  EXPECT_GT(refused, 0);
}

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

std::unique_ptr<Health::Stub> HealthStub(const std::string& address) {
  return Health::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

grpc::Status CheckHealth(Health::Stub* stub, const std::string& service,
                         HealthCheckResponse* response) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  HealthCheckRequest request;
  request.set_service(service);
  return stub->Check(&context, request, response);
}

TEST(DrainTest, HealthTurnsFirstAndTheRunningStreamFinishes) {
  const auto daemon = DaemonProcess::Start();
  ASSERT_NE(daemon, nullptr);
  const auto health = HealthStub(daemon->grpc_address());
  HealthCheckResponse state;
  for (const char* service : {"", "augur.v1.Completions", "live"}) {
    ASSERT_TRUE(CheckHealth(health.get(), service, &state).ok());
    EXPECT_EQ(state.status(), HealthCheckResponse::SERVING) << service;
  }
  EXPECT_EQ(CheckHealth(health.get(), "unknown", &state).error_code(), grpc::StatusCode::NOT_FOUND);

  grpc::ClientContext watch_context;
  const auto watch = health->Watch(&watch_context, HealthCheckRequest());
  ASSERT_TRUE(watch->Read(&state));
  EXPECT_EQ(state.status(), HealthCheckResponse::SERVING);

  const auto stub = NewStub(daemon->grpc_address());
  const auto second_stub = NewStub(daemon->grpc_address());
  const CallResult result = RunCall(
      stub.get(), LongRequest(400), {.on_message = [&](int messages) {
        if (messages != 10) return;
        daemon->Signal(SIGTERM);
        ASSERT_TRUE(watch->Read(&state));
        EXPECT_EQ(state.status(), HealthCheckResponse::NOT_SERVING);
        const CallResult late = RunCall(second_stub.get(), LongRequest(5));
        EXPECT_EQ(late.status.error_code(), grpc::StatusCode::UNAVAILABLE) << late.Describe();
        EXPECT_FALSE(late.accepted);
      }});
  EXPECT_TRUE(result.status.ok() && result.faults.empty()) << result.Describe();
  EXPECT_EQ(result.finished->usage().completion_tokens(), 400);
  EXPECT_FALSE(watch->Read(&state));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(daemon->WaitExit(), 0) << daemon->Log();
}

TEST(DrainTest, ASecondSignalHurries) {
  const auto daemon = DaemonProcess::Start({"--set", "drain_limit=1h"});
  ASSERT_NE(daemon, nullptr);
  const auto stub = NewStub(daemon->grpc_address());
  const CallResult result =
      RunCall(stub.get(), LongRequest(8000), {.on_message = [&](int messages) {
                if (messages == 5 || messages == 20) daemon->Signal(SIGTERM);
              }});
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE) << result.Describe();
  EXPECT_EQ(daemon->WaitExit(), 0) << daemon->Log();
}

}  // namespace
}  // namespace augur::tests
