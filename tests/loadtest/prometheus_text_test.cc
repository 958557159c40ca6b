// The text format of Prometheus, and growth between two pages.
#include "loadtest/prometheus_text.h"

#include <gtest/gtest.h>

#include <cmath>

namespace augur::loadtest {
namespace {

std::vector<PrometheusSample> Parse(const std::string& page) {
  absl::StatusOr<std::vector<PrometheusSample>> samples = ParsePrometheusText(page);
  EXPECT_TRUE(samples.ok()) << samples.status();
  return samples.ok() ? *std::move(samples) : std::vector<PrometheusSample>();
}

TEST(PrometheusText, ReadsWhatTheFormatAllows) {
  const std::vector<PrometheusSample> samples = Parse(
      "# HELP a_total What a counts\n# TYPE a_total counter\n"
      "a_total 12\r\n"
      "\n"
      "b{x=\"1\",y=\"two, }\"} 3.5e2 1700000000\n"
      "c{ quoted = \"back\\\\slash, \\\"quote\\\", line\\nend, \\\\n\" , } +Inf\n"
      "vllm:d{} NaN");
  ASSERT_EQ(samples.size(), 4u);
  EXPECT_EQ(samples[0].name, "a_total");
  EXPECT_EQ(samples[0].value, 12);
  EXPECT_EQ(samples[1].labels.at("x"), "1");
  EXPECT_EQ(samples[1].labels.at("y"), "two, }");
  EXPECT_EQ(samples[1].value, 350);
  EXPECT_EQ(samples[2].labels.at("quoted"), "back\\slash, \"quote\", line\nend, \\n");
  EXPECT_TRUE(std::isinf(samples[2].value));
  EXPECT_EQ(samples[3].name, "vllm:d");
  EXPECT_TRUE(std::isnan(samples[3].value));
}

TEST(PrometheusText, NamesTheLineThatIsNone) {
  for (const char* bad :
       {"a", "a{", "a{x}", "a{x=\"1\" 2", "a{x=\"1} 2", "a{x=\"\\", "{} 1", "a b", "<html>"}) {
    const absl::Status status = ParsePrometheusText(std::string("ok 1\n") + bad + "\n").status();
    ASSERT_TRUE(absl::IsInvalidArgument(status)) << bad;
    EXPECT_EQ(status.message().find("line 2 "), 0u) << status;
  }
}

TEST(CounterGrowth, AddsUpOverLabels) {
  const CounterGrowth growth(
      Parse("bytes{to=\"host\",kind=\"spill\"} 10\nother 7\nstill 5\n"),
      Parse("bytes{to=\"host\",kind=\"spill\"} 14\nbytes{to=\"device\",kind=\"fetch\"} 3\n"
            "other 9\nstill 5\n"),
      {"bytes", "still", "absent"});
  EXPECT_EQ(growth.Sum("bytes"), 7);
  EXPECT_EQ(growth.Sum("still"), 0);
  EXPECT_EQ(growth.Sum("absent"), std::nullopt);
  EXPECT_EQ(growth.Sum("other"), std::nullopt);
  ASSERT_EQ(growth.samples().size(), 3u);
  EXPECT_EQ(growth.samples().at("bytes{kind=\"spill\",to=\"host\"}"), 4);
  EXPECT_EQ(growth.samples().at("bytes{kind=\"fetch\",to=\"device\"}"), 3);
}

TEST(CounterGrowth, AShrunkCounterIsNotKnown) {
  EXPECT_EQ(CounterGrowth(Parse("a 5\n"), Parse("a 2\n"), {"a"}).Sum("a"), std::nullopt);
}

}  // namespace
}  // namespace augur::loadtest
