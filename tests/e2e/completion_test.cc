// What one client sees of a running daemon: the order of a stream, its text, its refusals.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "engine/tokenizer/utf8.h"
#include "tests/e2e/needles.h"
#include "tests/support/completion_call.h"
#include "tests/support/daemon_process.h"

namespace augur::tests {
namespace {

constexpr uint32_t kBlock = 64;
constexpr char kPrompt[] = "The configuration file consists of lines with a key and a value.";

class CompletionTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { daemon_ = DaemonProcess::Start().release(); }
  static void TearDownTestSuite() {
    if (daemon_ != nullptr) {
      daemon_->Signal(SIGTERM);
      EXPECT_EQ(daemon_->WaitExit(), 0);
    }
    delete daemon_;
  }
  void SetUp() override {
    ASSERT_NE(daemon_, nullptr);
    stub_ = NewStub(daemon_->grpc_address());
    needle_ = LoadNeedles("1K").at(0);
  }

  CallResult Run(const v1::CompleteRequest& request, const CallOptions& options = {}) {
    CallResult result = RunCall(stub_.get(), request, options);
    EXPECT_TRUE(result.faults.empty()) << result.Describe();
    return result;
  }
  CallResult RunWell(const v1::CompleteRequest& request) {
    CallResult result = Run(request);
    EXPECT_TRUE(result.status.ok()) << result.Describe();
    return result;
  }
  // Hot enough that tokens are bytes of all kinds.
  v1::CompleteRequest WildRequest(uint64_t seed, float temperature, uint32_t max_tokens) {
    v1::CompleteRequest request = GreedyRequest(kPrompt, max_tokens);
    request.mutable_sampling()->set_temperature(temperature);
    request.mutable_sampling()->set_seed(seed);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_output()->set_token_ids(true);
    return request;
  }

