// Training of Forecast heads: the loss and its gradient in double, the pass over a model against
// a slow one, and runs: they learn, resume bit for bit, and refuse what cannot be trained on.
#include "engine/training/forecast_training.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "engine/model/observed_prompt.h"
#include "engine/model/transformer_layers.h"
#include "kernels/cpu/forecast_loss.h"
#ifdef AUGUR_HAS_CUDA
#include "kernels/cuda/cuda_devices.h"
#endif
#include "kernels/ops/compress_keys.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::engine {
namespace {

using kernels::ChooseFreeBlocks, kernels::FreeBlocks, kernels::FreeBlocksAt, kernels::PartitionedKl,
    kernels::Softmax, kernels::WindowsOf;
using kernels::kSanitized;

std::string DemoModel() { return AUGUR_SOURCE_DIR "/deploy/models/demo-9m"; }
std::string Handbook() { return AUGUR_SOURCE_DIR "/deploy/handbook.txt"; }

std::vector<double> RandomShares(int count, uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal(0.0, 2.0);
  std::vector<double> products(count), shares(count);
  for (double& product : products) product = normal(generator);
  Softmax<double>(products, shares);
  return shares;
}

// The rest-bucket example of the paper's reading notes: (0.40, 0.30 | 0.30) against
// (0.35, 0.25 | 0.40).
TEST(ForecastLossTest, TheRestIsOneBucket) {
  const std::vector<double> teacher = {0.40, 0.30, 0.20, 0.10};
  const std::vector<double> student = {0.35, 0.25, 0.15, 0.25};
  const std::vector<int32_t> kept = {0, 1};
  std::vector<double> gradient(4);
  const double expected =
      0.40 * std::log(0.40 / 0.35) + 0.30 * std::log(0.30 / 0.25) + 0.30 * std::log(0.30 / 0.40);
  EXPECT_NEAR(PartitionedKl<double>(teacher, student, kept, gradient), expected, 1e-15);
  const std::vector<double> other_rest = {0.35, 0.25, 0.05, 0.35};  // the same partition
  EXPECT_NEAR(PartitionedKl<double>(teacher, other_rest, kept, gradient), expected, 1e-15);
}

TEST(ForecastLossTest, SharesBelowTheFloorAreRaised) {
  const std::vector<double> teacher = {1.0, 0.0, 0.0};
  const std::vector<double> student = {0.5, 0.5, 0.0};
  const std::vector<int32_t> kept = {0, 2};  // rest: 0 against 0.5
  std::vector<double> gradient(3);
  const double t = 1 / (1 + 2e-8), floor = 1e-8, p = 1 / (1 + 1e-8);
  const double expected = t * std::log(t / (0.5 * p)) +
                          floor * t * std::log(floor * t / (0.5 * p)) + floor * t * std::log(t / p);
  EXPECT_NEAR(PartitionedKl<double>(teacher, student, kept, gradient), expected, 1e-15);
  EXPECT_EQ(gradient[2], 0.0);
}

// Through clamp, division by the sum, rest bucket and softmax, away from the clamp.
TEST(ForecastLossTest, GradientAgreesWithCentralDifferences) {
  for (const int count : {2, 5, 40}) {
    const std::vector<double> teacher = RandomShares(count, count);
    std::mt19937 generator(count + 1);
    std::normal_distribution<double> normal(0.0, 1.5);
    std::vector<double> products(count), shares(count), gradient(count), unused(count);
    for (double& product : products) product = normal(generator);
    std::vector<int32_t> kept;
    for (int j = 0; j < count; j += 3) kept.push_back(j);
    const auto loss = [&](std::vector<double>* out) {
      Softmax<double>(products, shares);
      return PartitionedKl<double>(teacher, shares, kept, *out);
    };
    loss(&gradient);
    double largest = 0;
    for (const double value : gradient) largest = std::max(largest, std::abs(value));
    constexpr double kStep = 1e-5;
    for (int j = 0; j < count; ++j) {
      const double product = products[j];
      products[j] = product + kStep;
      const double above = loss(&unused);
      products[j] = product - kStep;
      const double below = loss(&unused);
      products[j] = product;
      EXPECT_NEAR(gradient[j], (above - below) / (2 * kStep), 1e-6 * largest) << j;
    }
  }
}

// What is chosen is what the daemon chooses: SelectBlocks on the same compressed keys.
TEST(ForecastLossTest, ChoosesWhatTheDaemonChooses) {
  constexpr int kDim = 32, kTokens = 64 * 20;
  const kernels::SelectionBudget budget{.top_k = 6, .init = 1, .local = 2};
  const auto backend = kernels::MakeCpuBackend({.num_threads = 1});
  const std::vector<float> keys = kernels::RandomFloats(128 * kDim, 5);
  const std::vector<float> q = kernels::RandomFloats(size_t(kTokens) * kDim, 6);
  const std::byte* const page = reinterpret_cast<const std::byte*>(keys.data());
  std::vector<int32_t> blocks(size_t(kTokens) * budget.top_k), counts(kTokens);
  const kernels::SelectSegment segment{
      .rows = {0, kTokens, 0}, .budget = budget, .key_pages = &page, .key_page_stride = 1};
  backend->SelectBlocks({.q = q.data(),
                         .segments = &segment,
                         .num_segments = 1,
                         .q_stride = kDim,
                         .num_kv_heads = 1,
                         .heads_per_group = 1,
                         .key_dim = kDim,
                         .keys_per_block = kernels::kBlockWindows,
                         .rule = kernels::ScoreRule::kProduct,
                         .blocks = blocks.data(),
                         .counts = counts.data(),
                         .selection_stride = budget.top_k,
                         .rows = kTokens});
  for (int position = 0; position < kTokens; ++position) {
    const int windows = kernels::CompleteWindows(position);
    std::vector<float> scores(windows);
    for (int j = 0; j < windows; ++j) {
      float product = 0;
      for (int c = 0; c < kDim; ++c) {
        product = std::fma(q[size_t(position) * kDim + c], keys[size_t(j + 1) * kDim + c], product);
      }
      scores[j] = product;
    }
    const FreeBlocks free = FreeBlocksAt(position, budget);
    std::vector<int32_t> chosen;
    ChooseFreeBlocks(scores, free, &chosen);
    std::vector<int32_t> expected;
    for (int i = 0; i < counts[position]; ++i) {
      const int32_t block = blocks[size_t(position) * budget.top_k + i];
      if (block >= free.begin && block < free.end) expected.push_back(block);
    }
    ASSERT_EQ(chosen, expected) << "at " << position;
  }
}

// Everything that the pass hands to the loss, kept for a slow one.
class Recorder final : public AttentionObserver {
 public:
  void Observe(int, int rows, const float* qkv, int row_stride, const float* input) override {
    qkv_.emplace_back(qkv, qkv + size_t(rows) * row_stride);
    inputs_.emplace_back(input, input + size_t(rows) * 320);
    stride_ = row_stride;
  }
  std::vector<std::vector<float>> qkv_, inputs_;  // [chunks * layers]
  int stride_ = 0;
};

// A layer's loss over all compared rows in double, from recorded keys and inputs, with the
// teacher's windows made by the tested op.
class SlowLayer {
 public:
  SlowLayer(const ModelConfig& config, const kernels::SelectionBudget& budget, const float* cos,
            const float* sin)
      : config_(config), budget_(budget), cos_(cos), sin_(sin) {}

