// Defaults, the YAML file, flags, and every way to get them wrong.

#include "server/server_config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "server/config_values.h"
#include "server/host_port.h"
#include "server/port_file.h"
#include "server/quote.h"

namespace augur::server {
namespace {

constexpr MachineLimits kMachine{.memory_bytes = int64_t{16} << 30, .cpus = 4};

class ServerConfigTest : public testing::Test {
 protected:
  ServerConfigTest() { std::filesystem::create_directories(folder_); }
  ~ServerConfigTest() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& text) const {
    const std::string path = folder_ + "/augur.yaml";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }
  absl::StatusOr<ServerConfig> Load(const std::string& text,
                                    const std::vector<ConfigOverride>& overrides = {}) const {
    return LoadServerConfig(Write(text), overrides, kMachine);
  }
  // The message without the path of the file.
  std::string Error(const std::string& text,
                    const std::vector<ConfigOverride>& overrides = {}) const {
    const auto config = Load(text, overrides);
    if (config.ok()) return "no error";
    std::string message(config.status().message());
    if (message.rfind(folder_, 0) == 0) message.erase(0, folder_.size() + 1);
    return message;
  }

  const std::string folder_ = testing::TempDir() + "/augur_config_" + std::to_string(getpid());
};

TEST_F(ServerConfigTest, DefaultsComeFromTheMachine) {
  const auto config = LoadServerConfig("", {{"model", "/models/demo-9m/", "--model"}}, kMachine);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->listen, "127.0.0.1:50051");
  EXPECT_EQ(config->metrics, "127.0.0.1:9464");
  EXPECT_EQ(config->served_name, "demo-9m");
  EXPECT_EQ(config->threads, 4);
  EXPECT_EQ(config->kv_bytes, 256 << 20);
  EXPECT_EQ(config->batch, 32);
  EXPECT_EQ(config->batched_tokens, 512);
  const auto small = LoadServerConfig("", {}, {.memory_bytes = 100 << 20, .cpus = 1});
  EXPECT_EQ(small->kv_bytes, 25 << 20);
}

TEST_F(ServerConfigTest, ReadsEveryKindOfValue) {
  const auto config = Load(
      "# a comment\n"
      "model: /models/x\ncontext: 4096\nkv_bytes: 1.5 GiB\nkv_dtype: bfloat16\nbatch: 64\n"
      "slow_reader_timeout: 500ms\ndefault_deadline: 90s\nprefix_cache: false\nlisten: "
      "\"[::1]:0\"\nlog_level: debug\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->context, 4096);
  EXPECT_EQ(config->kv_bytes, int64_t{3} << 29);
  EXPECT_EQ(config->kv_dtype, kernels::DType::kBF16);
  EXPECT_EQ(config->batch, 64);
  EXPECT_EQ(config->slow_reader_timeout_ns, 500'000'000);
  EXPECT_EQ(config->default_deadline_ns, 90'000'000'000);
  EXPECT_FALSE(config->prefix_cache);
  EXPECT_EQ(config->listen, "[::1]:0");
  EXPECT_EQ(config->log_level, "debug");
}

// Both say 0 bytes: one cannot be read, the other holds many.
TEST_F(ServerConfigTest, AFileThatCannotBeReadIsNotAnEmptyOne) {
  for (const char* file : {"/proc/self/mem", "/proc/self/maps"}) {
    const auto config = LoadServerConfig(file, {}, kMachine);
    ASSERT_FALSE(config.ok()) << file;
    EXPECT_EQ(std::string(config.status().message()).rfind(file, 0), 0u) << config.status();
  }
  EXPECT_NE(Error(std::string((1 << 20) + 1, '#')).find("1048576 bytes"), std::string::npos);
}

TEST_F(ServerConfigTest, FlagsOverrideTheFile) {
  const auto config = Load("threads: 2\nserved_name: a\n", {{"threads", "3", "--threads"}});
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->threads, 3);
  EXPECT_EQ(config->served_name, "a");
  EXPECT_EQ(Error("", {{"threads", "x", "--threads"}}),
            "--threads: threads: expected an integer from 1 to 1024, found \"x\"");
}

TEST_F(ServerConfigTest, PrintsWhatItReadsBack) {
  const auto config =
      Load("model: '/a \"b\" \\c: # d'\nkv_bytes: 100KiB\nkv_dtype: float16\nstall_limit: 90s\n");
  ASSERT_TRUE(config.ok()) << config.status();
  const std::string printed = FormatServerConfig(*config);
  const auto again = Load(printed);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->model, "/a \"b\" \\c: # d");
  EXPECT_EQ(FormatServerConfig(*again), printed);
  for (const std::string& key : ServerConfigKeys()) {
    EXPECT_NE(("\n" + printed).find("\n" + key + ": "), std::string::npos) << key;
  }
}

