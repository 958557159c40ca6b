// Needle questions through a running daemon: right alone, from C++ and from Python, and the same
// text when 32 are asked at once.
#include <gtest/gtest.h>

#include <cstdio>
#include <thread>

#include "nlohmann/json.hpp"
#include "tests/e2e/needles.h"
#include "tests/support/completion_call.h"
#include "tests/support/daemon_process.h"

namespace augur::tests {
namespace {

constexpr int kMustBeRight = 19;  // of 20
constexpr uint32_t kAnswerTokens = 12;

v1::CompleteRequest Ask(const Needle& needle) {
  v1::CompleteRequest request = GreedyRequest(needle.prompt, kAnswerTokens);
  request.mutable_stopping()->add_stop("\n");
  return request;
}

// Runs a command, returns its standard output; `status` as from pclose.
std::string RunCommand(const std::string& command, int* status) {
  std::string output;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    *status = -1;
    return output;
  }
  char buffer[4096];
  for (size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;)
    output.append(buffer, got);
  *status = pclose(pipe);
  return output;
}

// The Python client's answers to the questions of one length.
std::vector<std::string> AskFromPython(const std::string& address, const std::string& length) {
  int status = 0;
  const std::string output = RunCommand(
      std::string("/usr/bin/python3 -B " AUGUR_SOURCE_DIR "/tests/e2e/needle_client.py --stubs '") +
          AUGUR_PYTHON_STUBS + "' --needles '" + AUGUR_NEEDLES + "' --length " + length +
          " --server " + address,
      &status);
  EXPECT_EQ(status, 0) << output;
  const nlohmann::json answers = nlohmann::json::parse(output, nullptr, /*allow_exceptions=*/false);
  if (!answers.is_array()) return {};
  return answers.get<std::vector<std::string>>();
}

class NeedleTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // Room for all documents of one length at once.
    daemon_ = DaemonProcess::Start({"--set", "kv_bytes=640MiB"}).release();
  }
  static void TearDownTestSuite() { delete daemon_; }
  void SetUp() override {
    ASSERT_NE(daemon_, nullptr);
    stub_ = NewStub(daemon_->grpc_address());
  }

  // Asks alone, from both clients.
  void AskAll(const std::string& length) {
    const std::vector<Needle> needles = LoadNeedles(length);
    ASSERT_EQ(needles.size(), 20u);
    int right = 0;
    std::vector<std::string> texts;
    for (const Needle& needle : needles) {
      const CallResult result = RunCall(stub_.get(), Ask(needle));
      ASSERT_TRUE(result.status.ok() && result.faults.empty()) << result.Describe();
      EXPECT_NEAR(result.accepted->prompt_tokens(), needle.tokens, needle.tokens / 10);
      texts.push_back(result.Text());
      right += IsRight(needle, texts.back()) ? 1 : 0;
      if (!IsRight(needle, texts.back())) {
        std::printf("wrong at %s: wanted %s, got \"%s\"\n", length.c_str(), needle.answer.c_str(),
                    texts.back().c_str());
      }
    }
    std::printf("%s: %d of %zu right\n", length.c_str(), right, needles.size());
    EXPECT_GE(right, kMustBeRight);
    // Python's calls hit the cached prefixes: the same text again.
    EXPECT_EQ(AskFromPython(daemon_->grpc_address(), length), texts);
  }

  static DaemonProcess* daemon_;
  std::unique_ptr<v1::Completions::Stub> stub_;
};
DaemonProcess* NeedleTest::daemon_ = nullptr;

TEST_F(NeedleTest, Over1KTokens) { AskAll("1K"); }
TEST_F(NeedleTest, Over4KTokens) { AskAll("4K"); }
TEST_F(NeedleTest, Over7KTokens) { AskAll("7K"); }

TEST_F(NeedleTest, SameTextInABatchOf32) {
  std::vector<Needle> needles = LoadNeedles("1K");
  for (const char* length : {"4K", "7K"}) {
    const std::vector<Needle> longer = LoadNeedles(length);
    needles.insert(needles.end(), longer.begin(), longer.begin() + 6);
  }
  ASSERT_EQ(needles.size(), 32u);
  std::vector<std::string> alone;
  for (const Needle& needle : needles) alone.push_back(RunCall(stub_.get(), Ask(needle)).Text());

  std::vector<CallResult> together(needles.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < needles.size(); ++i) {
    clients.emplace_back([&, i] {
      v1::CompleteRequest request = Ask(needles[i]);
      request.set_bypass_prefix_cache(true);
      together[i] = RunCall(stub_.get(), request);
    });
  }
  for (std::thread& client : clients) client.join();
  for (size_t i = 0; i < needles.size(); ++i) {
    EXPECT_TRUE(together[i].status.ok() && together[i].faults.empty()) << together[i].Describe();
    EXPECT_EQ(together[i].Text(), alone[i]);
  }
}

}  // namespace
}  // namespace augur::tests
