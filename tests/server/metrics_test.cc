// Names, labels and values of the exposition, without a listener but for the tests of the port
// itself.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "server/metrics_exporter.h"
#include "server/metrics_families.h"

namespace augur::server {
namespace {

class MetricsTest : public testing::Test {
 protected:
  std::vector<prometheus::MetricFamily> Families() const {
    std::vector<prometheus::MetricFamily> families;
    AppendFrontFamilies(front_, "1.2.3", &families);
    AppendEngineFamilies(model_, &families);
    AppendRouterFamilies(model_, &families);
    return families;
  }
  std::string Text() const {
    std::ostringstream out;
    prometheus::TextSerializer().Serialize(out, Families());
    return out.str();
  }
  void Expect(const std::string& line) const {
    EXPECT_NE(("\n" + Text()).find("\n" + line + "\n"), std::string::npos) << line << " is not in\n"
                                                                           << Text();
  }

  FrontStats front_;
  engine::EngineStats stats_;
  const ExportedModel model_{.name = "demo",
                             .stats = &stats_,
                             .num_blocks = 10,
                             .block_bytes = 4096,
                             .tiers = nullptr,
                             .transfers = nullptr,
                             .max_context = 512};
};

TEST_F(MetricsTest, RouterNamesAreVerbatim) {
  stats_.running = 3;
  stats_.waiting = 2;
  stats_.blocks_held = 4;
  stats_.blocks_cached = 5;
  Expect("vllm:num_requests_running{model_name=\"demo\",engine=\"0\"} 3");
  Expect("vllm:num_requests_waiting{model_name=\"demo\",engine=\"0\"} 2");
  Expect("vllm:kv_cache_usage_perc{model_name=\"demo\",engine=\"0\"} 0.4");
  Expect(
      "vllm:cache_config_info{model_name=\"demo\",engine=\"0\",block_size=\"64\",num_gpu_blocks="
      "\"10\"} 1");
  Expect(
      "vllm:lora_requests_info{model_name=\"demo\",engine=\"0\",max_lora=\"0\",waiting_lora_"
      "adapters=\"\","
      "running_lora_adapters=\"\"} 0");
}

TEST_F(MetricsTest, RequestsByCodeAndReason) {
  front_.CountRequest(0, EndReason::kEos);
  front_.CountRequest(3, EndReason::kNone);
  front_.CountRequest(3, EndReason::kNone);
  front_.CountRequest(99, EndReason::kNone);
  Expect("augur_requests_total{code=\"OK\",finish_reason=\"eos\"} 1");
  Expect("augur_requests_total{code=\"INVALID_ARGUMENT\",finish_reason=\"none\"} 2");
  Expect("augur_requests_total{code=\"UNKNOWN\",finish_reason=\"none\"} 1");
  Expect("augur_build_info{version=\"1.2.3\"} 1");
}

TEST_F(MetricsTest, OtherCallsByMethodAndCode) {
  front_.CountUnary(UnaryMethod::kDetokenize, 3);
  front_.CountUnary(UnaryMethod::kGetModel, 0);
  Expect("augur_unary_calls_total{method=\"Tokenize\",code=\"OK\"} 0");
  Expect("augur_unary_calls_total{method=\"Detokenize\",code=\"INVALID_ARGUMENT\"} 1");
  Expect("augur_unary_calls_total{method=\"GetModel\",code=\"OK\"} 1");
}

TEST_F(MetricsTest, HistogramsAreCumulativeFromHalfAMillisecondToTheLongestPrefill) {
  stats_.first_token_seconds.Observe(0.0001);
  stats_.first_token_seconds.Observe(1e9);
  Expect("augur_time_to_first_token_seconds_count{model_name=\"demo\"} 2");
  Expect("augur_time_to_first_token_seconds_bucket{model_name=\"demo\",le=\"0.0005\"} 1");
  Expect("augur_time_to_first_token_seconds_bucket{model_name=\"demo\",le=\"2560\"} 1");
  Expect("augur_time_to_first_token_seconds_bucket{model_name=\"demo\",le=\"+Inf\"} 2");
}

TEST_F(MetricsTest, BlocksAndCapacity) {
  stats_.blocks_free = 1;
  Expect("augur_kv_blocks{model_name=\"demo\",state=\"free\"} 1");
  Expect("augur_kv_capacity_tokens{model_name=\"demo\"} 640");
  Expect("augur_kv_capacity_bytes{model_name=\"demo\"} 40960");
}

TEST_F(MetricsTest, FamiliesAreWellFormed) {
  std::set<std::string> names;
  for (const auto& family : Families()) {
    EXPECT_TRUE(names.insert(family.name).second) << family.name << " twice";
    EXPECT_FALSE(family.help.empty()) << family.name;
    EXPECT_EQ(family.help.find_first_of("\n\\"), std::string::npos) << family.name;
    EXPECT_FALSE(family.metric.empty()) << family.name;
    const bool total =
        family.name.size() > 6 && family.name.substr(family.name.size() - 6) == "_total";
    EXPECT_EQ(total, family.type == prometheus::MetricType::Counter) << family.name;
    EXPECT_TRUE(family.name.rfind("augur_", 0) == 0 || family.name.rfind("vllm:", 0) == 0)
        << family.name;
  }
}

std::string Scrape(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET /metrics HTTP/1.0\r\n\r\n";
    EXPECT_EQ(send(fd, request.data(), request.size(), 0), static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t n; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) answer.append(buffer, n);
  }
  close(fd);
  return answer;
}

TEST_F(MetricsTest, ServesScrapesAndSaysWhenThePortIsTaken) {
  const auto exporter = MetricsExporter::Start("127.0.0.1:0", "1.2.3", &front_);
  ASSERT_TRUE(exporter.ok()) << exporter.status();
  EXPECT_EQ(Scrape((*exporter)->port()).find("vllm:"), std::string::npos);
  (*exporter)->SetModel(model_);
  EXPECT_NE(Scrape((*exporter)->port()).find("vllm:num_requests_running{"), std::string::npos);
  const auto second = MetricsExporter::Start((*exporter)->address(), "1.2.3", &front_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_NE(std::string(second.status().message()).find((*exporter)->address()), std::string::npos);
  (*exporter)->Close();
}

}  // namespace
}  // namespace augur::server