  static DaemonProcess* daemon_;
  std::unique_ptr<v1::Completions::Stub> stub_;
  Needle needle_;
};
DaemonProcess* CompletionTest::daemon_ = nullptr;

TEST_F(CompletionTest, AcceptedThenProgressThenChunksThenFinished) {
  v1::CompleteRequest request = GreedyRequest(needle_.prompt, 12);
  request.set_request_id("label");
  request.mutable_output()->set_progress(true);
  request.set_bypass_prefix_cache(true);
  const CallResult result = RunWell(request);
  ASSERT_TRUE(result.accepted && result.finished) << result.Describe();
  EXPECT_EQ(result.accepted->request_id(), "label");
  EXPECT_EQ(result.accepted->model(), "demo-9m");
  EXPECT_EQ(result.accepted->cached_tokens(), 0);
  // A step holds 512 rows: at least two chunks.
  ASSERT_GE(result.progress.size(), 2u);
  EXPECT_EQ(result.progress.back().processed_tokens(), result.accepted->prompt_tokens());
  EXPECT_EQ(result.progress.back().total_tokens(), result.accepted->prompt_tokens());
  EXPECT_TRUE(IsRight(needle_, result.Text())) << result.Text();
  const v1::Finished& finished = *result.finished;
  EXPECT_EQ(finished.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(finished.usage().prompt_tokens(), result.accepted->prompt_tokens());
  EXPECT_EQ(finished.usage().completion_tokens(), 12);
  EXPECT_GT(finished.timings().prefill_ms(), 0);
  EXPECT_GE(finished.timings().total_ms(), finished.timings().first_token_ms());
}

TEST_F(CompletionTest, PrefixHitIsToldAndChangesNothing) {
  v1::CompleteRequest request = GreedyRequest(needle_.prompt, 12);
  request.set_cache_salt("prefix test");
  const CallResult first = RunWell(request);
  const CallResult second = RunWell(request);
  const uint32_t whole_blocks = (first.accepted->prompt_tokens() - 1) / kBlock * kBlock;
  EXPECT_EQ(first.finished->usage().cached_tokens(), 0);
  EXPECT_EQ(second.accepted->cached_tokens(), whole_blocks);
  EXPECT_EQ(second.finished->usage().cached_tokens(), whole_blocks);
  EXPECT_EQ(first.Text(), second.Text());

  request.set_cache_salt("another tenant");
  EXPECT_EQ(RunWell(request).finished->usage().cached_tokens(), 0);
  request.set_bypass_prefix_cache(true);
  EXPECT_EQ(RunWell(request).finished->usage().cached_tokens(), 0);
}

// The first choice is the one choice of n = 1, the others are their own, whatever n is and whether
// their prompt may be shared with others or not.
TEST_F(CompletionTest, ChoicesOfOnePrompt) {
  v1::CompleteRequest request = WildRequest(3, 1.2, 24);
  request.set_text(needle_.prompt.substr(0, 2000));
  const CallResult alone = RunWell(request);
  std::map<uint32_t, std::vector<uint32_t>> known = {{0, alone.TokenIds()}};
  for (const uint32_t n : {2u, 9u}) {
    for (const bool bypass : {false, true}) {
      request.mutable_sampling()->set_n(n);
      request.set_bypass_prefix_cache(bypass);
      request.set_cache_salt(bypass ? "bypass" : "");
      const double computed = daemon_->Metric("augur_prompt_tokens_total");
      const double again = daemon_->Metric("augur_recomputed_tokens_total");
      const CallResult result = RunWell(request);
      ASSERT_EQ(result.choices.size(), n) << result.Describe();
      const uint32_t prompt = result.accepted->prompt_tokens();
      const uint32_t whole = (prompt - 1) / kBlock * kBlock;
      for (const auto& [index, finished] : result.choices) {
        const auto [known_one, fresh] = known.emplace(index, result.TokenIds(index));
        EXPECT_EQ(result.TokenIds(index), known_one->second) << index << " of " << n;
        EXPECT_EQ(finished.usage().cached_tokens(), bypass ? 0 : whole);
      }
      EXPECT_EQ(daemon_->Metric("augur_prompt_tokens_total") - computed,
                bypass ? prompt : prompt - whole);
      EXPECT_EQ(daemon_->Metric("augur_recomputed_tokens_total") - again,
                (n - 1) * (prompt - whole));
    }
  }
  std::set<std::vector<uint32_t>> different;
  for (const auto& [index, ids] : known) different.insert(ids);
  EXPECT_EQ(different.size(), 9u);
  // Nothing was left to others by those that bypassed the cache.
  request.set_bypass_prefix_cache(false);
  EXPECT_EQ(RunWell(request).accepted->cached_tokens(), 0);
}

TEST_F(CompletionTest, TheStopStringIsShownWhereItIsAskedFor) {
  v1::CompleteRequest request = WildRequest(5, 1.2, 40);
  const std::string whole = RunWell(request).Text();
  const std::string stop = whole.substr(whole.size() / 2, 4);
  request.mutable_stopping()->add_stop(stop);
  const std::string cut = RunWell(request).Text();
  EXPECT_EQ(cut, whole.substr(0, whole.find(stop)));
  request.mutable_stopping()->set_include_stop(true);
  const CallResult shown = RunWell(request);
  EXPECT_EQ(shown.Text(), cut + stop);
  EXPECT_EQ(shown.finished->stop_string(), stop);
}

TEST_F(CompletionTest, ChunksAreWholeCharactersAndEqualDetokenize) {
  bool beyond_ascii = false;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const CallResult result = RunWell(WildRequest(seed, 100, 200));
    v1::DetokenizeRequest request;
    for (const uint32_t id : result.TokenIds()) request.add_ids(id);
    ASSERT_EQ(request.ids_size(), 200);
    grpc::ClientContext context;
    v1::DetokenizeResponse response;
    ASSERT_TRUE(stub_->Detokenize(&context, request, &response).ok());
    EXPECT_EQ(result.Text(), response.text());
    for (const char c : result.Text())
      beyond_ascii = beyond_ascii || static_cast<signed char>(c) < 0;
  }
  EXPECT_TRUE(beyond_ascii);
}

TEST_F(CompletionTest, StopStringsAreCutAtAnyPlaceInTheText) {
  std::mt19937 random(7);
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    v1::CompleteRequest request = WildRequest(seed, 1.5, 60);
    const std::string whole = RunWell(request).Text();
    // A piece of the text that begins and ends at characters, wherever token edges are.
    std::vector<size_t> edges;
    for (size_t at = 0; at < whole.size();) {
      edges.push_back(at);
      at += engine::StepUtf8(std::string_view(whole).substr(at)).length;
    }
    ASSERT_GT(edges.size(), 40u);
    const size_t first = 5 + random() % 20;
    const std::string stop =
        whole.substr(edges[first], edges[first + 1 + random() % 12] - edges[first]);
    request.mutable_stopping()->add_stop("a text that never comes");
    request.mutable_stopping()->add_stop(stop);
    const CallResult result = RunWell(request);
    EXPECT_EQ(result.Text(), whole.substr(0, whole.find(stop))) << "stop \"" << stop << "\"";
    EXPECT_EQ(result.finished->finish_reason(), v1::FINISH_REASON_STOP);
    EXPECT_EQ(result.finished->stop_string(), stop);
  }
}