// Every key with one letter changed, dropped or added.
TEST_F(ServerConfigTest, RefusesEveryMisspelledKeyAndNamesTheNearest) {
  for (const std::string& key : ServerConfigKeys()) {
    for (size_t i = 0; i < key.size(); ++i) {
      for (const std::string& wrong :
           {key.substr(0, i) + "Q" + key.substr(i + 1), key.substr(0, i) + key.substr(i + 1),
            key.substr(0, i) + "Q" + key.substr(i)}) {
        EXPECT_EQ(Error("\n" + wrong + ": 1\n"),
                  "augur.yaml:2: unknown key \"" + wrong + "\", the nearest is \"" + key + "\"");
      }
    }
  }
}

TEST_F(ServerConfigTest, NamesPlaceKeyValueAndLimit) {
  EXPECT_EQ(Error("threads: 1\nbatch: 0\n"),
            "augur.yaml:2: batch: expected an integer from 1 to 1024, found \"0\"");
  EXPECT_EQ(Error("batch: many"),
            "augur.yaml:1: batch: expected an integer from 1 to 1024, found \"many\"");
  EXPECT_EQ(Error("batch: 1.5"),
            "augur.yaml:1: batch: expected an integer from 1 to 1024, found \"1.5\"");
  EXPECT_EQ(Error("batch: [1, 2]"),
            "augur.yaml:1: batch: expected one value, found a list or a map");
  EXPECT_EQ(Error("batch:"), "augur.yaml:1: batch: expected one value, found nothing");
  EXPECT_EQ(Error("batch: 1\nbatch: 2"), "augur.yaml:2: \"batch\" is given twice");
  EXPECT_EQ(Error("prefix_cache: maybe"),
            "augur.yaml:1: prefix_cache: expected true or false, found \"maybe\"");
  EXPECT_EQ(Error("kv_bytes: 10 potatoes"),
            "augur.yaml:1: kv_bytes: expected a size (bytes, or a number with KiB, MiB, GiB or "
            "TiB) from 0 to "
            "64TiB, found \"10 potatoes\"");
  EXPECT_EQ(Error("drain_limit: 30"),
            "augur.yaml:1: drain_limit: expected a duration (a number with ms, s, m or h) from 0 "
            "to 24h, found "
            "\"30\"");
  EXPECT_EQ(Error("host_kv_dtype: fp4"),
            "augur.yaml:1: host_kv_dtype: expected same or fp8, found \"fp4\"");
  EXPECT_EQ(Error("kv_dtype: int8"),
            "augur.yaml:1: kv_dtype: expected auto, float32, bfloat16 or float16, found \"int8\"");
  EXPECT_EQ(Error("listen: 50051"),
            "augur.yaml:1: listen: expected HOST:PORT with a port from 0 to 65535, e.g. "
            "127.0.0.1:50051, found "
            "\"50051\"");
  EXPECT_EQ(Error("batch: 500\nbatched_tokens: 512"),
            "augur.yaml: batched_tokens: expected at least batch + 64 = 564, found 512");
  EXPECT_EQ(Error("context: 10"), "augur.yaml: context: expected 0 or at least 64, found 10");
}

