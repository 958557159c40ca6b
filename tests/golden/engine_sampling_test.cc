// Rules, log probabilities and seeds through an engine core on a real model: what a request gets
// does not depend on the batch, on preemptions, on the prefix cache or on steps run ahead, and a
// row that is not finite ends its own request alone.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine_core.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/model_driver.h"
#include "tests/support/model_scenarios.h"

namespace augur::engine {
namespace {

using kernels::TokenLogprobsRow;
using tests::DriverBackend;
using tests::ModelDriver;

constexpr TokenId kBadToken = 7;

// All that a request got.
struct Got {
  std::vector<TokenId> tokens;
  std::vector<TokenLogprobsRow> logprobs;  // of tokens
  std::vector<TokenLogprobsRow> prompt;    // of the prompt but its first
  int told = 0;                            // tokens of the prompt, in order
  absl::Status status;
  Completion completion;
  bool ended = false;
};

class Collector final : public TokenOutput {
 public:
  void Post(std::vector<TokenEvent> events) override {
    for (TokenEvent& event : events) {
      Got& got = all[{event.request, event.choice}];
      EXPECT_FALSE(got.ended);
      const auto append = [&event](std::vector<TokenLogprobsRow>* to) {
        to->insert(to->end(), event.logprobs.begin(), event.logprobs.end());
      };
      switch (event.kind) {
        case TokenEvent::Kind::kPrompt:
          EXPECT_EQ(event.first_position, got.told);
          EXPECT_TRUE(got.tokens.empty());
          got.told = event.end_position;
          append(&got.prompt);
          break;
        case TokenEvent::Kind::kToken:
          got.tokens.push_back(event.token);
          append(&got.logprobs);
          break;
        case TokenEvent::Kind::kFinished:
          got.completion = event.completion;
          got.ended = true;
          break;
        case TokenEvent::Kind::kFailed:
          got.status = event.status;
          got.ended = true;
          break;
        default:
          break;
      }
    }
  }
  std::map<std::pair<std::shared_ptr<Request>, uint32_t>, Got> all;  // by choice
};

// A model and the engine that steps it.
class World {
 public:
  World(const std::string& folder, DriverBackend backend, int frames, int max_batch = 8)
      : model_({.folder = folder,
                .threads = 2,
                .backend = backend,
                .run_ahead = backend != DriverBackend::kCpu,
                .max_rows = 160,
                .max_segments = max_batch,
                .frames = frames}) {
    EngineOptions options;
    options.max_context = model_.config().max_position_embeddings;
    options.max_batch = max_batch;
    options.max_batched_tokens = 160;
    options.reserve_ahead = backend != DriverBackend::kCpu;
    core_ = std::make_unique<EngineCore>(options, std::vector<TokenId>{2}, model_.runner(),
                                         model_.kv().store(), &collector_, &stats_, &clock_);
  }

  void Add(const std::shared_ptr<Request>& request) { core_->Add(request); }
  void Run() {
    while (!core_->idle()) {
      if (core_->Step().awaits_copies) core_->WaitForCopies();
      core_->CheckInvariants();
    }
  }
  Got RunOne(const std::shared_ptr<Request>& request) {
    Add(request);
    Run();
    return Of(request);
  }
  const Got& Of(const std::shared_ptr<Request>& request, uint32_t choice = 0) {
    return collector_.all[{request, choice}];
  }
  const EngineStats& stats() const { return stats_; }
  EngineCore& core() { return *core_; }

