// Every field of CompleteRequest, in range, at its limits and beyond: a table of requests and
// statuses.

#include "server/request_validation.h"

#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace augur::server {
namespace {

Deployment TestDeployment() {
  Deployment deployment;
  deployment.served_name = "demo";
  deployment.vocab_size = 100;
  deployment.max_context = 64;
  deployment.max_batch = 64;
  deployment.has_tokenizer = true;
  deployment.longest_token_bytes = 8;
  return deployment;
}

v1::CompleteRequest Parse(const std::string& text) {
  v1::CompleteRequest request;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &request)) << text;
  return request;
}

struct Case {
  std::string request;  // text format, beside a prompt unless it has one
  absl::StatusCode code;
  std::string message;  // part of it
};

constexpr auto kOk = absl::StatusCode::kOk;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotServed = absl::StatusCode::kFailedPrecondition;

void Check(const std::vector<Case>& cases, const Deployment& deployment,
           const std::string& prompt) {
  for (const Case& test : cases) {
    const auto result = Validate(Parse(prompt + test.request), deployment);
    EXPECT_EQ(result.status().code(), test.code) << test.request << " gave " << result.status();
    EXPECT_NE(std::string(result.status().message()).find(test.message), std::string::npos)
        << test.request << " gave " << result.status();
  }
}

void Check(const std::vector<Case>& cases) { Check(cases, TestDeployment(), "text: 'a' "); }

std::string Repeat(const std::string& text, int n) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

TEST(RequestValidationTest, Labels) {
  Check({
      {"", kOk, ""},
      {"request_id: '" + std::string(128, 'x') + "'", kOk, ""},
      {"request_id: '" + std::string(129, 'x') + "'", kInvalid,
       "request_id: expected 0 to 128 bytes, found 129"},
      {"cache_salt: '" + std::string(64, 'x') + "'", kOk, ""},
      {"cache_salt: '" + std::string(65, 'x') + "'", kInvalid,
       "cache_salt: expected 0 to 64 bytes, found 65"},
      {"model: 'demo'", kOk, ""},
      {"model: 'other'", absl::StatusCode::kNotFound, "\"demo\", found \"other\""},
      {"bypass_prefix_cache: true", kOk, ""},
      {"priority: 2147483647", kOk, ""},
      {"priority: -2147483648", kOk, ""},
  });
}

TEST(RequestValidationTest, Prompt) {
  Check(
      {
          {"", kInvalid, "prompt: expected text or token_ids, found neither"},
          {"text: ''", kInvalid, "text: expected at least 1 byte, found 0"},
          {"text: '" + std::string(512, 'x') + "'", kOk, ""},
          {"text: '" + std::string(513, 'x') + "'", kInvalid,
           "text: expected at most 512 bytes (a context of 64"},
          {"token_ids {}", kInvalid, "token_ids: expected at least 1 id, found 0"},
          {"token_ids { ids: [0, 99] }", kOk, ""},
          {"token_ids { ids: [0, 100] }", kInvalid,
           "token_ids[1]: expected an id below the vocabulary size 100, found 100"},
          {"token_ids { ids: 4294967295 }", kInvalid, "found 4294967295"},
          {"token_ids { " + Repeat("ids: 1 ", 48) + "}", kOk, ""},
          {"token_ids { " + Repeat("ids: 1 ", 49) + "}", kInvalid,
           "prompt of 49 tokens + max_tokens of 16 is beyond the context of 64 tokens"},
          {"token_ids { ids: 1 } stopping { max_tokens: 63 }", kOk, ""},
          {"token_ids { ids: 1 } stopping { max_tokens: 64 }", kInvalid, "max_tokens of 64"},
          {"token_ids { ids: 1 } stopping { max_tokens: 4294967295 }", kInvalid,
           "max_tokens of 4294967295"},
      },
      TestDeployment(), "");
}

