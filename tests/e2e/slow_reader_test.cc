// A client that stops reading costs its own stream and nobody else's.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <future>
#include <thread>

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

constexpr int kSlow = 20;

// Calls that read three messages and then nothing more until they are let go.
class SlowReaders {
 public:
  explicit SlowReaders(const DaemonProcess& daemon) {
    for (int i = 0; i < kSlow; ++i) {
      threads_.emplace_back([this, &daemon, i] {
        const auto stub = NarrowStub(daemon.grpc_address());
        results_[i] = RunCall(stub.get(), LongRequest(),
                              {.on_message =
                                   [this](int messages) {
                                     if (messages == 3) gone_on_.wait();
                                   },
                               .context = &contexts_[i]});
      });
    }
  }
  ~SlowReaders() { Join(); }
  // They read on, or are cancelled first.
  void Cancel() {
    for (grpc::ClientContext& context : contexts_) context.TryCancel();
    Join();
  }
  void Join() {
    if (threads_.empty()) return;
    go_on_.set_value();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  const std::array<CallResult, kSlow>& results() const { return results_; }

 private:
  std::promise<void> go_on_;
  std::shared_future<void> gone_on_ = go_on_.get_future().share();
  std::array<grpc::ClientContext, kSlow> contexts_;
  std::array<CallResult, kSlow> results_;
  std::vector<std::thread> threads_;
};

// p99 of the time between messages of four clients that read, in milliseconds.
double InterTokenP99(const DaemonProcess& daemon) {
  using Clock = std::chrono::steady_clock;
  constexpr int kReaders = 4;
  std::array<std::vector<double>, kReaders> gaps;
  std::vector<std::thread> threads;
  for (std::vector<double>& mine : gaps) {
    threads.emplace_back([&] {
      v1::CompleteRequest request = LongRequest();
      request.mutable_stopping()->set_max_tokens(250);
      Clock::time_point last;
      const auto stub = NewStub(daemon.grpc_address());
      const CallResult result =
          RunCall(stub.get(), request, {.on_message = [&](int messages) {
                    const Clock::time_point now = Clock::now();
                    // The first ones wait for a prompt.
                    if (messages > 10) {
                      mine.push_back(std::chrono::duration<double, std::milli>(now - last).count());
                    }
                    last = now;
                  }});
      EXPECT_TRUE(result.status.ok()) << result.Describe();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> all;
  for (const std::vector<double>& mine : gaps) all.insert(all.end(), mine.begin(), mine.end());
  EXPECT_GT(all.size(), 400u);
  std::sort(all.begin(), all.end());
  return all[all.size() * 99 / 100];
}

// Runs with and without readers that have stopped take turns, so that what else the machine does
// meets both; the middle one of the turns' ratios counts, over more turns where they scatter.
TEST(SlowReaderTest, TwentyOfThemSlowNobodyDown) {
  const auto daemon =
      DaemonProcess::Start({"--set", "stream_buffer_messages=64", "--threads", "1"});
  ASSERT_NE(daemon, nullptr);
  InterTokenP99(*daemon);  // warm
  std::vector<double> ratios;
  double median = 0;
  for (int turns = 0; turns < 3 || (turns < 15 && median > 1.1); ++turns) {
    const double without = InterTokenP99(*daemon);
    SlowReaders slow(*daemon);
    ASSERT_TRUE(
        server::Eventually([&] { return daemon->Metric("augur_paused_requests") == kSlow; }));
    const double with = InterTokenP99(*daemon);
    EXPECT_EQ(daemon->Metric("augur_paused_requests"), kSlow);
    slow.Cancel();
    ASSERT_TRUE(server::Eventually([&] { return daemon->Metric("augur_running_requests") == 0; }));
    std::printf("p99 between tokens: %.2f ms alone, %.2f ms beside %d that do not read\n", without,
                with, kSlow);
    ratios.push_back(with / without);
    std::sort(ratios.begin(), ratios.end());
    median = ratios[ratios.size() / 2];
  }
  EXPECT_LE(median, 1.1);
}

// What waits for each of them is bounded by its buffer (completion_stream_test), which the whole
// answers of the bundled model would hardly fill: here it is their end that is looked at.
TEST(SlowReaderTest, TwentyOfThemEndAndHoldNothing) {
  const auto daemon = DaemonProcess::Start(
      {"--set", "stream_buffer_messages=64", "--set", "slow_reader_timeout=2s"});
  ASSERT_NE(daemon, nullptr);
  SlowReaders slow(*daemon);
  EXPECT_TRUE(server::Eventually([&] {
    return daemon->Metric("augur_engine_requests_total{outcome=\"slow_reader\"}") == kSlow;
  }));
  EXPECT_EQ(daemon->Metric("augur_kv_blocks{state=\"held\"}"), 0);
  slow.Join();
  for (const CallResult& result : slow.results()) {
    EXPECT_EQ(result.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED)
        << result.Describe();
    EXPECT_NE(result.status.error_message().find("slow_reader_timeout"), std::string::npos);
    EXPECT_TRUE(result.faults.empty()) << result.Describe();
  }
  EXPECT_TRUE(server::Eventually([&] { return daemon->Metric("augur_open_streams") == 0; }));
}

}  // namespace
}  // namespace augur::tests
