// A client that stops reading costs its own stream and nobody else's.
#include <gtest/gtest.h>

#include "tests/server/eventually.h"
#include "tests/support/completion_call.h"
#include "tests/support/daemon_process.h"

namespace augur::tests {
namespace {

constexpr char kPrompt[] = "The key gives the directory in which the data is kept. The directory";
constexpr uint32_t kTokens = 1500;  // far more than windows and buffer hold

v1::CompleteRequest LongRequest() {
  v1::CompleteRequest request = GreedyRequest(kPrompt, kTokens);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_token_ids(true);
  return request;
}

// Small windows that stay small, so that a reader that stops is felt soon.
std::unique_ptr<v1::Completions::Stub> NarrowStub(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1024);
  return NewStub(address, arguments);
}

bool IsPaused(const DaemonProcess& daemon) { return daemon.Metric("augur_paused_requests") == 1; }

TEST(SlowReaderTest, IsPausedAndThenGetsTheWholeText) {
  const auto daemon = DaemonProcess::Start({"--set", "stream_buffer_messages=64"});
  ASSERT_NE(daemon, nullptr);
  const std::string whole = RunCall(NewStub(daemon->grpc_address()).get(), LongRequest()).Text();
  const auto narrow = NarrowStub(daemon->grpc_address());
  const auto neighbour = NewStub(daemon->grpc_address());
  const CallResult result =
      RunCall(narrow.get(), LongRequest(), {.on_message = [&](int messages) {
                if (messages != 3) return;
                EXPECT_TRUE(server::Eventually([&] { return IsPaused(*daemon); }));
                v1::CompleteRequest request = LongRequest();
                request.mutable_stopping()->set_max_tokens(200);
                const std::string text = RunCall(neighbour.get(), request).Text();
                EXPECT_FALSE(text.empty());
                EXPECT_EQ(text, whole.substr(0, text.size()));
                EXPECT_TRUE(IsPaused(*daemon));
              }});
  EXPECT_TRUE(result.status.ok() && result.faults.empty()) << result.Describe();
  EXPECT_EQ(result.Text(), whole);
  EXPECT_GE(daemon->Metric("augur_reader_pauses_total"), 1);
}

TEST(SlowReaderTest, IsEndedAfterTheLimit) {
  const auto daemon = DaemonProcess::Start(
      {"--set", "stream_buffer_messages=64", "--set", "slow_reader_timeout=300ms"});
  ASSERT_NE(daemon, nullptr);
  const auto narrow = NarrowStub(daemon->grpc_address());
  const CallResult result = RunCall(
      narrow.get(), LongRequest(), {.on_message = [&](int messages) {
        if (messages != 3) return;
        EXPECT_TRUE(server::Eventually([&] {
          return daemon->Metric("augur_engine_requests_total{outcome=\"slow_reader\"}") == 1;
        }));
        EXPECT_TRUE(server::Eventually(
            [&] { return daemon->Metric("augur_kv_blocks{state=\"held\"}") == 0; }));
      }});
  EXPECT_FALSE(result.status.ok());
  EXPECT_TRUE(result.faults.empty()) << result.Describe();
  EXPECT_TRUE(server::Eventually([&] { return daemon->Metric("augur_open_streams") == 0; }));
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->WaitExit(), 0) << daemon->Log();
}

}  // namespace
}  // namespace augur::tests