TEST(RequestValidationTest, Sampling) {
  Check({
      {"sampling { temperature: 0 }", kOk, ""},
      {"sampling { temperature: 100 }", kOk, ""},
      {"sampling { temperature: 100.5 }", kInvalid,
       "sampling.temperature: expected a number in [0, 100], found 100.5"},
      {"sampling { temperature: -0.5 }", kInvalid, "sampling.temperature"},
      {"sampling { temperature: nan }", kInvalid, "sampling.temperature"},
      {"sampling { temperature: inf }", kInvalid, "sampling.temperature"},
      {"sampling { top_k: 4294967295 }", kOk, ""},
      {"sampling { top_p: 1 }", kOk, ""},
      {"sampling { top_p: 0 }", kInvalid, "sampling.top_p: expected a number in (0, 1], found 0"},
      {"sampling { top_p: 1.5 }", kInvalid, "sampling.top_p"},
      {"sampling { top_p: nan }", kInvalid, "sampling.top_p"},
      {"sampling { min_p: 1 }", kOk, ""},
      {"sampling { min_p: -0.1 }", kInvalid, "sampling.min_p"},
      {"sampling { min_p: nan }", kInvalid, "sampling.min_p"},
      {"sampling { seed: 18446744073709551615 }", kOk, ""},
      {"sampling { n: 1 }", kOk, ""},
      {"sampling { n: 0 }", kInvalid, "sampling.n: expected an integer from 1 to 64, found 0"},
      {"sampling { n: 64 }", kOk, ""},
      {"sampling { n: 65 }", kInvalid, "sampling.n: expected an integer from 1 to 64, found 65"},
      {"sampling { repetition_penalty: 1 presence_penalty: 0 frequency_penalty: 0 }", kOk, ""},
      {"sampling { repetition_penalty: 10 }", kOk, ""},
      {"sampling { repetition_penalty: 10.5 }", kInvalid, "sampling.repetition_penalty"},
      {"sampling { repetition_penalty: 0 }", kInvalid,
       "sampling.repetition_penalty: expected a number in (0, 10]"},
      {"sampling { repetition_penalty: nan }", kInvalid, "sampling.repetition_penalty"},
      {"sampling { presence_penalty: -2 }", kOk, ""},
      {"sampling { presence_penalty: 2.5 }", kInvalid, "sampling.presence_penalty"},
      {"sampling { frequency_penalty: 2 }", kOk, ""},
      {"sampling { frequency_penalty: 2.5 }", kInvalid, "sampling.frequency_penalty"},
      {"sampling { frequency_penalty: -inf }", kInvalid, "sampling.frequency_penalty"},
      {"sampling { logit_bias { key: 1 value: -100 } }", kOk, ""},
      {"sampling { logit_bias { key: 100 value: 1 } }", kInvalid, "sampling.logit_bias"},
      {"sampling { logit_bias { key: 1 value: 101 } }", kInvalid, "sampling.logit_bias"},
      {"sampling { logit_bias { key: 1 value: nan } }", kInvalid, "sampling.logit_bias"},
      {"sampling { allowed_token_ids: [1, 99] }", kOk, ""},
      {"sampling { " + Repeat("allowed_token_ids: 1 ", 101) + "}", kInvalid,
       "sampling.allowed_token_ids: expected at most 100 ids (the vocabulary), found 101"},
      {"sampling { allowed_token_ids: [1, 100] }", kInvalid, "sampling.allowed_token_ids[1]"},
  });
}

TEST(RequestValidationTest, Stopping) {
  Check({
      {"stopping { max_tokens: 1 }", kOk, ""},
      {"stopping { max_tokens: 0 }", kInvalid, "stopping.max_tokens: expected at least 1"},
      {"stopping { max_tokens: 0 } output { echo: true }", kOk, ""},
      {"stopping { max_tokens: 0 } output { prompt_logprobs: 0 }", kOk, ""},
      {"stopping { max_tokens: 0 } output { logprobs: 1 }", kInvalid, "stopping.max_tokens"},
      {"stopping { min_tokens: 16 }", kOk, ""},
      {"stopping { min_tokens: 17 }", kInvalid,
       "stopping.min_tokens: expected at most max_tokens 16, found 17"},
      {"stopping { " + Repeat("stop: 's' ", 16) + "}", kOk, ""},
      {"stopping { " + Repeat("stop: 's' ", 17) + "}", kInvalid,
       "stopping.stop: expected at most 16 strings, found 17"},
      {"stopping { stop: 'a' stop: '' }", kInvalid,
       "stopping.stop[1]: expected 1 to 256 bytes, found 0"},
      {"stopping { stop: '" + std::string(256, 's') + "' }", kOk, ""},
      {"stopping { stop: '" + std::string(257, 's') + "' }", kInvalid, "stopping.stop[0]"},
      {"stopping { stop_token_ids: 99 }", kOk, ""},
      {"stopping { stop_token_ids: 100 }", kInvalid, "stopping.stop_token_ids[0]"},
      {"stopping { " + Repeat("stop_token_ids: 1 ", 1025) + "}", kInvalid,
       "at most 1024 ids, found 1025"},
      {"stopping { ignore_eos: true }", kOk, ""},
      {"stopping { include_stop: true }", kOk, ""},
  });
}

