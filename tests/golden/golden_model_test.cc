// Small checkpoints against reference logits, and the promise that a row depends on itself alone:
// every way of cutting, batching, sharing and interrupting a sequence gives the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/backend.h"
#include "tests/kernels/kernel_test_data.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/model_driver.h"

namespace augur::engine {
namespace {

// Of the case's largest |logit|.
constexpr double kTolerance = 1e-5;
// A device keeps operands of products in the checkpoint's type: of 16 bits, four roundings (2.9 of
// fp16 and 2.8 of bf16 were found on an H200).
double DeviceTolerance(kernels::DType dtype) {
  if (dtype == kernels::DType::kF32) return 1e-3;
  return dtype == kernels::DType::kF16 ? 4.0 / (1 << 11) : 4.0 / (1 << 8);
}
constexpr int kMaxRows = 1024;
constexpr int kMaxSegments = 64;

// What is cut, batched and kept: all of it without a sanitizer, the ends of it under one.
std::vector<kernels::DType> KvDTypes() {
  if (kernels::kSanitized) return {kernels::DType::kBF16};
  return {kernels::DType::kF32, kernels::DType::kBF16};
}
constexpr size_t kLongestCut = kernels::kSanitized ? 130 : 1000;  // tokens: over a block's end
std::vector<int> Chunks() {
  if (kernels::kSanitized) return {1, 64};
  return {1, 7, 64};
}
std::vector<int> Batches() {
  if (kernels::kSanitized) return {1, 3, 17, 64};
  return {1, 2, 3, 5, 8, 13, 16, 17, 32, 63, 64};
}

struct Case {
  std::vector<int32_t> prompt;
  std::vector<float> last_logits;
  std::vector<int32_t> greedy;
  std::vector<std::vector<float>> all_logits;
};

std::vector<Case> LoadCases(const std::string& folder) {
  std::ifstream file(folder + "/golden.json");
  const nlohmann::json document = nlohmann::json::parse(file);
  std::vector<Case> cases;
  for (const nlohmann::json& item : document.at("cases")) {
    Case one;
    one.prompt = item.at("prompt").get<std::vector<int32_t>>();
    one.last_logits = item.at("last_logits").get<std::vector<float>>();
    one.greedy = item.at("greedy").get<std::vector<int32_t>>();
    if (item.contains("all_logits")) {
      one.all_logits = item.at("all_logits").get<std::vector<std::vector<float>>>();
    }
    cases.push_back(std::move(one));
  }
  return cases;
}

using Model = tests::ModelDriver;
using tests::SameBits;

using Golden = std::tuple<const char*, tests::DriverBackend>;

class GoldenModelTest : public testing::TestWithParam<Golden> {
 protected:
  std::string folder() const {
    return tests::SourceFolder() + "/tests/golden/models/" + std::get<0>(GetParam());
  }
  tests::ModelDriverOptions Options(int threads,
                                    kernels::DType kv_dtype = kernels::DType::kF32) const {
    return {.folder = folder(),
            .threads = threads,
            .backend = std::get<1>(GetParam()),
            .kv_dtype = kv_dtype,
            .max_rows = kMaxRows,
            .max_segments = kMaxSegments};
  }
  bool on_device() const { return std::get<1>(GetParam()) == tests::DriverBackend::kCuda; }
  double ToleranceOf(const Model& model) const {
    return on_device() ? DeviceTolerance(model.weights_dtype()) : kTolerance;
  }
  static double LargestOf(const std::vector<float>& logits) {
    float largest = 0;
    for (const float value : logits) largest = std::max(largest, std::fabs(value));
    return largest;
  }
  // logits: those that `found` was chosen from. Where a device's 16 bits part from the reference,
  // its token must be as good as the reference's within the tolerance; what follows is another
  // text.
  void ExpectSameGreedy(const Model& model, const std::vector<std::vector<float>>& logits,
                        const std::vector<int32_t>& found, const std::vector<int32_t>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    const auto parting = std::mismatch(found.begin(), found.end(), expected.begin());
    if (parting.first == found.end()) return;
    const auto at = static_cast<size_t>(parting.first - found.begin());
    ASSERT_TRUE(on_device() && model.weights_dtype() != kernels::DType::kF32)
        << "token " << at << ": " << found[at] << ", not " << expected[at];
    EXPECT_LE(logits[at][found[at]] - logits[at][expected[at]],
              2 * ToleranceOf(model) * LargestOf(logits[at]))
        << "token " << at << ": " << found[at] << ", not " << expected[at];
  }
  void ExpectClose(const Model& model, const std::vector<float>& found,
                   const std::vector<float>& expected, const char* what) const {
    ASSERT_EQ(found.size(), expected.size());
    const double largest = LargestOf(expected);
    double worst = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      worst = std::max(worst, std::fabs(double{found[i]} - expected[i]) / largest);
    }
    EXPECT_LE(worst, ToleranceOf(model)) << what;
  }
  void ExpectReference(Model* model, const Case& one) {
    SCOPED_TRACE(testing::Message() << "prompt of " << one.prompt.size());
    std::vector<int32_t> greedy;
    const int decodes = static_cast<int>(one.greedy.size());
    const auto logits =
        model->Complete(one.prompt, kMaxRows, decodes, {}, memory::Residency::kDevice, &greedy);
    ExpectClose(*model, logits[0], one.last_logits, "last row of the prompt");
    ExpectSameGreedy(*model, logits, greedy, one.greedy);
  }
};

TEST_P(GoldenModelTest, LogitsAndGreedyTokensAreTheReference) {
  Model model(Options(1));
  for (const Case& one : LoadCases(folder())) ExpectReference(&model, one);
}

TEST_P(GoldenModelTest, EveryPositionsLogitsAreTheReference) {
  Model model(Options(1));
  for (const Case& one : LoadCases(folder())) {
    Model::Sequence sequence = model.Start(one.prompt, 0);
    for (size_t i = 0; i < one.all_logits.size(); ++i) {
      ExpectClose(model, model.StepOne(&sequence, 1), one.all_logits[i], "token by token");
    }
    model.Finish(sequence);
  }
}

TEST_P(GoldenModelTest, SameBitsWholeInChunksTokenByTokenAndWithTwoThreads) {
  for (const kernels::DType kv_dtype : KvDTypes()) {
    Model one_thread(Options(1, kv_dtype));
    Model two_threads(Options(2, kv_dtype));
    for (const Case& one : LoadCases(folder())) {
      if (one.prompt.size() > kLongestCut) continue;
      SCOPED_TRACE(testing::Message() << "prompt of " << one.prompt.size());
      const auto whole = one_thread.Complete(one.prompt, kMaxRows, 4);
      for (const int chunk : Chunks()) {
        const auto cut = one_thread.Complete(one.prompt, chunk, 4);
        const auto cut_by_two = two_threads.Complete(one.prompt, chunk, 4);
        for (size_t i = 0; i < whole.size(); ++i) {
          EXPECT_TRUE(SameBits(whole[i], cut[i])) << "chunk " << chunk << ", step " << i;
          EXPECT_TRUE(SameBits(whole[i], cut_by_two[i]))
              << "two threads, chunk " << chunk << ", step " << i;
        }
      }
    }
  }
}

// Batches of 1 to 64 in which prefill chunks of other sequences and decodes stand beside the row
// under test, at changing places.
TEST_P(GoldenModelTest, SameBitsInBatchesOfOneToSixtyFour) {
  Model model(Options(2));
  const std::vector<Case> cases = LoadCases(folder());
  const Case& tested = cases[3];
  const auto alone = model.Complete(tested.prompt, kMaxRows, 2);
  for (const int batch : Batches()) {
    SCOPED_TRACE(testing::Message() << "batch of " << batch);
    std::vector<Model::Sequence> sequences;
    std::vector<int> rows;
    const int place = (batch * 7) % batch / 2 + batch / 2 % batch;
    for (int i = 0; i < batch; ++i) {
      const bool is_tested = i == place;
      std::vector<int32_t> prompt = tested.prompt;
      if (!is_tested) {
        prompt = cases[i % 3].prompt;
        prompt.resize(1 + (i * 5) % std::min<int>(12, static_cast<int>(prompt.size())));
      }
      rows.push_back(static_cast<int>(prompt.size()));
      sequences.push_back(model.Start(std::move(prompt), 2));
    }
    std::vector<Model::Part> parts;
    for (int i = 0; i < batch; ++i) parts.push_back({&sequences[i], rows[i]});
    ASSERT_TRUE(SameBits(model.Step(parts)[place], alone[0]));
    for (int step = 1; step <= 2; ++step) {
      for (int i = 0; i < batch; ++i) {
        sequences[i].tokens.push_back(model.sampled()[i]);
        parts[i].rows = 1;
      }
      ASSERT_TRUE(SameBits(model.Step(parts)[place], alone[step])) << "decode " << step;
    }
    for (const Model::Sequence& sequence : sequences) model.Finish(sequence);
  }
}

// A hit: the first blocks were computed by another sequence. A preemption: everything is computed
// anew, the generated tokens as a prefill.
TEST_P(GoldenModelTest, SameBitsAfterAPrefixHitAndAfterAPreemption) {
  Model model(Options(2));
  const std::vector<Case> cases = LoadCases(folder());
  const Case& tested = cases[5];  // 300 tokens
  std::vector<int32_t> greedy;
  const auto alone =
      model.Complete(tested.prompt, kMaxRows, 8, {}, memory::Residency::kDevice, &greedy);

  Model::Sequence donor = model.Start(tested.prompt, 0);
  model.StepOne(&donor, 256);
  model.PublishAll(donor);
  Model::Sequence hit = model.Start(tested.prompt, 8, {}, memory::Residency::kDevice, 4);
  EXPECT_TRUE(
      SameBits(model.StepOne(&hit, static_cast<int>(tested.prompt.size()) - 256), alone[0]));

  std::vector<int32_t> resumed_tokens = tested.prompt;
  resumed_tokens.insert(resumed_tokens.end(), greedy.begin(), greedy.begin() + 5);
  Model::Sequence resumed = model.Start(resumed_tokens, 8);
  resumed.prompt_tokens = static_cast<int>(tested.prompt.size());
  model.StepOne(&resumed, 192);
  EXPECT_TRUE(
      SameBits(model.StepOne(&resumed, static_cast<int>(resumed_tokens.size()) - 192), alone[5]));
}

// longrope: the same prompt of 110 tokens with 18 to come and with 19, which are more than the 128
// of the original length together; both in every step, each with the bits that it has alone.
class LongRopeTest : public GoldenModelTest {};

TEST_P(LongRopeTest, ShortAndLongFactorsShareEveryStep) {
  Model model(Options(2));
  const std::vector<Case> cases = LoadCases(folder());
  const Case& with_18 = cases[cases.size() - 2];
  const Case& with_19 = cases[cases.size() - 1];
  ASSERT_EQ(with_18.prompt, with_19.prompt);
  ASSERT_EQ(with_18.prompt.size() + with_18.greedy.size(), 128u);
  const int rows = static_cast<int>(with_18.prompt.size());
  const auto alone_18 = model.Complete(with_18.prompt, kMaxRows, 17);
  const auto alone_19 = model.Complete(with_19.prompt, kMaxRows, 19);
  EXPECT_FALSE(SameBits(alone_18[0], alone_19[0]));
  Model::Sequence a = model.Start(with_18.prompt, 18), b = model.Start(with_19.prompt, 19);
  std::vector<Model::Part> parts = {{&a, rows}, {&b, rows}};
  for (size_t step = 0; step <= 17; ++step) {
    const auto logits = model.Step(parts);
    EXPECT_TRUE(SameBits(logits[0], alone_18[step])) << step;
    EXPECT_TRUE(SameBits(logits[1], alone_19[step])) << step;
    a.tokens.push_back(model.sampled()[0]);
    b.tokens.push_back(model.sampled()[1]);
    parts = {{&a, 1}, {&b, 1}};
  }
  EXPECT_TRUE(std::equal(a.tokens.begin() + rows, a.tokens.end(), with_18.greedy.begin()));
  EXPECT_TRUE(std::equal(b.tokens.begin() + rows, b.tokens.end(), with_19.greedy.begin()));
  model.Finish(a);
  model.Finish(b);
}

// config.json as the other dialect has it: transformers' own where there is one, else its RoPE keys
// moved into rope_parameters.
nlohmann::json InOtherDialect(const std::string& folder) {
  std::ifstream theirs(folder + "/config.v5.json");
  if (theirs) return nlohmann::json::parse(theirs);
  std::ifstream file(folder + "/config.json");
  nlohmann::json config = nlohmann::json::parse(file);
  nlohmann::json rope = config.at("rope_scaling");
  if (rope.is_null()) rope = {{"rope_type", "default"}};
  rope["rope_theta"] = config.at("rope_theta");
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"] = rope;
  return config;
}

class DialectTest : public GoldenModelTest {};

TEST_P(DialectTest, LogitsAndGreedyTokensAreTheReference) {
  const nlohmann::json config = InOtherDialect(folder());
  ASSERT_TRUE(config.contains("rope_parameters") && !config.contains("rope_theta"));
  const tests::ScratchFolder other;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    const std::string name = entry.path().filename();
    if (name.starts_with("model")) {
      std::filesystem::create_symlink(entry.path(), other.path() + "/" + name);
    }
  }
  tests::WriteWhole(other.path() + "/config.json", config.dump());
  tests::ModelDriverOptions options = Options(1);
  options.folder = other.path();
  Model model(options);
  for (const Case& one : LoadCases(folder())) {
    if (one.prompt.size() <= 130) ExpectReference(&model, one);
  }
}

