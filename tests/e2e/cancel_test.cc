// Clients that go away at random moments leave nothing behind.
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <random>
#include <thread>

#include "tests/e2e/needles.h"
#include "tests/server/eventually.h"
#include "tests/support/completion_call.h"
#include "tests/support/daemon_process.h"

namespace augur::tests {
namespace {

constexpr int kClients = 20;
constexpr int kCallsPerClient = 25;
constexpr double kLatestCancelUs = 1'000'000;

// Cancels a call at an instant after its start unless it has ended before.
class CancelLater {
 public:
  CancelLater(grpc::ClientContext* context, std::chrono::microseconds delay)
      : thread_([this, context, delay] {
          std::unique_lock lock(mutex_);
          if (!wake_.wait_for(lock, delay, [this] { return over_; })) context->TryCancel();
        }) {}
  ~CancelLater() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool over_ = false;
  std::thread thread_;
};

// Mostly soon, sometimes late, so that every stage of a call is met.
std::chrono::microseconds RandomDelay(std::mt19937* random) {
  const double part = std::uniform_real_distribution<double>(0, 1)(*random);
  return std::chrono::microseconds(static_cast<int64_t>(kLatestCancelUs * part * part * part));
}

v1::CompleteRequest RandomRequest(std::mt19937* random, const std::vector<Needle>& documents) {
  // Beginnings of a few documents: some hit the prefix cache, some share blocks with others under
  // way.
  const std::string& text = documents[(*random)() % 4].prompt;
  const size_t longest = (*random)() % 2 == 0 ? 200 : text.size();
  v1::CompleteRequest request =
      GreedyRequest(text.substr(0, 20 + (*random)() % (longest - 20)), 2000);
  request.mutable_stopping()->set_ignore_eos(true);
  request.mutable_output()->set_progress((*random)() % 2 == 0);
  request.set_bypass_prefix_cache((*random)() % 4 == 0);
  return request;
}

// How far calls had come when they were cancelled, as their clients saw it.
struct Tally {
  std::atomic<int> before_accepted{0};
  std::atomic<int> before_text{0};
  std::atomic<int> in_text{0};
  std::atomic<int> finished{0};

  void Count(const CallResult& result) {
    if (result.status.ok()) {
      ++finished;
    } else if (!result.chunks.empty()) {
      ++in_text;
    } else {
      ++(result.accepted ? before_text : before_accepted);
    }
  }
};

void CancelManyCalls(const std::string& address, uint32_t seed, Tally* tally) {
  std::mt19937 random(seed);
  const auto stub = NewStub(address);
  const std::vector<Needle> documents = LoadNeedles("1K");
  for (int i = 0; i < kCallsPerClient; ++i) {
    grpc::ClientContext context;
    const int at_message = random() % 3 == 0 ? static_cast<int>(random() % 20) : -1;
    const CancelLater cancel(&context, RandomDelay(&random));
    const CallResult result = RunCall(stub.get(), RandomRequest(&random, documents),
                                      {.on_message =
                                           [&](int messages) {
                                             if (messages == at_message) context.TryCancel();
                                           },
                                       .context = &context});
    tally->Count(result);
    EXPECT_TRUE(result.status.ok() || result.status.error_code() == grpc::StatusCode::CANCELLED)
        << result.Describe();
    EXPECT_TRUE(result.faults.empty()) << result.Describe();
  }
}

// The context outlives RunCall's inside only: CancelLater must be gone by then, so it is made per
// call above.
void CheckNothingIsLeft(const DaemonProcess& daemon) {
  EXPECT_TRUE(server::Eventually([&] {
    return daemon.Metric("augur_open_streams") == 0 &&
           daemon.Metric("augur_running_requests") == 0 &&
           daemon.Metric("augur_queue_requests") == 0 &&
           daemon.Metric("augur_intake_requests") == 0 &&
           daemon.Metric("augur_kv_slots{tier=\"device\",state=\"held\"}") == 0 &&
           daemon.Metric("augur_kv_slots{tier=\"host\",state=\"held\"}") == 0;
  })) << daemon.Log();
  const double total = daemon.Metric("augur_kv_capacity_tokens") / 64;
  EXPECT_GT(total, 0);
  EXPECT_EQ(daemon.Metric("augur_kv_blocks{state=\"free\"}") +
                daemon.Metric("augur_kv_blocks{state=\"cached\"}"),
            total);
}

void RunCancels(const std::vector<std::string>& flags, bool cache) {
  const auto daemon = DaemonProcess::Start(flags);
  ASSERT_NE(daemon, nullptr);
  const auto stub = NewStub(daemon->grpc_address());
  const v1::CompleteRequest probe = GreedyRequest(LoadNeedles("1K").at(0).prompt, 20);
  const std::string before = RunCall(stub.get(), probe).Text();
  EXPECT_FALSE(before.empty());

  Tally tally;
  std::vector<std::thread> clients;
  for (uint32_t seed = 0; seed < kClients; ++seed) {
    clients.emplace_back([&, seed] { CancelManyCalls(daemon->grpc_address(), seed, &tally); });
  }
  for (std::thread& client : clients) client.join();
  std::printf("cancelled: %d before Accepted, %d before any text, %d in the text; %d finished\n",
              tally.before_accepted.load(), tally.before_text.load(), tally.in_text.load(),
              tally.finished.load());
  for (const auto* stage : {&tally.before_accepted, &tally.before_text, &tally.in_text}) {
    EXPECT_GE(*stage, kClients * kCallsPerClient / 100);
  }

  CheckNothingIsLeft(*daemon);
  if (!cache) {
    EXPECT_EQ(daemon->Metric("augur_kv_blocks{state=\"cached\"}"), 0);
  }
  EXPECT_EQ(RunCall(stub.get(), probe).Text(), before);
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->WaitExit(), 0) << daemon->Log();
}

// 500 calls each.
TEST(CancelTest, WithPrefixCache) { RunCancels({}, true); }
TEST(CancelTest, WithoutPrefixCacheInASmallPool) {
  RunCancels({"--set", "prefix_cache=false", "--set", "kv_bytes=32MiB"}, false);
}

// 1,000 calls over the two tiers, the device too small for a batch.
TEST(CancelTest, WithHistoryInTheHostPool) {
  for (const char* residency : {"residency=tiered", "residency=auto"}) {
    RunCancels({"--set", residency, "--set", "kv_bytes=32MiB", "--set", "host_kv_bytes=256MiB",
                "--set", "prefill_policy=sparse", "--set", "decode_policy=sparse", "--set",
                "top_k_blocks=12", "--set", "page_check=4"},
               true);
  }
}

}  // namespace
}  // namespace augur::tests