  double Loss(const Recorder& record, const std::vector<double>& head, int layer, int tokens) {
    const int dim = config_.head_dim, read = std::max(layer - 1, 0);
    double loss = 0;
    int64_t rows = 0;
    for (int position = 0; position < tokens; ++position) {
      const FreeBlocks free = FreeBlocksAt(position, budget_);
      if (free.candidates() == 0) continue;
      for (int kv_head = 0; kv_head < config_.num_kv_heads; ++kv_head) {
        const std::vector<double> keys = CoarseKeys(record, layer, kv_head, position);
        const int count = kernels::CompleteWindows(position);
        std::vector<double> forecast = Forecast(record, head, read, kv_head, position);
        std::vector<double> products(count), shares(count), unused(count);
        for (int j = 0; j < count; ++j) {
          for (int c = 0; c < dim; ++c) products[j] += forecast[c] * keys[j * dim + c];
          products[j] /= std::sqrt(double(dim));
        }
        Softmax<double>(products, shares);
        const std::vector<double> teacher = Teacher(record, layer, kv_head, position);
        const std::vector<float> scores(teacher.begin(), teacher.end());
        std::vector<int32_t> blocks, windows;
        ChooseFreeBlocks(scores, free, &blocks);
        WindowsOf(blocks, count, &windows);
        loss += PartitionedKl<double>(teacher, shares, windows, unused);
        ++rows;
      }
    }
    return loss / static_cast<double>(rows);
  }