// What min_tokens holds back must leave something to draw.
TEST(RequestValidationTest, MinTokensLeaveSomethingToDraw) {
  Deployment deployment = TestDeployment();
  deployment.eos_token_ids = {2};
  std::string all;
  for (int id = 0; id < 100; ++id) all += "stop_token_ids: " + std::to_string(id) + " ";
  Check({{"sampling { allowed_token_ids: 2 } stopping { min_tokens: 1 }", kInvalid,
          "stopping.min_tokens: expected 0 where every allowed id ends the sequence, found 1"},
         {"sampling { allowed_token_ids: 2 }", kOk, ""},
         {"sampling { allowed_token_ids: 2 } stopping { min_tokens: 1 ignore_eos: true }", kOk, ""},
         {"sampling { allowed_token_ids: [2, 3] } stopping { min_tokens: 1 }", kOk, ""},
         {"sampling { allowed_token_ids: [2, 3] } stopping { min_tokens: 1 stop_token_ids: 3 }",
          kInvalid, "stopping.min_tokens"},
         {"stopping { min_tokens: 1 " + all + "}", kInvalid, "stopping.min_tokens"}},
        deployment, "text: 'a' ");
}

TEST(RequestValidationTest, OutputAndAttention) {
  Check({
      {"output { token_ids: true progress: true skip_special_tokens: false }", kOk, ""},
      {"output { logprobs: 0 }", kOk, ""},
      {"output { logprobs: 20 }", kOk, ""},
      {"output { logprobs: 21 }", kInvalid, "output.logprobs: expected at most 20, found 21"},
      {"output { prompt_logprobs: 20 echo: true }", kOk, ""},
      {"output { prompt_logprobs: 21 }", kInvalid, "output.prompt_logprobs"},
      {"attention { policy: ATTENTION_POLICY_DENSE value_mode: VALUE_MODE_EXACT }", kOk, ""},
      {"attention { policy: ATTENTION_POLICY_SPARSE }", kNotServed, "attention.policy"},
      {"attention { policy: ATTENTION_POLICY_INFINIGEN }", kNotServed,
       "ATTENTION_POLICY_INFINIGEN"},
      {"attention { prefill_policy: ATTENTION_POLICY_SPARSE }", kNotServed,
       "attention.prefill_policy: this deployment does not serve ATTENTION_POLICY_SPARSE"},
      {"attention { prefill_policy: ATTENTION_POLICY_INFINIGEN }", kInvalid,
       "attention.prefill_policy: expected dense, sparse or forecast"},
      {"attention { prefill_policy: ATTENTION_POLICY_DENSE }", kOk, ""},
      {"attention { policy: ATTENTION_POLICY_FORECAST }", kNotServed, "attention.policy"},
      {"attention { value_mode: VALUE_MODE_SAMPLED }", kNotServed, "attention.value_mode"},
      {"attention { top_k_blocks: 0 }", kNotServed, "attention.top_k_blocks"},
      {"attention { value_samples: 64 }", kNotServed, "attention.value_samples"},
  });
}