TEST_F(CompletionTest, SeedRepeatsASample) {
  EXPECT_EQ(RunWell(WildRequest(5, 1, 60)).TokenIds(), RunWell(WildRequest(5, 1, 60)).TokenIds());
  EXPECT_NE(RunWell(WildRequest(5, 1, 60)).TokenIds(), RunWell(WildRequest(6, 1, 60)).TokenIds());
}

TEST_F(CompletionTest, StopTokenIdEnds) {
  v1::CompleteRequest request = WildRequest(3, 1, 40);
  const std::vector<uint32_t> ids = RunWell(request).TokenIds();
  request.mutable_stopping()->add_stop_token_ids(ids[20]);
  const CallResult result = RunWell(request);
  EXPECT_EQ(result.finished->finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(result.finished->stop_token_id(), ids[20]);
  EXPECT_LE(result.finished->usage().completion_tokens(), 21);
}

TEST_F(CompletionTest, TokenIdsSayWhatTextSays) {
  v1::TokenizeRequest tokenize;
  tokenize.set_text(kPrompt);
  grpc::ClientContext context;
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&context, tokenize, &tokens).ok());
  v1::CompleteRequest request = GreedyRequest(kPrompt, 20);
  const std::string from_text = RunWell(request).Text();
  *request.mutable_token_ids()->mutable_ids() = tokens.ids();
  EXPECT_EQ(RunWell(request).Text(), from_text);
}

TEST_F(CompletionTest, DeadlineEndsWithoutFinished) {
  v1::CompleteRequest request = GreedyRequest(LoadNeedles("4K").at(0).prompt, 4000);
  request.mutable_stopping()->set_ignore_eos(true);
  const CallResult result = Run(request, {.deadline = std::chrono::milliseconds(100)});
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << result.Describe();
  EXPECT_FALSE(result.finished);
}

// The text of its ids, however many pieces, and nothing drawn where nothing is wanted.
TEST_F(CompletionTest, EchoIsThePrompt) {
  for (const uint32_t max_tokens : {0u, 5u}) {
    for (const bool logprobs : {false, true}) {
      v1::CompleteRequest request =
          GreedyRequest(needle_.prompt + " gr\u00fc\u00df \U0001F600", max_tokens);
      request.mutable_output()->set_echo(true);
      request.mutable_output()->set_token_ids(true);
      if (logprobs) request.mutable_output()->set_prompt_logprobs(20);
      const CallResult result = RunWell(request);
      EXPECT_EQ(result.PromptText(), request.text());
      const uint32_t prompt = result.accepted->prompt_tokens();
      uint32_t ids = 0;
      for (const v1::PromptTokens& piece : result.prompt) {
        EXPECT_EQ(piece.first_position(), ids);
        ids += piece.token_ids_size();
      }
      EXPECT_EQ(ids, prompt);
      EXPECT_EQ(result.PromptLogprobs().size(), logprobs ? prompt : 0);
      EXPECT_EQ(result.TokenIds().size(), max_tokens);
      EXPECT_EQ(result.finished->usage().completion_tokens(), max_tokens);
      EXPECT_EQ(result.finished->finish_reason(), v1::FINISH_REASON_LENGTH);
      if (logprobs) {
        EXPECT_EQ(result.finished->usage().cached_tokens(), 0);
      }
    }
  }
}

// What was told of generated tokens is told of them as a prompt, and both are distributions.
TEST_F(CompletionTest, LogprobsOfThePromptAreThoseOfTheAnswer) {
  v1::CompleteRequest request = WildRequest(4, 1, 40);
  request.mutable_output()->set_logprobs(20);
  const CallResult drawn = RunWell(request);
  const std::vector<v1::TokenLogprobs> told = drawn.Logprobs();
  ASSERT_EQ(told.size(), 40u);
  v1::TokenizeRequest tokenize;
  tokenize.set_text(request.text());
  grpc::ClientContext context;
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub_->Tokenize(&context, tokenize, &tokens).ok());
  for (const uint32_t id : drawn.TokenIds()) tokens.add_ids(id);
  *request.mutable_token_ids()->mutable_ids() = tokens.ids();
  request.mutable_stopping()->set_max_tokens(0);
  request.mutable_output()->clear_logprobs();
  request.mutable_output()->set_prompt_logprobs(20);
  const std::vector<v1::TokenLogprobs> prompt = RunWell(request).PromptLogprobs();
  ASSERT_EQ(prompt.size(), static_cast<size_t>(tokens.ids_size()));
  EXPECT_FALSE(prompt[0].has_chosen());
  std::string text;
  for (size_t i = 0; i < told.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(told[i].SerializeAsString(), prompt[prompt.size() - 40 + i].SerializeAsString());
    EXPECT_EQ(told[i].chosen().token_id(), drawn.TokenIds()[i]);
    text += told[i].chosen().token();
    ASSERT_EQ(told[i].top_size(), 20);
    double sum = 0;
    for (int j = 0; j < 20; ++j) {
      EXPECT_EQ(told[i].top(j).rank(), static_cast<uint32_t>(j) + 1);
      if (j > 0) {
        EXPECT_LE(told[i].top(j).logprob(), told[i].top(j - 1).logprob());
      }
      sum += std::exp(double{told[i].top(j).logprob()});
    }
    EXPECT_LT(sum, 1 + 1e-6);
    EXPECT_GT(sum, 0.05);
  }
  EXPECT_EQ(text, drawn.Text());
}

