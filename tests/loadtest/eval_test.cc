// augur-eval as a process against a real augurd: short documents, few questions.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "nlohmann/json.hpp"
#include "tests/support/daemon_process.h"

namespace augur::tests {
namespace {

constexpr int kRefused = 3;

struct Ended {
  int status = -1;
  std::string out;
  std::string err;
};

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(fd, buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  close(fd);
  return text;
}

// One augur-eval, its standard output in a file and its standard error in a pipe.
class EvalProcess {
 public:
  explicit EvalProcess(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), AUGUR_EVAL);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(pipe2(err_, O_CLOEXEC), 0);
    char name[] = "/tmp/augur-eval-test-XXXXXX";
    out_ = mkostemp(name, O_CLOEXEC);
    unlink(name);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(out_, STDOUT_FILENO);
      dup2(err_[1], STDERR_FILENO);
      execv(argv[0], argv.data());
      _exit(127);
    }
    close(err_[1]);
  }

  // Reads standard error up to the first line that holds `part`; false where it ends before.
  bool WaitForLine(const std::string& part) {
    char byte = 0;
    while (read(err_[0], &byte, 1) == 1) {
      seen_ += byte;
      if (byte == '\n' && seen_.find(part) != std::string::npos) return true;
    }
    return false;
  }

  void Interrupt() const { kill(pid_, SIGINT); }

  Ended Wait() {
    Ended ended;
    ended.err = seen_ + ReadAll(err_[0]);
    int status = 0;
    waitpid(pid_, &status, 0);
    ended.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    lseek(out_, 0, SEEK_SET);
    ended.out = ReadAll(out_);
    return ended;
  }

 private:
  pid_t pid_ = -1;
  int err_[2] = {-1, -1};
  int out_ = -1;
  std::string seen_;
};

class EvalTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = DaemonProcess::Start().release(); }
  static void TearDownTestSuite() { delete daemon_; }
  void SetUp() override {
    ASSERT_NE(daemon_, nullptr);
    std::string pattern = (std::filesystem::temp_directory_path() / "augur-eval-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // Short documents of the prose that the bundled model is known to read well.
  static std::vector<std::string> Arguments(std::vector<std::string> more) {
    std::vector<std::string> all = {"--address",   daemon_->grpc_address(),
                                    "--text",      AUGUR_SOURCE_DIR "/deploy/handbook.txt",
                                    "--length",    "1000",
                                    "--documents", "2",
                                    "--questions", "3"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  // Status 2 or 1 and one line that holds all of `parts`, nothing on standard output.
  static void ExpectRefusal(std::vector<std::string> arguments, int status,
                            const std::vector<std::string>& parts) {
    const Ended ended = EvalProcess(std::move(arguments)).Wait();
    EXPECT_EQ(ended.status, status) << ended.err;
    EXPECT_EQ(ended.out, "");
    const size_t line = ended.err.find("augur-eval: ");
    ASSERT_NE(line, std::string::npos) << ended.err;
    EXPECT_EQ(ended.err.find('\n', line), ended.err.size() - 1) << ended.err;
    for (const std::string& part : parts) {
      EXPECT_NE(ended.err.find(part, line), std::string::npos) << part << "\n" << ended.err;
    }
  }

  static DaemonProcess* daemon_;
  std::string folder_;
};
DaemonProcess* EvalTest::daemon_ = nullptr;

void ExpectDenseRun(const nlohmann::json& run) {
  ASSERT_EQ(run["questions"].size(), 6u);
  EXPECT_EQ(run["summary"]["n"], 6);
  EXPECT_TRUE(run["summary"]["to_dense"].is_null());
  EXPECT_GE(run["summary"]["right"], 4) << run.dump(1);
  EXPECT_FALSE(run["counters"].is_null());
  for (const nlohmann::json& question : run["questions"]) {
    const int prompt = question["prompt_tokens"];
    EXPECT_LE(prompt, 1000);
    EXPECT_GE(prompt, 950);
    // The first one computes the document, the others find it.
    EXPECT_EQ(question["cold"], question["question"] == 0);
    const int cached = question["cached_tokens"];
    if (question["cold"]) {
      EXPECT_EQ(cached, 0);
    } else {
      EXPECT_GT(cached, 800);
    }
    EXPECT_FALSE(question["answer"].empty());
    EXPECT_GT(question["first_token_ms"], 0);
    EXPECT_GE(question["total_ms"], question["first_token_ms"]);
  }
}

TEST_F(EvalTest, DenseAnswersAndAnotherPolicyIsCompared) {
  const std::string json_file = folder_ + "/report.json";
  const Ended ended =
      EvalProcess(Arguments({"--tasks", "needle,many-keys,pairs", "--distractors", "4",
                             "--policies", "dense,sparse", "--concurrency", "2", "--metrics",
                             daemon_->metrics_address(), "--json", json_file}))
          .Wait();
  std::printf("%s", ended.out.c_str());
  std::ifstream file(json_file);
  const nlohmann::json json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(json.is_object()) << ended.err;
  EXPECT_TRUE(json["complete"]);
  EXPECT_EQ(json["max_context"], 8192);
  const bool refused = !json["refused"].empty();
  EXPECT_EQ(ended.status, refused ? kRefused : 0) << ended.err;
  EXPECT_EQ(json["runs"].size(), refused ? 3u : 6u);
  for (const nlohmann::json& run : json["runs"]) {
    const std::string task = run["task"];
    const std::string policy = run["policy"];
    EXPECT_NE(ended.out.find(task), std::string::npos) << ended.out;
    EXPECT_NE(ended.out.find(policy), std::string::npos) << ended.out;
    if (policy == "dense") {
      ExpectDenseRun(run);
    } else {
      EXPECT_EQ(run["questions"].size(), 6u);
      EXPECT_TRUE(run["summary"]["to_dense"].is_object());
    }
  }
  if (refused) {
    EXPECT_NE(ended.out.find("sparse is not in the table"), std::string::npos) << ended.out;
  }
}

// loadtest/demo9m_grid.yaml as it stands, at a toy size.
TEST_F(EvalTest, TheGridRunsByOneFile) {
  const Ended ended =
      EvalProcess(Arguments({"--sweep", AUGUR_SOURCE_DIR "/loadtest/demo9m_grid.yaml", "--tasks",
                             "needle,people", "--policies", "dense,sparse", "--compare",
                             "sparse:dense", "--chosen-blocks", "2,4", "--documents-at", "1000/4:3",
                             "--json", folder_ + "/grid.json", "--svg", folder_ + "/grid.svg"}))
          .Wait();
  ASSERT_EQ(ended.status, 0) << ended.err;
  const auto json = nlohmann::json::parse(std::ifstream(folder_ + "/grid.json"));
  ASSERT_EQ(json["left_out"].size(), 1u) << ended.err;
  EXPECT_EQ(json["left_out"][0]["task"], "people");  // beyond the model
  ASSERT_EQ(json["runs"].size(), 4u);
  const std::vector<int> questions = {9, 6, 9};  // dense, 2 chosen blocks, 4
  for (int run = 0; run < 3; ++run) {
    EXPECT_EQ(json["runs"][run]["summary"]["n"], questions[run]);
    const auto& blocks = json["runs"][run]["top_k_blocks"];
    EXPECT_EQ(blocks, run == 0 ? nlohmann::json() : nlohmann::json(9 + 2 * run));
  }
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/grid.svg"));
}

TEST_F(EvalTest, PerplexityOfATextUnderEveryPolicy) {
  const Ended ended =
      EvalProcess(Arguments({"--perplexity", "--policies", "dense,sparse", "--top-k-blocks", "10",
                             "--json", folder_ + "/perplexity.json"}))
          .Wait();
  ASSERT_EQ(ended.status, 0) << ended.err;
  const auto json = nlohmann::json::parse(std::ifstream(folder_ + "/perplexity.json"));
  ASSERT_EQ(json["perplexity"].size(), 2u);
  const double dense = json["perplexity"][0]["perplexity"];
  EXPECT_EQ(json["perplexity"][0]["scored_tokens"], 1000);
  EXPECT_GT(dense, 2.0);
  EXPECT_LT(dense, 60.0);  // chance is the vocabulary: 4,096
  EXPECT_NE(json["perplexity"][1]["perplexity"], dense);
  EXPECT_NEAR(json["perplexity"][1]["to_dense"]["nats"], 0, 0.2);
}

TEST_F(EvalTest, WrongRequestsAreOneLineAndStatus2) {
  ExpectRefusal(Arguments({"--tasks", "poems"}), 2, {"--tasks", "\"poems\"", "needle"});
  ExpectRefusal(Arguments({"--policies", "lazy"}), 2, {"--policies", "\"lazy\"", "dense"});
  ExpectRefusal(Arguments({"--length", "9000"}), 2, {"--length"});  // given twice
  ExpectRefusal(Arguments({"--documents", "0"}), 2, {"--documents"});
  ExpectRefusal(Arguments({"--tasks", "many-keys", "--distractors", "80"}), 2,
                {"--length", "1000", "83 facts"});
  ExpectRefusal(Arguments({"--documents-at", "1000:3"}), 2, {"--documents-at", "1000:3"});
  ExpectRefusal(Arguments({"--compare", "sparse"}), 2, {"--compare", "sparse"});
  ExpectRefusal(Arguments({"--chosen-blocks", "4"}), 2, {"--forced-blocks"});
  ExpectRefusal(Arguments({"--least-dense", "0.5", "--policies", "sparse"}), 2, {"--least-dense"});
  std::ofstream(folder_ + "/empty.txt").close();
  const std::vector<std::string> start = {"--address", daemon_->grpc_address(), "--text"};
  auto arguments = start;
  arguments.push_back(folder_ + "/empty.txt");
  ExpectRefusal(arguments, 2, {"--text", "empty.txt"});
  arguments = start;
  arguments.insert(arguments.end(), {AUGUR_SOURCE_DIR "/deploy/handbook.txt", "--length", "8180"});
  ExpectRefusal(arguments, 2, {"--length", "8180", "8192"});
}

TEST_F(EvalTest, NoDaemonIsOneLineAndStatus1) {
  ExpectRefusal({"--address", "127.0.0.1:1", "--text", AUGUR_SOURCE_DIR "/deploy/handbook.txt"}, 1,
                {"UNAVAILABLE", "127.0.0.1:1"});
  ExpectRefusal(Arguments({"--metrics", "127.0.0.1:1"}), 1, {"--metrics", "127.0.0.1:1"});
}

TEST_F(EvalTest, AnInterruptEndsItWithWhatIsComplete) {
  EvalProcess process({"--address", daemon_->grpc_address(), "--text",
                       AUGUR_SOURCE_DIR "/deploy/handbook.txt", "--length", "2000", "--documents",
                       "500", "--questions", "2", "--tasks", "needle"});
  ASSERT_TRUE(process.WaitForLine("making 500 documents"));
  process.Interrupt();
  const Ended ended = process.Wait();
  EXPECT_EQ(ended.status, 130) << ended.err;
  EXPECT_NE(ended.err.find("augur-eval: interrupted\n"), std::string::npos) << ended.err;
}

TEST_F(EvalTest, AnInterruptWhileAskingEndsItToo) {
  EvalProcess process({"--address", daemon_->grpc_address(), "--text",
                       AUGUR_SOURCE_DIR "/deploy/handbook.txt", "--length", "2000", "--documents",
                       "30", "--questions", "2", "--tasks", "needle"});
  const bool asking = process.WaitForLine("document 1 of");
  if (asking) process.Interrupt();
  const Ended ended = process.Wait();
  ASSERT_TRUE(asking) << ended.err;
  EXPECT_EQ(ended.status, 130) << ended.err;
  EXPECT_NE(ended.out.find("did not come to its end"), std::string::npos) << ended.out;
}

}  // namespace
}  // namespace augur::tests
