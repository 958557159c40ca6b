// A device that breaks under load (here at a step that the self-test names): every stream ends with
// UNAVAILABLE, and the process with status 70 within 2 s.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "tests/support/completion_call.h"
#include "tests/support/daemon_process.h"

namespace augur::tests {
namespace {

constexpr int kStreams = 40;  // some run, some wait: the batch has room for 32

TEST(DeviceFailureTest, StreamsEndUnavailableAndTheProcessWith70) {
  const auto daemon = DaemonProcess::Start({"--set", "device_fault_after=60"});
  ASSERT_NE(daemon, nullptr);
  std::vector<CallResult> results(kStreams);
  std::vector<std::thread> clients;
  for (CallResult& result : results) {
    clients.emplace_back([&] {
      v1::CompleteRequest request = GreedyRequest("The server accepts connections on", 4000);
      request.mutable_stopping()->set_ignore_eos(true);
      result = RunCall(NewStub(daemon->grpc_address()).get(), request);
    });
  }
  for (std::thread& client : clients) client.join();
  const auto ended = std::chrono::steady_clock::now();
  EXPECT_EQ(daemon->WaitExit(std::chrono::seconds(10)), 70) << daemon->Log();
  EXPECT_LT(std::chrono::steady_clock::now() - ended, std::chrono::seconds(2));
  bool some_had_begun = false;
  for (const CallResult& result : results) {
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE) << result.Describe();
    EXPECT_TRUE(result.faults.empty()) << result.Describe();
    EXPECT_FALSE(result.finished.has_value());
    some_had_begun = some_had_begun || !result.chunks.empty();
  }
  EXPECT_TRUE(some_had_begun);
  EXPECT_NE(daemon->Log().find("the device failed: "), std::string::npos) << daemon->Log();
}

}  // namespace
}  // namespace augur::tests