TEST_F(CompletionTest, RulesChangeWhatIsDrawn) {
  const v1::CompleteRequest plain = WildRequest(9, 0, 80);
  const auto drawn_twice = [](const std::vector<uint32_t>& ids) {
    return ids.size() - std::set<uint32_t>(ids.begin(), ids.end()).size();
  };
  const std::vector<uint32_t> ids = RunWell(plain).TokenIds();
  ASSERT_GT(drawn_twice(ids), 10u);
  v1::CompleteRequest request = plain;
  request.mutable_sampling()->set_frequency_penalty(2);
  request.mutable_sampling()->set_presence_penalty(2);
  request.mutable_sampling()->set_repetition_penalty(3);
  EXPECT_LT(drawn_twice(RunWell(request).TokenIds()), 3u);
  request = plain;
  for (const uint32_t id : {ids[0], ids[1]}) request.mutable_sampling()->add_allowed_token_ids(id);
  for (const uint32_t id : RunWell(request).TokenIds()) EXPECT_TRUE(id == ids[0] || id == ids[1]);
  (*request.mutable_sampling()->mutable_logit_bias())[ids[0]] = -100;
  EXPECT_EQ(RunWell(request).TokenIds(), std::vector<uint32_t>(80, ids[1]));
  request = plain;
  request.mutable_stopping()->set_min_tokens(30);
  for (int i = 0; i < 10; ++i) request.mutable_stopping()->add_stop_token_ids(ids[i]);
  const CallResult result = RunWell(request);
  EXPECT_GE(result.TokenIds().size(), 30u);
  for (size_t i = 0; i < 30; ++i) {
    EXPECT_EQ(std::count(ids.begin(), ids.begin() + 10, result.TokenIds()[i]), 0);
  }
}

struct Refusal {
  const char* name;
  grpc::StatusCode code;
  const char* words;  // of the message
  void (*change)(v1::CompleteRequest* request);
};

const Refusal kRefusals[] = {
    {"not UTF-8", grpc::StatusCode::INVALID_ARGUMENT, "text",
     [](v1::CompleteRequest* r) { r->set_text("broken \xff text"); }},
    {"empty text", grpc::StatusCode::INVALID_ARGUMENT, "text",
     [](v1::CompleteRequest* r) { r->set_text(""); }},
    {"no prompt", grpc::StatusCode::INVALID_ARGUMENT, "prompt",
     [](v1::CompleteRequest* r) { r->clear_prompt(); }},
    {"id beyond the vocabulary", grpc::StatusCode::INVALID_ARGUMENT, "4096",
     [](v1::CompleteRequest* r) { r->mutable_token_ids()->add_ids(4096); }},
    {"temperature", grpc::StatusCode::INVALID_ARGUMENT, "temperature",
     [](v1::CompleteRequest* r) { r->mutable_sampling()->set_temperature(-1); }},
    {"beyond the context", grpc::StatusCode::INVALID_ARGUMENT, "8192",
     [](v1::CompleteRequest* r) { r->mutable_stopping()->set_max_tokens(8192); }},
    {"empty stop", grpc::StatusCode::INVALID_ARGUMENT, "stop",
     [](v1::CompleteRequest* r) { r->mutable_stopping()->add_stop(""); }},
    {"unknown enum", grpc::StatusCode::INVALID_ARGUMENT, "policy",
     [](v1::CompleteRequest* r) {
       r->mutable_attention()->set_policy(static_cast<v1::AttentionPolicy>(77));
     }},
    {"model", grpc::StatusCode::NOT_FOUND, "demo-9m",
     [](v1::CompleteRequest* r) { r->set_model("other"); }},
    {"forecast", grpc::StatusCode::FAILED_PRECONDITION, "policy",
     [](v1::CompleteRequest* r) {
       r->mutable_attention()->set_policy(v1::ATTENTION_POLICY_FORECAST);
     }},
    {"sampled values", grpc::StatusCode::FAILED_PRECONDITION, "value_mode",
     [](v1::CompleteRequest* r) {
       r->mutable_attention()->set_value_mode(v1::VALUE_MODE_SAMPLED);
     }},
    {"n", grpc::StatusCode::INVALID_ARGUMENT, "sampling.n",
     [](v1::CompleteRequest* r) { r->mutable_sampling()->set_n(33); }},
    {"logprobs", grpc::StatusCode::INVALID_ARGUMENT, "logprobs",
     [](v1::CompleteRequest* r) { r->mutable_output()->set_logprobs(21); }},
    {"penalty", grpc::StatusCode::INVALID_ARGUMENT, "repetition_penalty",
     [](v1::CompleteRequest* r) { r->mutable_sampling()->set_repetition_penalty(0); }},
    {"logit bias", grpc::StatusCode::INVALID_ARGUMENT, "logit_bias",
     [](v1::CompleteRequest* r) { (*r->mutable_sampling()->mutable_logit_bias())[5] = 101; }},
};