 private:
  ModelDriver model_;
  memory::SteadyClock clock_;
  EngineStats stats_;
  Collector collector_;
  std::unique_ptr<EngineCore> core_;
};

std::string Llama() { return tests::SourceFolder() + "/tests/golden/models/llama"; }

std::vector<memory::BlockKey> KeysOf(const std::vector<TokenId>& prompt) {
  return memory::MakeBlockKeys(memory::BlockKeySecret{}, "test", "", prompt);
}

std::shared_ptr<Request> MakeRequest(uint32_t seed, int prompt, uint32_t max_tokens) {
  auto request = std::make_shared<Request>();
  request->prompt = tests::RepeatingPrompt(prompt, seed, 60);
  for (TokenId& token : request->prompt) token += token == kBadToken ? 1 : 0;
  request->sampling.seed = seed;
  request->stopping.max_tokens = max_tokens;
  request->stopping.ignore_eos = true;
  return request;
}

// Of all kinds.
std::vector<std::shared_ptr<Request>> MixedRequests() {
  std::vector<std::shared_ptr<Request>> requests;
  for (uint32_t i = 0; i < 24; ++i) {
    auto request = MakeRequest(100 + i, 20 + 61 * static_cast<int>(i % 5), 60 + 40 * (i % 4));
    SamplingParams& sampling = request->sampling;
    if (i % 2 == 1) sampling.repetition_penalty = 1.5f;
    if (i % 3 == 1) sampling.presence_penalty = 1.0f;
    if (i % 4 == 1) sampling.frequency_penalty = 0.7f;
    if (i % 5 == 1) sampling.logit_bias = {{9, 2.0f}, {30, -50.0f}};
    if (i % 6 == 1) sampling.allowed_token_ids = {1, 2, 3, 50, 60, 70, 80, 90};
    if (i % 7 == 1) {
      request->stopping.ignore_eos = false;
      request->stopping.min_tokens = 20;
      request->stopping.stop_token_ids = {3, 50, 90, 120};
    }
    if (i % 3 == 2) request->output.logprobs = static_cast<int>(i % 20);
    if (i % 4 == 2) request->output.prompt_logprobs = static_cast<int>(i % 9);
    if (i % 5 == 2) request->output.echo = true;
    if (i % 8 == 3) sampling.temperature = 0.0f;
    requests.push_back(std::move(request));
  }
  return requests;
}

bool SameRows(const std::vector<TokenLogprobsRow>& a, const std::vector<TokenLogprobsRow>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
}

void ExpectSame(const Got& found, const Got& expected) {
  EXPECT_TRUE(found.ended && found.status.ok() && expected.status.ok()) << found.status;
  EXPECT_EQ(found.tokens, expected.tokens);
  EXPECT_EQ(found.told, expected.told);
  EXPECT_TRUE(SameRows(found.logprobs, expected.logprobs));
  EXPECT_TRUE(SameRows(found.prompt, expected.prompt));
  EXPECT_EQ(found.completion.reason, expected.completion.reason);
}

TEST(EngineSamplingTest, ABatchThatIsPreemptedGetsWhatEachGetsAlone) {
  for (const DriverBackend backend : tests::DriverBackendsHere()) {
    SCOPED_TRACE(tests::NameOf(backend));
    World roomy(Llama(), backend, 200), tight(Llama(), backend, 9);
    const auto alone = MixedRequests(), together = MixedRequests();
    for (const auto& request : together) {
      request->block_keys = KeysOf(request->prompt);
      tight.Add(request);
    }
    for (int step = 0; step < 200; ++step) {
      tight.core().Step();
      // More often than want of frames does it: the one in turn, where it runs.
      const memory::SequenceId id = 1 + step % together.size();
      if (step % 5 == 0 && tight.core().kv().is_open(id)) tight.core().Preempt(id);
    }
    tight.Run();
    EXPECT_GT(tight.stats().preemptions.load(), 5);
    for (size_t i = 0; i < alone.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "request " << i);
      const Got expected = roomy.RunOne(alone[i]);
      ExpectSame(tight.Of(together[i]), expected);
      const Request& request = *alone[i];
      EXPECT_EQ(expected.logprobs.size(),
                request.output.logprobs >= 0 ? expected.tokens.size() : 0);
      EXPECT_EQ(expected.prompt.size(),
                request.output.prompt_logprobs >= 0 ? request.prompt.size() - 1 : 0);
      EXPECT_EQ(expected.told,
                request.output.shows_prompt() ? static_cast<int>(request.prompt.size()) : 0);
    }
  }
}

// Choices share the prompt and what is told of it, and count for themselves what they drew.
TEST(EngineSamplingTest, ChoicesHaveRulesAndLogprobsOfTheirOwn) {
  for (const DriverBackend backend : tests::DriverBackendsHere()) {
    SCOPED_TRACE(tests::NameOf(backend));
    World world(Llama(), backend, 200);
    const auto make = [](uint32_t choices) {
      auto request = MakeRequest(8, 150, 60);
      request->num_choices = choices;
      request->block_keys = KeysOf(request->prompt);
      request->sampling.frequency_penalty = 1.5f;
      request->output.logprobs = 4;
      request->output.prompt_logprobs = 2;
      return request;
    };
    const auto several = make(3);
    world.RunOne(several);
    const Got alone = world.RunOne(make(1));
    ExpectSame(world.Of(several, 0), alone);
    std::set<std::vector<TokenId>> all;
    for (const uint32_t choice : {0u, 1u, 2u}) {
      const Got& got = world.Of(several, choice);
      EXPECT_TRUE(got.ended && got.status.ok());
      EXPECT_EQ(got.logprobs.size(), 60u);
      EXPECT_EQ(got.told, choice == 0 ? 150 : 0);
      all.insert(got.tokens);
      // What a choice was told of its tokens is what they have as a prompt's (whose sums over the
      // golden logits logprobs_test has); a device has other products for prompts.
      if (backend == DriverBackend::kCuda) continue;
      const auto again = std::make_shared<Request>();
      again->prompt = several->prompt;
      again->prompt.insert(again->prompt.end(), got.tokens.begin(), got.tokens.end());
      again->stopping.max_tokens = 0;
      again->output.prompt_logprobs = 4;
      const std::vector<TokenLogprobsRow> told = world.RunOne(again).prompt;
      ASSERT_EQ(told.size(), 209u);
      EXPECT_TRUE(SameRows({told.end() - 60, told.end()}, got.logprobs)) << "choice " << choice;
    }
    EXPECT_EQ(all.size(), 3u);
  }
}

// Nothing that ends the sequence is drawn before min_tokens; right behind it may be.
TEST(EngineSamplingTest, MinTokensHoldBackWhatEnds) {
  World world(Llama(), DriverBackend::kCpu, 200);
  std::set<uint32_t> lengths;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const auto request = MakeRequest(seed, 30, 60);
    request->stopping.ignore_eos = false;
    request->stopping.min_tokens = 5;
    for (TokenId id = 100; id < 300; ++id) request->stopping.stop_token_ids.push_back(id);
    const Got got = world.RunOne(request);
    ASSERT_EQ(got.completion.reason, FinishReason::kStop);
    ASSERT_GT(got.tokens.size(), 5u);
    for (int i = 0; i < 5; ++i) EXPECT_TRUE(got.tokens[i] < 100 || got.tokens[i] >= 300);
    lengths.insert(got.completion.completion_tokens);
  }
  EXPECT_EQ(*lengths.begin(), 6u);
}

