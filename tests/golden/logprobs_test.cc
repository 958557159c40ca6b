// Log probabilities of the prompt and of drawn tokens against sums over the golden logits, from
// both runners and however the prompt is cut.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/model_driver.h"

namespace augur::engine {
namespace {

using kernels::TokenLogprobsRow;
using tests::DriverBackend;
using tests::ModelDriver;

struct Golden {
  std::vector<int32_t> prompt;
  std::vector<std::vector<float>> logits;  // of every position
  std::vector<int32_t> greedy;
};

std::string FolderOf(const char* model) {
  return tests::SourceFolder() + "/tests/golden/models/" + model;
}

Golden LoadGolden(const char* model) {
  std::ifstream file(FolderOf(model) + "/golden.json");
  const nlohmann::json one = nlohmann::json::parse(file).at("cases").at(0);
  return {.prompt = one.at("prompt").get<std::vector<int32_t>>(),
          .logits = one.at("all_logits").get<std::vector<std::vector<float>>>(),
          .greedy = one.at("greedy").get<std::vector<int32_t>>()};
}

double Largest(const std::vector<float>& logits) {
  double largest = 0;
  for (const float logit : logits) largest = std::max(largest, std::fabs(double{logit}));
  return largest;
}

// What the golden row says of the token; ranks may differ among logits as close as the runners'
// own differences (golden_model_test).
void ExpectGolden(const TokenLogprobsRow& found, const std::vector<float>& logits, int32_t token,
                  int top, bool on_device) {
  const double tolerance = (on_device ? 2e-3 : 2e-5) * Largest(logits);
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit});
  const double norm = std::log(sum);
  std::vector<float> falling = logits;
  std::sort(falling.begin(), falling.end(), std::greater<>());
  ASSERT_EQ(found.chosen.token, token);
  EXPECT_NEAR(found.chosen.logprob, logits[token] - norm, tolerance);
  ASSERT_GE(found.rank, 1);
  ASSERT_LE(found.rank, static_cast<int>(logits.size()));
  EXPECT_NEAR(falling[found.rank - 1], logits[token], tolerance);
  for (int i = 0; i < top; ++i) {
    ASSERT_GE(found.top[i].token, 0);
    EXPECT_NEAR(found.top[i].logprob, falling[i] - norm, tolerance);
    EXPECT_NEAR(found.top[i].logprob, logits[found.top[i].token] - norm, tolerance);
  }
  for (int i = top; i < kernels::kMaxTopLogprobs; ++i) EXPECT_EQ(found.top[i].token, -1);
}

std::unique_ptr<ModelDriver> Model(const char* model, DriverBackend backend) {
  // Few sequences: the head goes over a chunk's rows in several calls.
  return std::make_unique<ModelDriver>(tests::ModelDriverOptions{
      .folder = FolderOf(model), .backend = backend, .max_rows = 256, .max_segments = 6});
}

bool SameRow(const TokenLogprobsRow& a, const TokenLogprobsRow& b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0;
}

TEST(LogprobsTest, OfThePromptTheyAreSumsOverTheGoldenLogits) {
  for (const char* name : {"llama", "llama-bias-headdim32", "llama-d64-g4"}) {
    const Golden golden = LoadGolden(name);
    const int prompt = static_cast<int>(golden.prompt.size());
    for (const DriverBackend backend : tests::DriverBackendsHere()) {
      const auto model = Model(name, backend);
      std::vector<TokenLogprobsRow> whole;
      for (const int chunk : {64, 1, 7}) {
        SCOPED_TRACE(testing::Message() << name << " " << tests::NameOf(backend) << " " << chunk);
        ModelDriver::Sequence sequence = model->Start(golden.prompt, 0);
        sequence.prompt_logprobs = 20;
        std::vector<TokenLogprobsRow> told;
        while (sequence.computed < prompt) {
          model->StepOne(&sequence, std::min(chunk, prompt - sequence.computed));
          const auto& rows = model->outputs().prompt_logprobs;
          told.insert(told.end(), rows.begin(), rows.end());
        }
        model->Finish(sequence);
        ASSERT_EQ(told.size(), golden.prompt.size() - 1);
        for (int i = 0; i + 1 < prompt; ++i) {
          SCOPED_TRACE(testing::Message() << "position " << i + 1);
          ExpectGolden(told[i], golden.logits[i], golden.prompt[i + 1], 20,
                       backend == DriverBackend::kCuda);
          if (!whole.empty()) {
            EXPECT_TRUE(SameRow(told[i], whole[i]));
          }
        }
        if (whole.empty()) whole = told;
      }
    }
  }
}

// Beside sequences that ask for another number or nothing.
TEST(LogprobsTest, OfDrawnTokensTheyAreSumsOverTheGoldenLogits) {
  const Golden golden = LoadGolden("llama");
  for (const DriverBackend backend : tests::DriverBackendsHere()) {
    SCOPED_TRACE(tests::NameOf(backend));
    const auto model = Model("llama", backend);
    std::vector<ModelDriver::Sequence> sequences;
    for (const int logprobs : {5, -1, 0, 20}) {
      sequences.push_back(model->Start(golden.prompt, 30));
      sequences.back().logprobs = logprobs;
    }
    std::vector<ModelDriver::Part> parts;
    for (ModelDriver::Sequence& sequence : sequences) parts.push_back({&sequence, 40});
    for (int step = 0; step < 20; ++step) {
      const auto logits = model->Step(parts);
      ASSERT_EQ(model->outputs().logprobs.size(), 4u);
      EXPECT_TRUE(model->outputs().prompt_logprobs.empty());
      for (const int i : {0, 2, 3}) {
        SCOPED_TRACE(testing::Message() << "token " << step << " sequence " << i);
        const int32_t token = model->sampled()[i];
        ASSERT_EQ(token, golden.greedy[step]);
        const auto& row = model->outputs().logprobs[i];
        const bool on_device = backend == DriverBackend::kCuda;
        // The first against the golden's last row, later ones against the runner's own.
        ExpectGolden(row, step == 0 ? golden.logits.back() : logits[i], token,
                     sequences[i].logprobs, on_device);
        EXPECT_EQ(row.rank, 1);
        sequences[i].tokens.push_back(token);
      }
      sequences[1].tokens.push_back(model->sampled()[1]);
      for (ModelDriver::Part& part : parts) part.rows = 1;
    }
    for (const ModelDriver::Sequence& sequence : sequences) model->Finish(sequence);
  }
}

// A rule changes what is drawn and not what is told.
TEST(LogprobsTest, TheyAreOfTheModelBeforeRules) {
  const Golden golden = LoadGolden("llama");
  LogitRules rules;
  rules.allowed = {3, 50};
  rules.bias = {{50, 90.0f}};
  for (const DriverBackend backend : tests::DriverBackendsHere()) {
    SCOPED_TRACE(tests::NameOf(backend));
    const auto model = Model("llama", backend);
    ModelDriver::Sequence sequence = model->Start(golden.prompt, 30);
    sequence.logprobs = 20;
    sequence.rules = &rules;
    model->StepOne(&sequence, 40);
    EXPECT_EQ(model->sampled()[0], 50);
    ExpectGolden(model->outputs().logprobs[0], golden.logits.back(), 50, 20,
                 backend == DriverBackend::kCuda);
    model->Finish(sequence);
  }
}

}  // namespace
}  // namespace augur::engine