TEST(RequestValidationTest, AttentionOfADeploymentThatSelects) {
  using engine::AttentionPolicy;
  Deployment deployment = TestDeployment();
  deployment.attention.decode = AttentionPolicy::kSparse;
  deployment.attention.budget = {.top_k = 12, .init = 1, .local = 4};
  deployment.policies = {AttentionPolicy::kDense, AttentionPolicy::kSparse,
                         AttentionPolicy::kInfinigen};
  deployment.max_top_k_blocks = 20;
  Check({{"attention { policy: ATTENTION_POLICY_FORECAST }", kNotServed,
          "does not serve ATTENTION_POLICY_FORECAST"},
         {"attention { top_k_blocks: 4 }", kInvalid,
          "attention.top_k_blocks: expected 5 (init_blocks + local_blocks) to 20 "
          "(max_top_k_blocks), found 4"},
         {"attention { top_k_blocks: 21 }", kInvalid, "found 21"},
         {"attention { top_k_blocks: 4294967295 }", kInvalid, "found 4294967295"},
         {"attention { top_k_blocks: 5 }", kOk, ""}},
        deployment, "text: 'a' ");
  const auto choice = [&](const std::string& text) {
    return Validate(Parse("text: 'a' " + text), deployment)->attention;
  };
  EXPECT_EQ(choice("").Fingerprint(), "dense/sparse/12/1/4/-1");
  EXPECT_EQ(choice("attention { policy: ATTENTION_POLICY_SPARSE top_k_blocks: 20 }").Fingerprint(),
            "sparse/sparse/20/1/4/-1");
  EXPECT_EQ(choice("attention { policy: ATTENTION_POLICY_INFINIGEN }").Fingerprint(),
            "sparse/infinigen/12/1/4/-1");
  EXPECT_EQ(choice("attention { policy: ATTENTION_POLICY_INFINIGEN "
                   "prefill_policy: ATTENTION_POLICY_DENSE }")
                .Fingerprint(),
            "dense/infinigen/12/1/4/-1");
  EXPECT_EQ(choice("attention { prefill_policy: ATTENTION_POLICY_SPARSE }").Fingerprint(),
            "sparse/sparse/12/1/4/-1");
}

TEST(RequestValidationTest, SampledValues) {
  Deployment deployment = TestDeployment();
  deployment.values = {.request_override = true, .max_samples = 500};
  Check({{"attention { value_mode: VALUE_MODE_SAMPLED }", kOk, ""},
         {"attention { value_mode: VALUE_MODE_SAMPLED value_samples: 500 }", kOk, ""},
         {"attention { value_mode: VALUE_MODE_SAMPLED value_samples: 0 }", kInvalid,
          "attention.value_samples: expected 1 to 500 (attention.values.max_samples), found 0"},
         {"attention { value_mode: VALUE_MODE_SAMPLED value_samples: 501 }", kInvalid, "found 501"},
         {"attention { value_samples: 64 }", kInvalid, "found exact values"},
         {"attention { value_mode: VALUE_MODE_EXACT value_samples: 64 }", kInvalid,
          "found exact values"}},
        deployment, "text: 'a' ");
  const auto values = [&](const std::string& text) {
    return Validate(Parse("text: 'a' " + text), deployment)->attention.values;
  };
  EXPECT_FALSE(values("").sampled);
  EXPECT_TRUE(values("attention { value_mode: VALUE_MODE_SAMPLED value_samples: 9 }").sampled);
  EXPECT_EQ(values("attention { value_mode: VALUE_MODE_SAMPLED value_samples: 9 }").samples, 9);
  // One mode alone: the other is refused, and so is another number.
  deployment.values = {.sampled = true, .max_samples = 500};
  deployment.attention.values.sampled = true;
  Check({{"attention { value_mode: VALUE_MODE_SAMPLED }", kOk, ""},
         {"attention { value_mode: VALUE_MODE_EXACT }", kNotServed, "VALUE_MODE_EXACT"},
         {"attention { value_samples: 64 }", kNotServed, "attention.value_samples"},
         {"attention { value_samples: 0 }", kInvalid, "found 0"}},
        deployment, "text: 'a' ");
  EXPECT_TRUE(values("").sampled);
}

TEST(RequestValidationTest, UnknownEnumNumbers) {
  v1::CompleteRequest request = Parse("text: 'a'");
  request.mutable_attention()->set_policy(static_cast<v1::AttentionPolicy>(9));
  EXPECT_EQ(Validate(request, TestDeployment()).status().message(),
            "attention.policy: unknown enum number 9");
  request = Parse("text: 'a'");
  request.mutable_attention()->set_value_mode(static_cast<v1::ValueMode>(-3));
  EXPECT_EQ(Validate(request, TestDeployment()).status().code(), kInvalid);
}