// max_tokens 0: the prompt is told and nothing is drawn. The cache is filled and not read.
TEST(EngineSamplingTest, APromptAloneIsToldWhole) {
  for (const DriverBackend backend : tests::DriverBackendsHere()) {
    SCOPED_TRACE(tests::NameOf(backend));
    World world(Llama(), backend, 200);
    std::vector<Got> all;
    for (int round = 0; round < 2; ++round) {
      const auto request = MakeRequest(5, 200, 0);
      request->block_keys = KeysOf(request->prompt);
      request->output.prompt_logprobs = 3;
      all.push_back(world.RunOne(request));
      EXPECT_EQ(all.back().completion.reason, FinishReason::kLength);
      EXPECT_EQ(all.back().completion.completion_tokens, 0u);
      EXPECT_EQ(all.back().completion.cached_tokens, 0u);
      EXPECT_EQ(all.back().prompt.size(), 199u);
      EXPECT_TRUE(all.back().tokens.empty());
    }
    EXPECT_TRUE(SameRows(all[0].prompt, all[1].prompt));
    const auto echo = MakeRequest(5, 200, 0);
    echo->block_keys = KeysOf(echo->prompt);
    echo->output.echo = true;
    const Got got = world.RunOne(echo);
    EXPECT_EQ(got.completion.cached_tokens, 192u);
    EXPECT_EQ(got.told, 200);
  }
}

TEST(EngineSamplingTest, ADrawIsKeyedBySeedAndPositionAlone) {
  World world(Llama(), DriverBackend::kCpu, 200);
  const Got first = world.RunOne(MakeRequest(3, 40, 50));
  EXPECT_EQ(world.RunOne(MakeRequest(3, 40, 50)).tokens, first.tokens);
  const auto other = MakeRequest(3, 40, 50);
  other->sampling.seed = 4;
  EXPECT_NE(world.RunOne(other).tokens, first.tokens);
  // What was drawn as part of the prompt: the same draws go on from there.
  const auto longer = MakeRequest(3, 40, 20);
  longer->prompt.insert(longer->prompt.end(), first.tokens.begin(), first.tokens.begin() + 30);
  EXPECT_EQ(world.RunOne(longer).tokens,
            std::vector<TokenId>(first.tokens.begin() + 30, first.tokens.end()));
}