std::string NameOfGolden(const testing::TestParamInfo<Golden>& golden) {
  std::string name =
      std::string(std::get<0>(golden.param)) + "_" + tests::NameOf(std::get<1>(golden.param));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Edge, LongRopeTest,
                         testing::Combine(testing::Values("phi3-longrope-edge",
                                                          "minicpm41-longrope"),
                                          testing::ValuesIn(tests::DriverBackendsHere())),
                         NameOfGolden);

// Under a sanitizer those that reach other memory than their neighbours.
std::vector<const char*> Models() {
  std::vector<const char*> models = {"llama", "llama-d64-g4",       "llama-bias-headdim32",
                                     "qwen3", "phi3-longrope-edge", "minicpm41-longrope"};
  if (kernels::kSanitized) return models;
  models.insert(models.end(),
                {"llama3-rope", "llama-linear-f16", "mistral-bf16", "qwen2", "qwen2-yarn-shards",
                 "qwen3-d128-g8", "phi3-longrope", "granite-mup", "minicpm"});
  return models;
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenModelTest,
                         testing::Combine(testing::ValuesIn(Models()),
                                          testing::ValuesIn(tests::DriverBackendsHere())),
                         NameOfGolden);

INSTANTIATE_TEST_SUITE_P(Models, DialectTest,
                         testing::Combine(testing::ValuesIn(Models()),
                                          testing::Values(tests::DriverBackend::kCpu)),
                         NameOfGolden);

}  // namespace
}  // namespace augur::engine