TEST_F(ServerConfigTest, AttentionAndTiers) {
  EXPECT_EQ(Error("decode_policy: quest"),
            "augur.yaml:1: decode_policy: expected auto, dense, sparse, infinigen or forecast, "
            "found \"quest\"");
  EXPECT_EQ(Error("local_blocks: 1").substr(0, 27), "augur.yaml:1: local_blocks:");
  EXPECT_EQ(Error("top_k_blocks: few"),
            "augur.yaml:1: top_k_blocks: expected auto or an integer from 1 to 262144, found "
            "\"few\"");
  EXPECT_EQ(Error("link_bytes_per_second: 1B"),
            "augur.yaml: link_bytes_per_second: expected 0B or at least 1MiB, found 1B");
  EXPECT_EQ(Error("link_pages_per_second: 10"),
            "augur.yaml: link_pages_per_second: expected 0 or at least 100, found 10");
  EXPECT_EQ(Error("copy_ctas: many"),
            "augur.yaml:1: copy_ctas: expected auto or an integer from 1 to 64, found \"many\"");
  EXPECT_EQ(Error("copy_ctas: auto\ncopy_ctas_min: 9"),
            "augur.yaml: copy_ctas_min: expected at most copy_ctas_max, 8, found 9");
  EXPECT_EQ(Load("")->copy_ctas, std::nullopt);
  EXPECT_EQ(Load("copy_ctas: 4")->copy_ctas, 4);
  EXPECT_EQ(Error("residency: host"),
            "augur.yaml:1: residency: expected device, tiered or auto, found \"host\"");
  EXPECT_EQ(Error("residency: tiered\nkv_bytes: 10GiB\nhost_kv_bytes: 7GiB"),
            "augur.yaml: host_kv_bytes: expected at most what kv_bytes leaves of this machine's "
            "memory, 6GiB, found 7GiB");
  const auto config = Load("residency: tiered\ndecode_policy: sparse\ntop_k_blocks: 30\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->decode_policy, engine::AttentionPolicy::kSparse);
  EXPECT_EQ(config->prefill_policy, std::nullopt);
  EXPECT_EQ(config->top_k_blocks, 30);
  EXPECT_EQ(config->local_blocks, std::nullopt);
  EXPECT_GT(config->host_kv_bytes, 0);
}

TEST_F(ServerConfigTest, SampledValues) {
  EXPECT_EQ(Error("attention.values.mode: some"),
            "augur.yaml:1: attention.values.mode: expected exact or sampled, found \"some\"");
  EXPECT_EQ(Error("attention.values.samples: 0"),
            "augur.yaml:1: attention.values.samples: expected a positive integer, or one a layer "
            "with commas between, found \"0\"");
  EXPECT_NE(Error("attention.values.estimator: best").find("expected iid, stratified"),
            std::string::npos);
  EXPECT_NE(Error("attention.values.max_samples: 65537").find("from 1 to 65536"),
            std::string::npos);
  const auto config = Load(
      "attention.values.mode: sampled\nattention.values.estimator: flash\n"
      "attention.values.budget: draws\nattention.values.samples: 5,6\n"
      "attention.values.fetch: rows\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->values.sampled);
  EXPECT_EQ(config->values.estimator, engine::ValueEstimator::kFlash);
  EXPECT_EQ(config->values.budget, kernels::ValueBudget::kDraws);
  EXPECT_EQ(config->values.samples, (std::vector<int>{5, 6}));
  EXPECT_EQ(config->values.fetch, memory::ValueFetch::kRows);
}

TEST_F(ServerConfigTest, RefusesWhatIsNoMap) {
  EXPECT_EQ(Error("- a\n- b\n"), "augur.yaml:1: expected a map of keys to values");
  EXPECT_EQ(Error("batch: 1\n---\nbatch: 2\n"), "augur.yaml: expected one YAML document, found 2");
  EXPECT_EQ(Error("? [a]\n: 1\n"), "augur.yaml:1: expected a key, found a list or a map");
  EXPECT_EQ(Error("batch: 1\nthreads: [\n").substr(0, 29), "augur.yaml:3: not valid YAML:");
  EXPECT_TRUE(Load("").ok());
  EXPECT_TRUE(Load("# nothing\n").ok());
  const auto missing = LoadServerConfig("/no/such/file.yaml", {}, kMachine);
  EXPECT_EQ(std::string(missing.status().message()).substr(0, 40),
            "/no/such/file.yaml: cannot read the file");
}

TEST_F(ServerConfigTest, LimitsOfTheContainerCount) {
  const std::string cgroup = folder_ + "/sys/fs/cgroup";
  std::filesystem::create_directories(folder_ + "/proc/self");
  std::filesystem::create_directories(cgroup + "/a/b");
  std::ofstream(folder_ + "/proc/self/cgroup") << "0::/a/b\n";
  std::ofstream(cgroup + "/a/memory.max") << "1048576\n";
  std::ofstream(cgroup + "/a/b/memory.max") << "max\n";
  std::ofstream(cgroup + "/a/b/cpu.max") << "50000 100000\n";
  const MachineLimits limits = ReadMachineLimits(folder_);
  EXPECT_EQ(limits.memory_bytes, 1 << 20);
  EXPECT_EQ(limits.cpus, 1);
  EXPECT_GE(ReadMachineLimits().memory_bytes, 1 << 20);
}

TEST_F(ServerConfigTest, PortFileAppearsWhole) {
  const std::string path = folder_ + "/port";
  ASSERT_TRUE(WritePortFile(path, "127.0.0.1:1", "127.0.0.1:2").ok());
  std::ifstream file(path);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  EXPECT_EQ(text, "grpc 127.0.0.1:1\nmetrics 127.0.0.1:2\n");
  EXPECT_FALSE(std::filesystem::exists(path + ".new"));
  EXPECT_TRUE(PreparePortFile(path).ok());
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(WritePortFile(folder_ + "/no/such/folder", "a", "b").ok());
}

TEST(ConfigValuesTest, RoundTrips) {
  EXPECT_EQ(ParseBytes("64MiB"), 64 << 20);
  EXPECT_EQ(ParseBytes("123"), 123);
  EXPECT_FALSE(ParseBytes("64MB").has_value());
  EXPECT_FALSE(ParseBytes("0.3B").has_value());
  EXPECT_FALSE(ParseBytes("9e99TiB").has_value());
  EXPECT_FALSE(ParseBytes("-1KiB").has_value());
  EXPECT_FALSE(ParseBytes("nanKiB").has_value());
  EXPECT_EQ(FormatBytes(3 << 20), "3MiB");
  EXPECT_EQ(ParseDuration("1.5s"), 1'500'000'000);
  EXPECT_FALSE(ParseDuration("5").has_value());
  EXPECT_EQ(FormatDuration(120'000'000'000), "2m");
  EXPECT_EQ(EditDistance("kitten", "sitting"), 3);
}

TEST(HostPortTest, TakesAndRefuses) {
  EXPECT_EQ(ParseHostPort("[::1]:80")->host, "[::1]");
  EXPECT_EQ(ParseHostPort("localhost:0")->port, 0);
  for (const char* wrong :
       {"", ":80", "host", "host:", "host:70000", "host:-1", "::1:80", "a,b:1", "h:1x"}) {
    EXPECT_FALSE(ParseHostPort(wrong).ok()) << wrong;
  }
}

TEST(QuoteTest, OneBoundedPrintableLine) {
  EXPECT_EQ(Quoted("a\"b\\c\nd\x01\xff"), "\"a\\\"b\\\\c\\nd\\x01\\xff\"");
  EXPECT_EQ(Quoted("abcdef", 3), "\"abc...\"");
  EXPECT_EQ(OneLine("a\nb\tc"), "a b c");
}

}  // namespace
}  // namespace augur::server