 private:
  const float* Row(const Recorder& record, const std::vector<std::vector<float>>& of, int layer,
                   int position, int stride) const {
    (void)record;
    const int chunk = position / kObservedChunkTokens;
    return of[size_t(chunk) * config_.num_layers + layer].data() +
           size_t(position % kObservedChunkTokens) * stride;
  }
  const float* Key(const Recorder& record, int layer, int kv_head, int position) const {
    return Row(record, record.qkv_, layer, position, record.stride_) + config_.q_width() +
           size_t(kv_head) * config_.head_dim;
  }

  std::vector<double> CoarseKeys(const Recorder& record, int layer, int kv_head,
                                 int position) const {
    std::vector<double> keys(size_t(kernels::CompleteWindows(position)) * config_.head_dim);
    for (size_t i = 0; i < keys.size(); ++i) {
      const int j = static_cast<int>(i) / config_.head_dim;
      for (int t = 16 * j; t < 16 * j + 32; ++t) {
        keys[i] += Key(record, layer, kv_head, t)[i % config_.head_dim] / 32.0;
      }
    }
    return keys;
  }

  std::vector<double> Forecast(const Recorder& record, const std::vector<double>& head, int read,
                               int kv_head, int position) const {
    const int dim = config_.head_dim, hidden = config_.hidden_size, half = dim / 2;
    const float* x = Row(record, record.inputs_, read, position, hidden);
    std::vector<double> plain(dim), turned(dim);
    for (int c = 0; c < dim; ++c) {
      for (int i = 0; i < hidden; ++i) plain[c] += head[(kv_head * dim + c) * hidden + i] * x[i];
    }
    for (int i = 0; i < half; ++i) {
      const double cos = cos_[position * half + i], sin = sin_[position * half + i];
      turned[i] = plain[i] * cos - plain[i + half] * sin;
      turned[i + half] = plain[i + half] * cos + plain[i] * sin;
    }
    return turned;
  }

  std::vector<double> Teacher(const Recorder& record, int layer, int kv_head, int position) const {
    const int dim = config_.head_dim, group = config_.num_q_heads / config_.num_kv_heads;
    std::vector<double> total(position), windows(kernels::CompleteWindows(position));
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      const float* q = Row(record, record.qkv_, layer, position, record.stride_) + head * dim;
      std::vector<double> e(position);
      double sum = 0;
      for (int t = 0; t < position; ++t) {
        double product = 0;
        const float* key = Key(record, layer, kv_head, t);
        const float* next = Key(record, layer, kv_head, t + 1);
        for (int c = 0; c < dim; ++c) product += q[c] * 0.5 * (double{key[c]} + next[c]);
        sum += e[t] = std::exp(product / std::sqrt(double(dim)));
      }
      for (int t = 0; t < position; ++t) total[t] += e[t] / sum;
    }
    double sum = 0;
    for (size_t j = 0; j < windows.size(); ++j) {
      for (int t = std::max<int>(16 * j - 1, 0); t < int(16 * j + 16); ++t) {
        windows[j] = std::max(windows[j], total[t]);
      }
      sum += windows[j];
    }
    for (double& window : windows) window /= sum;
    return windows;
  }

  const ModelConfig& config_;
  const kernels::SelectionBudget budget_;
  const float* const cos_;
  const float* const sin_;
};

void ExpectSameTally(const LayerTally& found, const LayerTally& expected, double tolerance) {
  EXPECT_NEAR(found.loss, expected.loss, tolerance * expected.loss);
  EXPECT_NEAR(found.recall, expected.recall, tolerance * expected.recall);
  EXPECT_EQ(found.rows, expected.rows);
  EXPECT_EQ(found.choices, expected.choices);
}

// By the length of the difference.
void ExpectSameGradient(const std::vector<float>& found, const std::vector<float>& expected,
                        double tolerance) {
  double difference = 0, length = 0;
  for (size_t i = 0; i < found.size(); ++i) {
    difference += std::pow(double{found[i]} - expected[i], 2);
    length += std::pow(double{expected[i]}, 2);
  }
  EXPECT_GT(length, 0);
  EXPECT_LT(std::sqrt(difference), tolerance * std::sqrt(length));
}

// The bundled model, over the beginning of the handbook.
class ForecastPassTest : public testing::Test {
 protected:
  void Load(int tokens, const AttentionSettings& attention = {}) {
    auto model = LoadObservedModel({.folder = DemoModel(),
                                    .tokens = tokens,
                                    .threads = 2,
                                    .kv_dtype = kernels::DType::kF32,
                                    .attention = attention},
                                   backend_.get(), &clock_);
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    config_ = *LoadModelConfig(DemoModel());
    auto text = TrainingText::Read({Handbook()}, *model_->tokenizer, 1, tokens);
    ASSERT_TRUE(text.ok()) << text.status();
    text_ = *std::move(text);
  }
  std::span<const TokenId> tokens() const { return text_->sequence(1); }