// The golden model, with NaN for one token's embedding.
class BadModel {
 public:
  BadModel() {
    tests::TensorMap tensors = tests::ReadTensors(Llama() + "/model.safetensors");
    tests::TensorFile& table = tensors.at("model.embed_tokens.weight");
    const int64_t width = table.shape.at(1);
    const float bad = std::numeric_limits<float>::quiet_NaN();
    for (int64_t i = 0; i < width; ++i) {
      std::memcpy(&table.bytes[(kBadToken * width + i) * sizeof(float)], &bad, sizeof(bad));
    }
    tests::WriteTensors(folder() + "/model.safetensors", tensors);
    tests::WriteWhole(folder() + "/config.json", tests::ReadWhole(Llama() + "/config.json"));
  }
  const std::string& folder() const { return scratch_.path(); }

 private:
  tests::ScratchFolder scratch_;
};

TEST(EngineSamplingTest, ARowThatIsNotFiniteEndsItsOwnRequestAlone) {
  const BadModel bad;
  for (const DriverBackend backend : tests::DriverBackendsHere()) {
    SCOPED_TRACE(tests::NameOf(backend));
    World good(Llama(), backend, 200), world(bad.folder(), backend, 200);
    // The bad token in the prompt's second and in its last block; drawn, since nothing else may be.
    std::vector<std::shared_ptr<Request>> failing;
    for (const int place : {70, 199}) {
      failing.push_back(MakeRequest(1, 200, 30));
      failing.back()->prompt[place] = kBadToken;
    }
    failing.push_back(MakeRequest(2, 200, 30));
    failing.back()->sampling.allowed_token_ids = {kBadToken};
    failing.push_back(MakeRequest(2, 150, 0));
    failing.back()->prompt[149 - 1] = kBadToken;  // told by nobody but its successor
    failing.back()->output.prompt_logprobs = 0;
    const auto neighbours = MixedRequests(), alone = MixedRequests();
    for (const auto* requests : {&neighbours, &alone}) {
      for (const auto& request : *requests) {
        request->sampling.logit_bias.emplace_back(kBadToken, -100.0f);  // they shall not draw it
      }
    }
    for (size_t i = 0; i < neighbours.size(); ++i) {
      if (i % 6 == 0 && i / 6 < failing.size()) {
        failing[i / 6]->block_keys = KeysOf(failing[i / 6]->prompt);
        world.Add(failing[i / 6]);
      }
      world.Add(neighbours[i]);
    }
    world.Run();
    for (const auto& request : failing) {
      EXPECT_EQ(world.Of(request).status.code(), absl::StatusCode::kInternal);
      EXPECT_EQ(world.core().CountCachedTokens(request->block_keys, request->prompt.size()), 0u);
    }
    EXPECT_EQ(world.Of(failing[2]).tokens, std::vector<TokenId>{kBadToken});
    for (size_t i = 0; i < alone.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "neighbour " << i);
      ExpectSame(world.Of(neighbours[i]), good.RunOne(alone[i]));
    }
  }
}

// Blocks that others hold, too, are not handed out any more.
TEST(EngineSamplingTest, BlocksOfARowThatIsNotFiniteLeaveTheCache) {
  const BadModel bad;
  World world(bad.folder(), DriverBackend::kCpu, 200);
  const auto request = MakeRequest(1, 200, 200);
  request->sampling.logit_bias = {{kBadToken, -100.0f}};
  request->block_keys = KeysOf(request->prompt);
  world.Add(request);
  for (int i = 0; i < 10; ++i) world.core().Step();
  EXPECT_EQ(world.core().CountCachedTokens(request->block_keys, 201), 192u);
  const auto failing = MakeRequest(1, 200, 30);
  failing->prompt.push_back(kBadToken);
  failing->block_keys = KeysOf(failing->prompt);
  EXPECT_EQ(world.RunOne(failing).status.code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(world.Of(request).status.ok() && world.Of(request).tokens.size() == 200);
  EXPECT_EQ(world.core().CountCachedTokens(request->block_keys, 201), 0u);
}

}  // namespace
}  // namespace augur::engine
