// Long contexts on a small device, through the real daemon: a device pool of a tenth of what the
// batch would need resident, the rest in the host pool.
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/needles.h"
#include "tests/support/completion_call.h"
#include "tests/support/daemon_process.h"

namespace augur::tests {
namespace {

constexpr int kDocuments = 4;
constexpr int kQuestions = 16;             // a document
constexpr size_t kDocumentBytes = 20'500;  // about 6,000 tokens
constexpr int kFrameBytes = 196'608;       // of the bundled model
constexpr int kTokens = 24;

// Texts of 6K tokens, sixteen of each beginning, each with an end of its own.
std::vector<std::string> Prompts() {
  const std::vector<Needle> needles = LoadNeedles("7K");
  std::vector<std::string> prompts;
  for (int document = 0; document < kDocuments; ++document) {
    for (int question = 0; question < kQuestions; ++question) {
      const std::string& other = needles.at(4 + question).prompt;
      prompts.push_back(needles.at(document).prompt.substr(0, kDocumentBytes) +
                        other.substr(900 * (question + 1), 300 + 40 * question));
    }
  }
  return prompts;
}

std::vector<std::string> Flags(const std::string& residency, int frames) {
  std::vector<std::string> flags;
  for (const std::string& setting :
       {std::string("prefill_policy=sparse"), std::string("decode_policy=sparse"),
        std::string("batch=64"), std::string("spare_slots=0"), "residency=" + residency,
        std::string("host_kv_bytes=1GiB"), std::string("page_check=16"),
        "kv_bytes=" + std::to_string(int64_t{frames} * kFrameBytes)}) {
    flags.push_back("--set");
    flags.push_back(setting);
  }
  return flags;
}

v1::CompleteRequest RequestFor(const std::string& prompt) {
  v1::CompleteRequest request = GreedyRequest(prompt, kTokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

// All at a time; results in the order of the prompts.
std::vector<CallResult> RunAll(const DaemonProcess& daemon,
                               const std::vector<std::string>& prompts) {
  std::vector<CallResult> results(prompts.size());
  std::vector<std::thread> clients;
  for (size_t i = 0; i < prompts.size(); ++i) {
    clients.emplace_back([&, i] {
      results[i] = RunCall(NewStub(daemon.grpc_address()).get(), RequestFor(prompts[i]));
    });
  }
  for (std::thread& client : clients) client.join();
  return results;
}

// Prompts and what they are answered with everything resident.
struct Answered {
  std::vector<std::string> prompts;
  std::vector<CallResult> results = {};
};

// Every `stride`th of them at once, on a tenth of the memory that these would need resident.
void ExpectTheSameOnATenth(const std::string& residency, const Answered& all, int stride) {
  SCOPED_TRACE(residency);
  std::vector<std::string> prompts;
  int64_t blocks = 0;
  for (size_t i = 0; i < all.prompts.size(); i += stride) {
    prompts.push_back(all.prompts[i]);
    const int prompt_tokens = static_cast<int>(all.results[i].finished->usage().prompt_tokens());
    blocks += (prompt_tokens + kTokens + 63) / 64 + 3;  // and compressed keys
  }
  // The staging area comes out of the same budget: two layers of a step's blocks, one working set.
  const int frames = static_cast<int>(blocks / 10) + 60;
  const auto small = DaemonProcess::Start(Flags(residency, frames));
  ASSERT_NE(small, nullptr);
  EXPECT_LE(small->Metric("augur_kv_slots{tier=\"device\",state=\"free\"}") +
                small->Metric("augur_kv_slots{tier=\"device\",state=\"cached\"}"),
            frames);
  const std::vector<CallResult> found = RunAll(*small, prompts);
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(found[i].status.ok() && found[i].faults.empty()) << found[i].Describe();
    EXPECT_EQ(found[i].Text(), all.results[i * stride].Text()) << "request " << i * stride;
  }
  EXPECT_GT(small->Metric("augur_transfer_bytes_total{kind=\"spill\"}"), 0);
  EXPECT_GT(small->Metric("augur_transfer_bytes_total{kind=\"fetch\"}"), 0);
  EXPECT_GT(small->Metric("augur_checked_pages_total"), 0);
  small->Signal(SIGTERM);
  EXPECT_EQ(small->WaitExit(), 0) << small->Log();
}

TEST(TiersTest, SixtyFourLongRequestsOnATenthOfTheirMemory) {
  Answered all{.prompts = Prompts()};
  const auto roomy = DaemonProcess::Start(Flags("device", 3000));
  ASSERT_NE(roomy, nullptr);
  all.results = RunAll(*roomy, all.prompts);
  roomy->Signal(SIGTERM);
  EXPECT_EQ(roomy->WaitExit(), 0);
  for (const CallResult& result : all.results) {
    ASSERT_TRUE(result.finished) << result.Describe();
    EXPECT_GT(result.finished->usage().prompt_tokens(), 5'500u);
  }
  ExpectTheSameOnATenth("tiered", all, 1);
  ExpectTheSameOnATenth("auto", all, 4);  // of each document four
}

// A request that no pool could ever hold is refused with the numbers; the daemon goes on.
TEST(TiersTest, WhatNeverFitsIsRefusedWithTheNumbers) {
  const auto daemon = DaemonProcess::Start(Flags("tiered", 75));
  ASSERT_NE(daemon, nullptr);
  const auto stub = NewStub(daemon->grpc_address());
  v1::CompleteRequest request = RequestFor("short");
  request.mutable_stopping()->set_max_tokens(8000);
  const CallResult refused = RunCall(stub.get(), request);
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  for (const char* word : {"8000", "slots", "frames", "kv_bytes", "host_kv_bytes"}) {
    EXPECT_NE(refused.status.error_message().find(word), std::string::npos)
        << refused.status.error_message();
  }
  EXPECT_TRUE(RunCall(stub.get(), RequestFor("short")).status.ok());
}

}  // namespace
}  // namespace augur::tests