  const std::unique_ptr<kernels::Backend> backend_ = kernels::MakeCpuBackend({.num_threads = 2});
  const memory::SteadyClock clock_;
  kernels::ThreadPool pool_{2};
  std::optional<ObservedModel> model_;
  ModelConfig config_;
  std::optional<TrainingText> text_;
};

// The pass's loss and gradient of whole heads on the bundled model, against the slow layer's loss
// and its central differences in double.
TEST_F(ForecastPassTest, AgreesWithASlowOne) {
  constexpr int kTokens = 290;  // two chunks
  constexpr size_t kLayers = kSanitized ? 1 : 3;
  const kernels::SelectionBudget budget{.top_k = 4, .init = 1, .local = 2};
  ASSERT_NO_FATAL_FAILURE(Load(kTokens));
  const TransformerLayers& layers = model_->layers();

  Recorder record;
  ObservePrompt(tokens(), {}, &*model_, &record, [](int, int) {});
  const ForecastPassOptions options{
      .budget = budget, .max_tokens = kTokens, .cos = layers.rope().cos, .sin = layers.rope().sin};
  ForecastPass pass(config_, options, &pool_);
  ForecastMatrices heads = RandomMatrices(config_, 3), gradients = ZeroMatrices(config_);
  pass.BeginSequence(kTokens, 1, &heads, &gradients);
  ObservePrompt(tokens(), {}, &*model_, &pass,
                [&](int first, int rows) { pass.BeginChunk(first, rows); });

  // The same by ops.
  const auto by_ops = DeviceForecastPass::Create(backend_.get(), config_, options, kTokens);
  ASSERT_TRUE(by_ops.ok()) << by_ops.status();
  DeviceForecastPass& other = **by_ops;
  other.SetHeads(heads);
  other.BeginSequence(kTokens, 1, /*with_gradients=*/true);
  ObservePrompt(tokens(), {}, &*model_, &other,
                [&](int first, int rows) { other.BeginChunk(first, rows); });
  const std::span<const LayerTally> tallies = other.EndSequence();
  ForecastMatrices sums = ZeroMatrices(config_);
  other.TakeGradients(&sums);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    ExpectSameTally(tallies[layer], pass.tallies()[layer], 1e-5);
    ExpectSameGradient(sums.layers[layer], gradients.layers[layer], 1e-4);
  }

  SlowLayer slow(config_, budget, layers.rope().cos, layers.rope().sin);
  const int layers_checked[] = {1, 0, config_.num_layers - 1};
  for (const int layer : std::span(layers_checked).first(kLayers)) {
    std::vector<double> head(heads.layers[layer].begin(), heads.layers[layer].end());
    const LayerTally& tally = pass.tallies()[layer];
    EXPECT_NEAR(tally.mean_loss(), slow.Loss(record, head, layer, kTokens),
                1e-5 * tally.mean_loss());
    const size_t places[] = {0, 12'345, head.size() - 1};
    for (const size_t place : std::span(places).first(kSanitized ? 1 : 3)) {
      const double value = head[place];
      constexpr double kStep = 1e-3;
      head[place] = value + kStep;
      const double above = slow.Loss(record, head, layer, kTokens);
      head[place] = value - kStep;
      const double below = slow.Loss(record, head, layer, kTokens);
      head[place] = value;
      const double found = gradients.layers[layer][place] / static_cast<double>(tally.rows);
      const double expected = (above - below) / (2 * kStep);
      EXPECT_NEAR(found, expected, 1e-4 * std::abs(expected) + 1e-8)
          << "layer " << layer << " at " << place;
    }
  }
}

// What rows attended to while a pass routed the model, checked against what it wanted.
class RouteWatch final : public AttentionObserver {
 public:
  RouteWatch(ForecastPass* pass, const kernels::SelectionBudget& budget)
      : pass_(pass), budget_(budget) {}