TEST_F(CompletionTest, RefusalsNameTheField) {
  for (const Refusal& refusal : kRefusals) {
    SCOPED_TRACE(refusal.name);
    v1::CompleteRequest request = GreedyRequest(kPrompt, 4);
    refusal.change(&request);
    const CallResult result = Run(request);
    EXPECT_EQ(result.status.error_code(), refusal.code) << result.Describe();
    EXPECT_NE(result.status.error_message().find(refusal.words), std::string::npos)
        << result.Describe();
    EXPECT_FALSE(result.accepted);
  }
  EXPECT_EQ(RunWell(GreedyRequest(kPrompt, 4)).finished->usage().completion_tokens(), 4);
}

TEST_F(CompletionTest, AMessageOfManyMegabytesArrivesAndIsRefusedByName) {
  v1::CompleteRequest request = GreedyRequest(std::string(20 << 20, 'a'), 4);
  const CallResult result = Run(request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << result.Describe();
}

// longrope decides by prompt + max_tokens, for the whole of a request: its reference tokens on both
// sides of the original length, and a prefix cache that keeps the two apart.
TEST(LongRopeTest, PromptAndMaxTokensDecideTheFactors) {
  const std::string model =
      std::string(AUGUR_SOURCE_DIR) + "/tests/golden/models/phi3-longrope-edge";
  std::ifstream file(model + "/golden.json");
  const nlohmann::json cases = nlohmann::json::parse(file).at("cases");
  const std::unique_ptr<DaemonProcess> daemon = DaemonProcess::Start({"--model", model});
  ASSERT_NE(daemon, nullptr);
  const std::unique_ptr<v1::Completions::Stub> stub = NewStub(daemon->grpc_address());
  grpc::ClientContext context;
  v1::GetModelResponse found;
  ASSERT_TRUE(stub->GetModel(&context, {}, &found).ok());
  EXPECT_EQ(found.family(), "phi3");
  EXPECT_EQ(found.dtype(), "float32");

  const auto run = [&](const nlohmann::json& one, uint32_t cached) {
    v1::CompleteRequest request;
    for (const uint32_t id : one.at("prompt")) request.mutable_token_ids()->add_ids(id);
    const auto greedy = one.at("greedy").get<std::vector<uint32_t>>();
    request.mutable_sampling()->set_temperature(0);
    request.mutable_stopping()->set_max_tokens(greedy.size());
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_output()->set_token_ids(true);
    const CallResult result = RunCall(stub.get(), request);
    ASSERT_TRUE(result.status.ok() && result.finished) << result.Describe();
    EXPECT_EQ(result.TokenIds(), greedy);
    EXPECT_EQ(result.finished->usage().cached_tokens(), cached);
  };
  const nlohmann::json& with_18 = cases[cases.size() - 2];
  const nlohmann::json& with_19 = cases[cases.size() - 1];
  run(with_18, 0);
  run(with_19, 0);
  run(with_18, kBlock);
  run(with_19, kBlock);
  daemon->Signal(SIGTERM);
  EXPECT_EQ(daemon->WaitExit(), 0);
}

}  // namespace
}  // namespace augur::tests
