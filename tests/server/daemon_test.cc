// The augurd binary from outside: flags, exit statuses with their one line, readiness, signals.

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "augur/v1/completions.grpc.pb.h"
#include "augurd_process.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "server/exit_code.h"

namespace augur::server {
namespace {

constexpr char kModel[] = AUGUR_SOURCE_DIR "/deploy/models/demo-9m";
constexpr char kModelWithoutText[] = AUGUR_SOURCE_DIR "/tests/golden/models/llama";

std::vector<std::string> Serving(const std::vector<std::string>& more = {}) {
  std::vector<std::string> arguments = {"--model",   kModel,        "--listen",    "127.0.0.1:0",
                                        "--metrics", "127.0.0.1:0", "--port-file", "PORT_FILE"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// Ends with `code` and one line on standard error that holds `words`.
void ExpectFailure(const std::vector<std::string>& arguments, int code, const std::string& words) {
  AugurdProcess process(arguments);
  EXPECT_EQ(process.Wait(), code) << process.err();
  const std::string err = process.err();
  EXPECT_EQ(std::count(err.begin(), err.end(), '\n'), 1) << err;
  EXPECT_NE(err.find(words), std::string::npos) << err;
}

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    static std::atomic<int> serial{0};
    path_ = testing::TempDir() + "/augurd_file_" + std::to_string(getpid()) + "_" +
            std::to_string(serial++);
    std::ofstream(path_) << text;
  }
  ~TemporaryFile() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(DaemonTest, HelpAndVersion) {
  AugurdProcess help({"--help"});
  EXPECT_EQ(help.Wait(), 0);
  EXPECT_NE(help.out().find("--check-config"), std::string::npos);
  AugurdProcess version({"--version"});
  EXPECT_EQ(version.Wait(), 0);
  EXPECT_EQ(version.out().rfind("augurd " AUGUR_VERSION "\n", 0), 0u) << version.out();
}

TEST(DaemonTest, BadFlagsAndConfigExit2) {
  ExpectFailure({"--modell", "x"}, kExitBadInput, "--modell");
  ExpectFailure({}, kExitBadInput, "model: expected a folder");
  ExpectFailure({"--model", "/no/such/folder"}, kExitBadInput, "/no/such/folder");
  ExpectFailure({"--model", kModel, "--listen", "nowhere"}, kExitBadInput,
                "--listen: listen: expected HOST:PORT");
  ExpectFailure({"--config", "/no/such/file"}, kExitBadInput, "/no/such/file");
  const TemporaryFile wrong("bacth: 3\n");
  ExpectFailure({"--model", kModel, "--config", wrong.path()}, kExitBadInput,
                wrong.path() + ":1: unknown key \"bacth\", the nearest is \"batch\"");
  ExpectFailure(Serving({"--set", "context=100000"}), kExitBadInput, "context: expected at most");
  ExpectFailure(Serving({"--set", "kv_bytes=1KiB"}), kExitBadInput, "kv_bytes");
}

TEST(DaemonTest, ABadModelExits2) {
  const std::string folder = testing::TempDir() + "/augurd_model_" + std::to_string(getpid());
  std::filesystem::create_directories(folder);
  const std::vector<std::string> arguments = {"--model",     folder,      "--listen",
                                              "127.0.0.1:0", "--metrics", "127.0.0.1:0"};
  ExpectFailure(arguments, kExitBadInput, "config.json");
  std::ofstream(folder + "/config.json") << "{\"model_type\": \"nothing\"}";
  ExpectFailure(arguments, kExitBadInput, folder);
  std::filesystem::remove_all(folder);
}

TEST(DaemonTest, CheckConfigPrintsAFileThatLoads) {
  AugurdProcess first(
      {"--model", kModel, "--threads", "3", "--set", "drain_limit=5s", "--check-config"});
  ASSERT_EQ(first.Wait(), 0) << first.err();
  EXPECT_NE(first.out().find("threads: 3  #"), std::string::npos) << first.out();
  EXPECT_NE(first.out().find("drain_limit: 5s  #"), std::string::npos);
  const TemporaryFile file(first.out());
  AugurdProcess second({"--config", file.path(), "--check-config"});
  ASSERT_EQ(second.Wait(), 0) << second.err();
  EXPECT_EQ(second.out(), first.out());
  ExpectFailure({"--set", "batch=none", "--check-config"}, kExitBadInput,
                "--set: batch: expected an integer");
}

TEST(DaemonTest, ServesAndStopsCleanly) {
  AugurdProcess process(Serving({"--served-name", "other"}));
  ASSERT_TRUE(process.WaitUntilReady()) << process.err();
  EXPECT_EQ(process.Address("metrics").rfind("127.0.0.1:", 0), 0u);
  const auto channel =
      grpc::CreateChannel(process.Address("grpc"), grpc::InsecureChannelCredentials());
  const auto stub = augur::v1::Completions::NewStub(channel);
  v1::CompleteRequest request;
  request.set_text(
      "The code of 1234567 is 7654321.\nQuestion: What is the code of 1234567? The code of 1234567 "
      "is");
  request.mutable_sampling()->set_temperature(0);
  grpc::ClientContext context;
  const auto reader = stub->Complete(&context, request);
  v1::CompleteResponse message;
  std::string text;
  while (reader->Read(&message)) text += message.chunk().text();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_NE(text, "");
  EXPECT_TRUE(message.has_finished());
  const auto health = grpc::health::v1::Health::NewStub(channel);
  for (const char* name : {"", "augur.v1.Completions", "live"}) {
    grpc::ClientContext check;
    grpc::health::v1::HealthCheckRequest ask;
    ask.set_service(name);
    grpc::health::v1::HealthCheckResponse answer;
    EXPECT_TRUE(health->Check(&check, ask, &answer).ok());
    EXPECT_EQ(answer.status(), grpc::health::v1::HealthCheckResponse::SERVING) << name;
  }
  ExpectFailure(Serving({"--set", "listen=" + process.Address("grpc")}), kExitPortInUse,
                process.Address("grpc"));
  ExpectFailure(Serving({"--set", "metrics=" + process.Address("metrics")}), kExitPortInUse,
                process.Address("metrics"));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
  EXPECT_NE(process.err().find("ready version="), std::string::npos);
  EXPECT_NE(process.err().find("code=OK reason="), std::string::npos) << process.err();
}

TEST(DaemonTest, AFolderWithoutTokenizerServesIds) {
  AugurdProcess process({"--model", kModelWithoutText, "--listen", "127.0.0.1:0", "--metrics",
                         "127.0.0.1:0", "--port-file", "PORT_FILE"});
  ASSERT_TRUE(process.WaitUntilReady()) << process.err();
  const auto stub = augur::v1::Completions::NewStub(
      grpc::CreateChannel(process.Address("grpc"), grpc::InsecureChannelCredentials()));
  v1::CompleteRequest request;
  request.set_text("a");
  v1::CompleteResponse message;
  {
    grpc::ClientContext context;
    const auto reader = stub->Complete(&context, request);
    EXPECT_FALSE(reader->Read(&message));
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  }
  request.mutable_token_ids()->add_ids(1);
  request.mutable_stopping()->set_ignore_eos(true);
  grpc::ClientContext context;
  const auto reader = stub->Complete(&context, request);
  int ids = 0;
  while (reader->Read(&message)) ids += message.chunk().token_ids_size();
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(ids, 16);
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 0);
}

TEST(DaemonTest, EndsCleanlyWhenTheTerminalGoes) {
  AugurdProcess process(Serving({}));
  ASSERT_TRUE(process.WaitUntilReady()) << process.err();
  process.Signal(SIGHUP);
  EXPECT_EQ(process.Wait(), 0);
}

// Streams under way when SIGTERM comes: each ends once, with OK or UNAVAILABLE, and the daemon with
// 0.
void StopUnderLoad(const std::string& drain_limit, int signals) {
  AugurdProcess process(Serving({"--set", "drain_limit=" + drain_limit, "--log-level", "warn"}));
  ASSERT_TRUE(process.WaitUntilReady()) << process.err();
  const std::string address = process.Address("grpc");
  constexpr int kStreams = 40;
  std::atomic<int> accepted{0};
  std::atomic<int> ok{0};
  std::atomic<int> unavailable{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([&, i] {
      const auto stub = augur::v1::Completions::NewStub(
          grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
      v1::CompleteRequest request;
      request.set_text("The code of");
      request.mutable_stopping()->set_max_tokens(i % 4 == 0 ? 20 : 4000);
      request.mutable_stopping()->set_ignore_eos(true);
      grpc::ClientContext context;
      const auto reader = stub->Complete(&context, request);
      v1::CompleteResponse message;
      while (reader->Read(&message)) accepted += message.has_accepted() ? 1 : 0;
      const grpc::Status status = reader->Finish();
      if (status.ok()) ++ok;
      if (status.error_code() == grpc::StatusCode::UNAVAILABLE) ++unavailable;
      EXPECT_EQ(status.ok(), message.has_finished()) << status.error_message();
    });
  }
  EXPECT_TRUE(Eventually([&] { return accepted == kStreams; }));
  for (int i = 0; i < signals; ++i) {
    process.Signal(SIGTERM);
    // Two pending signals of a kind are one: the second goes out once the first has been taken.
    if (i == 0 && signals > 1) {
      const auto stub = augur::v1::Completions::NewStub(
          grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
      EXPECT_TRUE(Eventually([&] {
        grpc::ClientContext context;
        v1::TokenizeResponse response;
        return stub->Tokenize(&context, {}, &response).error_code() ==
               grpc::StatusCode::UNAVAILABLE;
      }));
    }
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(process.Wait(), 0) << process.err();
  EXPECT_EQ(ok + unavailable, kStreams);
  EXPECT_GT(unavailable, 0);
}

TEST(DaemonTest, SigtermUnderLoadEndsEveryStreamOnce) { StopUnderLoad("200ms", 1); }
TEST(DaemonTest, NoDrainTimeAtAll) { StopUnderLoad("0", 1); }
TEST(DaemonTest, ASecondSignalEndsTheDrain) { StopUnderLoad("1h", 2); }

}  // namespace
}  // namespace augur::server