  void BeginChunk(int first, int rows) {
    pass_->BeginChunk(first, rows);
    first_ = first;
  }
  void Observe(int layer, int rows, const float* qkv, int stride, const float* input) override {
    pass_->Observe(layer, rows, qkv, stride, input);
  }
  std::span<const int32_t> Route(int layer, int row, int kv_head) override {
    return pass_->Route(layer, row, kv_head);
  }
  void ObserveChoice(int layer, int row, int kv_head, std::span<const int32_t> blocks) override {
    const std::span<const int32_t> route = pass_->Route(layer, row, kv_head);
    const int last = (first_ + row) / kernels::kBlockTokens;
    if (last < budget_.top_k) {
      EXPECT_TRUE(route.empty());
      EXPECT_EQ(static_cast<int>(blocks.size()), last + 1);
      return;
    }
    ASSERT_EQ(static_cast<int>(blocks.size()), budget_.top_k);
    EXPECT_TRUE(std::equal(blocks.begin(), blocks.end(), route.begin(), route.end()));
    EXPECT_EQ(blocks.front(), 0);
    EXPECT_EQ(blocks[blocks.size() - 2], last - 1);
    EXPECT_EQ(blocks.back(), last);
    chosen.insert(chosen.end(), blocks.begin() + 1, blocks.end() - 2);
    ++rows_of_layer[layer];
  }

  std::vector<int32_t> chosen;  // free blocks, in the order of layers, rows and heads of a chunk
  std::map<int, int> rows_of_layer;

 private:
  ForecastPass* const pass_;
  const kernels::SelectionBudget budget_;
  int first_ = 0;
};

TEST_F(ForecastPassTest, TheTeachersChoiceRoutesTheModel) {
  constexpr int kTokens = 384;
  const kernels::SelectionBudget budget{.top_k = 4, .init = 1, .local = 2};
  AttentionSettings settings;
  settings.top_k_blocks = budget.top_k;
  settings.local_blocks = budget.local;
  ASSERT_NO_FATAL_FAILURE(Load(kTokens, settings));
  const TransformerLayers& layers = model_->layers();
  const ForecastMatrices heads = RandomMatrices(config_, 3);
  AttentionChoice choice{.budget = budget};
  choice.prefill = AttentionPolicy::kSparse;
  std::vector<std::vector<int32_t>> chosen;
  for (const bool is_fine : {true, false}) {
    const ForecastPassOptions options{.budget = budget,
                                      .has_fine_teacher = is_fine,
                                      .routes_model = true,
                                      .row_stride = 16,
                                      .max_tokens = kTokens,
                                      .cos = layers.rope().cos,
                                      .sin = layers.rope().sin};
    ForecastPass pass(config_, options, &pool_);
    RouteWatch watch(&pass, budget);
    pass.BeginSequence(kTokens, 1, &heads, nullptr);
    ObservePrompt(tokens(), choice, &*model_, &watch,
                  [&](int first, int rows) { watch.BeginChunk(first, rows); });
    const int rows = config_.num_kv_heads * (kTokens - budget.top_k * kernels::kBlockTokens);
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      EXPECT_EQ(watch.rows_of_layer[layer], rows);
    }
    chosen.push_back(watch.chosen);
  }
  EXPECT_NE(chosen[0], chosen[1]);  // the teacher's choice, not the model's own
}

TEST(AdamWTest, AgreesWithTheTextbook) {
  ForecastMatrices weights{{{1.0f, -2.0f}, {0.5f}}};
  AdamWState state{.first = {{{0, 0}, {0}}}, .second = {{{0, 0}, {0}}}};
  const AdamWOptions options{.learning_rate = 0.1f,
                             .warmup_steps = 2,
                             .cooldown_steps = 3,
                             .total_steps = 5,
                             .clip_norm = 1.0f};
  double w[3] = {1.0, -2.0, 0.5}, m[3] = {}, v[3] = {};
  for (int step = 1; step <= 5; ++step) {
    const ForecastMatrices gradients{{{0.3f * step, 2.0f}, {-0.1f}}};
    const double norm = StepAdamW(options, gradients, &state, &weights);
    const double g[3] = {double{gradients.layers[0][0]}, 2.0, double{gradients.layers[1][0]}};
    EXPECT_NEAR(norm, std::sqrt(g[0] * g[0] + g[1] * g[1] + g[2] * g[2]), 1e-6);
    const double rates[] = {0.1 * 1 / 2, 0.1, 0.1, 0.1 * 2 / 3, 0.1 * 1 / 3};
    const double rate = rates[step - 1];
    for (int i = 0; i < 3; ++i) {
      const double clipped = norm > 1 ? g[i] / norm : g[i];
      m[i] = 0.9 * m[i] + 0.1 * clipped;
      v[i] = 0.95 * v[i] + 0.05 * clipped * clipped;
      w[i] -= rate * 0.01 * w[i];
      w[i] -= rate * (m[i] / (1 - std::pow(0.9, step))) /
              (std::sqrt(v[i] / (1 - std::pow(0.95, step))) + 1e-6);
    }
    EXPECT_NEAR(weights.layers[0][0], w[0], 1e-6);
    EXPECT_NEAR(weights.layers[0][1], w[1], 1e-6);
    EXPECT_NEAR(weights.layers[1][0], w[2], 1e-6);
  }
}

class ForecastTrainingTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() +
                       "forecast_XXXXX"
                       "X";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    options_.model = DemoModel();
    options_.data = {Handbook()};
    options_.out = folder_ + "/heads.safetensors";
    options_.length = kSanitized ? 320 : 448;
    options_.steps = kSanitized ? 2 : 6;
    options_.batch = kSanitized ? 1 : 2;
    options_.held_out = kSanitized ? 1 : 2;
    options_.measure_every = 1000;
    options_.save_every = 2;
    options_.row_stride = 4;
    options_.budget.top_k_blocks = 4;
    options_.budget.local_blocks = 2;
    options_.optimizer.learning_rate = 2e-3f;
    options_.threads = 2;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  absl::Status Train(ForecastTrainingOptions options) {
    reports_.clear();
    auto training = ForecastTraining::Create(options);
    if (!training.ok()) return training.status();
    return (*training)->Run([&](const TrainingReport& report) {
      if (report.is_held_out) reports_.push_back(report);
    });
  }
  std::string Whole(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  std::string folder_;
  ForecastTrainingOptions options_;
  std::vector<TrainingReport> reports_;
};

TEST_F(ForecastTrainingTest, HeldOutLossFallsAndTheFileIsOneThatTheDaemonReads) {
  ASSERT_TRUE(Train(options_).ok());
  ASSERT_EQ(reports_.size(), 2u);
  EXPECT_LT(reports_[1].mean_loss(), (kSanitized ? 1.0 : 0.9) * reports_[0].mean_loss());
  const auto heads = LoadForecastHeads(options_.out, *LoadModelConfig(options_.model));
  ASSERT_TRUE(heads.ok()) << heads.status();
  EXPECT_EQ(heads->current.dtype, kernels::DType::kBF16);
}

TEST_F(ForecastTrainingTest, AResumedRunIsTheUninterruptedOneBitForBit) {
  ASSERT_TRUE(Train(options_).ok());
  const std::string whole = Whole(options_.out + ".state");
  ForecastTrainingOptions half = options_;
  half.out = folder_ + "/half.safetensors";
  half.steps = options_.steps / 2;
  ASSERT_TRUE(Train(half).ok());
  EXPECT_NE(Whole(half.out + ".state"), whole);
  half.steps = options_.steps;
  half.resume = true;
  half.threads = 1;
  ASSERT_TRUE(Train(half).ok());
  EXPECT_EQ(Whole(half.out + ".state"), whole);
  EXPECT_EQ(Whole(half.out), Whole(options_.out));
  half.seed = 9;
  const absl::Status other = Train(half);
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(other.message().find("seed 1"), std::string::npos) << other;
}

// By a device's pass on the CPU and, where there is one, on a device: the same heads, rounded.
TEST_F(ForecastTrainingTest, ByOpsAndOnADeviceItComesToTheSame) {
  options_.steps = 2;
  ASSERT_TRUE(Train(options_).ok());
  const std::vector<TrainingReport> expected = reports_;
  ForecastTrainingOptions by_ops = options_, on_device = options_;
  by_ops.by_training_ops = true;
  on_device.device = "cuda:0";
  std::vector<std::pair<ForecastTrainingOptions, double>> ways = {{by_ops, 1e-4}};
#ifdef AUGUR_HAS_CUDA
  if (!kernels::FindCudaDevices().empty()) ways.emplace_back(on_device, 2e-2);
#endif
  for (const auto& [way, tolerance] : ways) {
    ASSERT_TRUE(Train(way).ok());
    ASSERT_EQ(reports_.size(), expected.size());
    for (size_t i = 0; i < reports_.size(); ++i) {
      EXPECT_NEAR(reports_[i].mean_loss(), expected[i].mean_loss(),
                  tolerance * expected[i].mean_loss())
          << way.device;
      EXPECT_NEAR(reports_[i].mean_recall(), expected[i].mean_recall(), tolerance) << way.device;
    }
  }
  // What a device has saved the CPU does not go on with.
  TrainingState state;
  state.heads = RandomMatrices(*LoadModelConfig(options_.model), 1);
  state.optimizer = {.steps = 1, .first = state.heads, .second = state.heads};
  state.settings["device"] = "cuda";
  const std::string path = options_.out + ".other";
  ASSERT_TRUE(WriteTrainingState(path, *LoadModelConfig(options_.model), state).ok());
  const auto resumed =
      ReadTrainingState(path, *LoadModelConfig(options_.model), {{"device", "cpu"}});
  EXPECT_NE(resumed.status().message().find("device cuda"), std::string::npos) << resumed.status();
}