TEST(RequestValidationTest, WithoutTokenizerOnlyIds) {
  Deployment deployment = TestDeployment();
  deployment.has_tokenizer = false;
  Check({{"text: 'a'", kNotServed, "text: this deployment has no tokenizer"},
         {"token_ids { ids: 1 } stopping { stop: 'x' }", kNotServed, "stopping.stop"}},
        deployment, "");
  const auto result = Validate(Parse("token_ids { ids: 1 }"), deployment);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->output.token_ids);
  EXPECT_FALSE(result->output.text);
}

TEST(RequestValidationTest, DefaultsAndValuesArrive) {
  auto result = Validate(Parse("text: 'a'"), TestDeployment());
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->stopping.max_tokens, 16u);
  EXPECT_EQ(result->sampling.temperature, 1.0f);
  EXPECT_EQ(result->sampling.top_p, 1.0f);
  EXPECT_FALSE(result->has_seed);
  EXPECT_EQ(result->output.logprobs, -1);
  EXPECT_EQ(result->output.prompt_logprobs, -1);
  EXPECT_FALSE(result->output.shows_prompt());
  EXPECT_TRUE(result->encode.add_special_tokens);
  EXPECT_TRUE(result->encode.parse_special);
  EXPECT_TRUE(result->output.skip_special_tokens);
  result = Validate(
      Parse("text: 'a' request_id: 'r' cache_salt: 's' bypass_prefix_cache: true "
            "add_special_tokens: false parse_special: false "
            "sampling { temperature: 0.5 top_k: 3 top_p: 0.25 min_p: 0.125 seed: 7 "
            "repetition_penalty: 1.5 presence_penalty: -0.5 frequency_penalty: 0.25 "
            "logit_bias { key: 8 value: -3 } allowed_token_ids: [8, 9] } "
            "stopping { max_tokens: 9 min_tokens: 2 stop: 'x' stop_token_ids: 4 ignore_eos: true } "
            "output { token_ids: true progress: true skip_special_tokens: false logprobs: 0 "
            "prompt_logprobs: 7 echo: true }"),
      TestDeployment());
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->request_id, "r");
  EXPECT_EQ(result->cache_salt, "s");
  EXPECT_TRUE(result->bypass_prefix_cache);
  EXPECT_FALSE(result->encode.add_special_tokens || result->encode.parse_special);
  EXPECT_EQ(result->sampling.temperature, 0.5f);
  EXPECT_EQ(result->sampling.top_k, 3u);
  EXPECT_EQ(result->sampling.top_p, 0.25f);
  EXPECT_EQ(result->sampling.min_p, 0.125f);
  EXPECT_TRUE(result->has_seed);
  EXPECT_EQ(result->sampling.seed, 7u);
  EXPECT_EQ(result->sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(result->sampling.presence_penalty, -0.5f);
  EXPECT_EQ(result->sampling.frequency_penalty, 0.25f);
  EXPECT_EQ(result->sampling.logit_bias,
            (std::vector<std::pair<engine::TokenId, float>>{{8, -3.0f}}));
  EXPECT_EQ(result->sampling.allowed_token_ids, (std::vector<engine::TokenId>{8, 9}));
  EXPECT_EQ(result->stopping.max_tokens, 9u);
  EXPECT_EQ(result->stopping.min_tokens, 2u);
  EXPECT_EQ(result->stopping.stop, std::vector<std::string>{"x"});
  EXPECT_EQ(result->stopping.stop_token_ids, std::vector<engine::TokenId>{4});
  EXPECT_TRUE(result->stopping.ignore_eos && result->output.token_ids && result->output.progress);
  EXPECT_FALSE(result->output.skip_special_tokens);
  EXPECT_EQ(result->output.logprobs, 0);
  EXPECT_EQ(result->output.prompt_logprobs, 7);
  EXPECT_TRUE(result->output.echo);
}

}  // namespace
}  // namespace augur::server