TEST_F(ForecastTrainingTest, EveryVariantTrains) {
  options_.steps = 1;
  options_.held_out = 0;
  options_.length = 320;
  ForecastTrainingOptions coarse = options_, exact = options_, sparse = options_,
                          teacher = options_;
  coarse.has_fine_teacher = false;
  exact.has_exact_alignment = true;
  sparse.route = TrainingRoute::kSparse;
  teacher.route = TrainingRoute::kTeacher;
  std::vector<std::string> states;
  for (ForecastTrainingOptions* variant : {&options_, &coarse, &exact, &sparse, &teacher}) {
    ASSERT_TRUE(Train(*variant).ok());
    states.push_back(Whole(options_.out));
  }
  for (size_t i = 0; i < states.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(states[i], states[j]) << i << " and " << j;
  }
}

TEST_F(ForecastTrainingTest, WhatCannotBeTrainedIsRefusedByName) {
  const auto refused = [&](const ForecastTrainingOptions& options, const std::string& words) {
    const absl::Status status = Train(options);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find(words), std::string::npos) << status;
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  };
  ForecastTrainingOptions options = options_;
  options.length = 8000;
  refused(options, "the text is too short");
  options = options_;
  options.held_out = 100;
  refused(options, "--held-out 100");
  options = options_;
  options.length = 256;
  refused(options, "--length: expected more than 256");
  options = options_;
  options.length = 8256;
  refused(options, "max_position_embeddings");
  options = options_;
  options.data = {folder_};
  refused(options, "found none");
  options.data = {folder_ + "/missing.txt"};
  refused(options, "missing.txt: cannot be read");
  std::ofstream(folder_ + "/bad.jsonl") << "{\"text\": \"a\"}\n\n{\"txt\": 1}\n";
  options.data = {folder_ + "/bad.jsonl"};
  refused(options, "bad.jsonl: line 3");
  options = options_;
  options.device = "cuda";
  options.route = TrainingRoute::kTeacher;
  refused(options, "--route: expected dense or sparse on a device, found teacher");
  options.route = TrainingRoute::kDense;
  options.kv_dtype = kernels::DType::kF32;
  refused(options, "--compute: expected bf16 on a device");
  options = options_;
  options.out = folder_ + "/nowhere/heads";
  refused(options, "nowhere/heads.state: cannot be written");
  options = options_;
  options.resume = true;
  refused(options, "heads.safetensors.state");
  std::ofstream(options.out + ".state") << "not a state";
  refused(options, "heads.safetensors.state");
}

// A disk that takes no more: the run ends with one line, the old file stays, nothing beside it.
TEST_F(ForecastTrainingTest, AFullDiskLeavesNothingHalfWritten) {
  options_.steps = 1;
  ASSERT_TRUE(Train(options_).ok());
  const std::string before = Whole(options_.out + ".state");
  rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{1 << 20, old.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  options_.seed = 5;
  const absl::Status status = Train(options_);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(status.message().find("cannot be written"), std::string::npos) << status;
  EXPECT_EQ(Whole(options_.out + ".state"), before);
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 2);  // heads and state
}

TEST_F(ForecastTrainingTest, DocumentsArePackedWithASeparator) {
  std::filesystem::create_directory(folder_ + "/texts");
  std::ofstream(folder_ + "/texts/b.jsonl") << "{\"text\": \"one two\"}\n{\"text\": \"three\"}\n";
  std::ofstream(folder_ + "/texts/a.txt") << "first";
  std::ofstream(folder_ + "/texts/c.bin") << "not read";
  const auto tokenizer = LoadTokenizer(DemoModel() + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  std::vector<TokenId> expected;
  for (const char* document : {"first", "one two", "three"}) {
    const auto ids = (*tokenizer)->Encode(document, {});
    expected.insert(expected.end(), ids.begin(), ids.end());
    expected.push_back(1);
  }
  const auto text = TrainingText::Read({folder_ + "/texts"}, **tokenizer, 1, 2);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->num_tokens(), static_cast<int64_t>(expected.size()));
  for (int i = 0; i < text->num_sequences(); ++i) {
    EXPECT_EQ(text->sequence(i)[0], expected[2 * i]);
    EXPECT_EQ(text->sequence(i)[1], expected[2 * i + 1]);
  }
}

TEST_F(ForecastTrainingTest, AWholeDocumentThatDoesNotFitBeginsTheNextSequence) {
  const auto tokenizer = LoadTokenizer(DemoModel() + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  // Of 4, 4, 10 and 3 tokens with what begins and ends them.
  std::ofstream(folder_ + "/whole.jsonl") << R"({"text": "12"}
{"text": "34"}
{"text": "56789012"}
{"text": "3"}
)";
  const auto text =
      TrainingText::Read({folder_ + "/whole.jsonl"}, **tokenizer, 1, 9, DocumentCut::kWhole);
  ASSERT_TRUE(text.ok()) << text.status();
  std::vector<std::string> sequences;
  for (int i = 0; i < text->num_sequences(); ++i) {
    std::string digits;
    for (const TokenId id : text->sequence(i)) {
      digits += (*tokenizer)->IsSpecial(id) ? "|" : (*tokenizer)->TokenBytes(id);
    }
    sequences.push_back(digits);
  }
  // The third document begins again, and fills a sequence; what is left then is too short.
  EXPECT_EQ(sequences, (std::vector<std::string>{"|12||34||", "|56789012"}));
  const auto packed = TrainingText::Read({folder_ + "/whole.jsonl"}, **tokenizer, 1, 9);
  ASSERT_TRUE(packed.ok());
  EXPECT_NE(packed->Fingerprint(), text->Fingerprint());
}

TEST_F(ForecastTrainingTest, WhereADocumentIsAskedIsKnownInEachSequence) {
  const auto tokenizer = LoadTokenizer(DemoModel() + "/tokenizer.json");
  ASSERT_TRUE(tokenizer.ok());
  // A token a digit, with what begins and ends a document: 5, 4 and 10.
  std::ofstream(folder_ + "/asked.jsonl") << R"({"text": "127", "asked_from": 2}
{"text": "34"}
{"text": "56789012", "asked_from": 1}
)";
  const auto text = TrainingText::Read({folder_ + "/asked.jsonl"}, **tokenizer, 1, 6);
  ASSERT_TRUE(text.ok()) << text.status();
  ASSERT_EQ(text->num_sequences(), 3);
  const auto expect = [&](int sequence, std::vector<std::pair<int, int>> expected) {
    std::vector<std::pair<int, int>> found;
    for (const TokenRange& range : text->asked(sequence)) {
      found.emplace_back(range.begin, range.end);
    }
    EXPECT_EQ(found, expected) << "sequence " << sequence;
  };
  expect(0, {{3, 4}});
  expect(1, {{5, 6}});
  expect(2, {{0, 6}});

  std::ofstream(folder_ + "/wrong.jsonl") << R"({"text": "127", "asked_from": 4})";
  const auto wrong = TrainingText::Read({folder_ + "/wrong.jsonl"}, **tokenizer, 1, 2);
  EXPECT_NE(wrong.status().message().find("line 1: expected \"asked_from\""), std::string::npos)
      << wrong.status();
}

TEST(ComparedRowsTest, AreDrawnMoreOftenWhereADocumentIsAsked) {
  constexpr int kTokens = 4096;
  ForecastPassOptions options{.budget = {.top_k = 4, .init = 1, .local = 2}, .row_stride = 8};
  const std::vector<TokenRange> asked = {{1000, 1100}, {3001, 3064}};
  std::vector<int32_t> plain, same, more;
  ListComparedRows(kTokens, 5, {}, options, &plain);
  ListComparedRows(kTokens, 5, asked, options, &same);
  EXPECT_EQ(same, plain);
  options.asked_row_stride = 1;
  ListComparedRows(kTokens, 5, asked, options, &more);
  std::vector<int32_t> expected;
  const auto is_asked = [](int row) {
    return (row >= 1000 && row < 1100) || (row >= 3001 && row < 3064);
  };
  for (int row = 0; row < kTokens; ++row) {
    if (is_asked(row) || std::binary_search(plain.begin(), plain.end(), row)) {
      expected.push_back(row);
    }
  }
  EXPECT_EQ(more, expected);
}

TEST(SequenceOrderTest, EachRoundHasEachOnceInAnOrderOfItsOwn) {
  SequenceOrder order(50, 7), again(50, 7);
  std::vector<int> rounds[2];
  for (int64_t at = 0; at < 100; ++at) rounds[at / 50].push_back(order.At(at));
  EXPECT_NE(rounds[0], rounds[1]);
  EXPECT_EQ(again.At(73), rounds[1][23]);
  for (std::vector<int>& round : rounds) {
    std::sort(round.begin(), round.end());
    for (int i = 0; i < 50; ++i) EXPECT_EQ(round[i], i);
  }
}

}  // namespace
}  // namespace augur::engine
