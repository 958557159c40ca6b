// Family nosa: a golden llama with random eviction heads against a plain forward pass in double,
// dense and selecting; and the promise that neither residency nor chunks, batch, preemption or a
// prefix hit show in the bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "engine/model/model_loader.h"
#include "tests/kernels/kernel_test_data.h"
#include "tests/support/checkpoint_writer.h"
#include "tests/support/model_scenarios.h"
#include "tests/support/random_forecast.h"

namespace augur::engine {
namespace {

using memory::Residency;
using tests::ExpectSameLogits;
using tests::Logits;
using tests::ModelDriver;
using tests::ModelDriverOptions;
using tests::SameBits;
using tests::TensorMap;
using Doubles = std::vector<double>;

constexpr double kTolerance = 1e-5;  // of the largest |logit|
constexpr int kLayers = 3, kHidden = 96, kHeads = 8, kKvHeads = 2, kHeadDim = 64;
constexpr int kGroup = kHeads / kKvHeads;
constexpr int kPrompt = kernels::kSanitized ? 750 : 1000;  // 12 or 16 blocks, the last one open
constexpr int kDecodes =
    kernels::kSanitized ? 25 : 40;  // over the end of a block and several windows
constexpr kernels::SelectionBudget kBudget{.top_k = 8, .init = 1, .local = 2};
constexpr int kQueryTopK = 5;  // two blocks by the query, three by biases

std::string LlamaFolder() {
  return tests::SourceFolder() + "/tests/golden/models/llama-d64-g4";
}

tests::TensorFile Floats(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  return {.dtype = "F32",
          .shape = shape,
          .bytes = std::string(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(float))};
}

// Writes the golden llama to `folder` as a nosa whose A has the given spread.
void WriteNosa(const std::string& folder, float gate_spread, int query_top_k = kQueryTopK) {
  auto config = nlohmann::json::parse(tests::ReadWhole(LlamaFolder() + "/config.json"));
  config["model_type"] = "nosa";
  config["max_position_embeddings"] = 2048;
  config["query_top_k_blocks"] = query_top_k;
  tests::WriteWhole(folder + "/config.json", config.dump());
  TensorMap tensors = tests::ReadTensors(LlamaFolder() + "/model.safetensors");
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
    tensors[prefix + "A"] =
        Floats({kKvHeads}, kernels::RandomFloats(kKvHeads, 10 + layer, gate_spread));
    // Small values times large weights: biases that differ from token to token.
    tensors[prefix + "delta.weight"] =
        Floats({kKvHeads, kKvHeads * kHeadDim},
               kernels::RandomFloats(kKvHeads * kKvHeads * kHeadDim, 20 + layer, 1.0f));
  }
  tests::WriteTensors(folder + "/model.safetensors", tensors);
}

std::vector<int32_t> Prompt(int tokens, uint32_t seed = 1) {
  return tests::RepeatingPrompt(tokens, seed, 380);
}
std::vector<int32_t> OtherPrompt(uint32_t seed) { return Prompt(900, seed); }

// The forward pass of sparda.md 5.1 in double, one token after another, no tricks.
class Reference {
 public:
  explicit Reference(const std::string& folder) {
    for (const auto& [name, tensor] : tests::ReadTensors(folder + "/model.safetensors")) {
      Doubles& values = weights_[name];
      for (size_t at = 0; at < tensor.bytes.size(); at += 4) {
        float value;
        std::memcpy(&value, tensor.bytes.data() + at, 4);
        values.push_back(value);
      }
    }
    const auto config = nlohmann::json::parse(tests::ReadWhole(folder + "/config.json"));
    theta_ = config["rope_theta"];
    epsilon_ = config["rms_norm_eps"];
    query_top_k_ = config["query_top_k_blocks"];
  }

  // Logits of rows from first_row on. `selects`: blocks as kBudget has it, else all.
  std::vector<Doubles> Run(const std::vector<int32_t>& tokens, bool selects, int first_row) {
    selects_ = selects;
    num_tokens_ = static_cast<int>(tokens.size());
    std::vector<Doubles> hidden;
    const Doubles& embedding = weights_.at("model.embed_tokens.weight");
    for (const int32_t token : tokens) {
      const auto row = embedding.begin() + size_t(token) * kHidden;
      hidden.emplace_back(row, row + kHidden);
    }
    for (int layer = 0; layer < kLayers; ++layer) RunLayer(layer, &hidden);
    std::vector<Doubles> logits;
    for (int row = first_row; row < num_tokens_; ++row) {
      logits.push_back(Multiply(embedding, Norm(hidden[row], "model.norm.weight")));
    }
    return logits;
  }
  // Blocks that the last row chose in `layer`.
  const std::vector<int32_t>& chosen(int layer, int kv_head) const {
    return chosen_[layer * kKvHeads + kv_head];
  }
  // The closest that a rank came to its neighbour on the other side of a choice.
  double smallest_margin() const { return smallest_margin_; }

 private:
  Doubles Multiply(const Doubles& matrix, const Doubles& x) const {
    Doubles y(matrix.size() / x.size(), 0.0);
    for (size_t i = 0; i < y.size(); ++i) {
      for (size_t j = 0; j < x.size(); ++j) y[i] += matrix[i * x.size() + j] * x[j];
    }
    return y;
  }
  Doubles Norm(const Doubles& x, const std::string& name) const {
    double square = 0;
    for (const double value : x) square += value * value;
    const double scale = 1 / std::sqrt(square / x.size() + epsilon_);
    Doubles y = weights_.at(name);
    for (size_t i = 0; i < x.size(); ++i) y[i] *= x[i] * scale;
    return y;
  }
  void Rotate(double* head, int position) const {
    for (int i = 0; i < kHeadDim / 2; ++i) {
      const double angle = position * std::pow(theta_, -2.0 * i / kHeadDim);
      const double a = head[i], b = head[i + kHeadDim / 2];
      head[i] = a * std::cos(angle) - b * std::sin(angle);
      head[i + kHeadDim / 2] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  static double Dot(const double* a, const double* b) {
    double sum = 0;
    for (int d = 0; d < kHeadDim; ++d) sum += a[d] * b[d];
    return sum;
  }

  void RunLayer(int layer, std::vector<Doubles>* hidden) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".";
    const std::string attention = prefix + "self_attn.";
    queries_.clear();
    keys_.clear();
    values_.clear();
    biases_.clear();
    for (int t = 0; t < num_tokens_; ++t) {
      const Doubles x = Norm((*hidden)[t], prefix + "input_layernorm.weight");
      queries_.push_back(Multiply(weights_.at(attention + "q_proj.weight"), x));
      keys_.push_back(Multiply(weights_.at(attention + "k_proj.weight"), x));
      values_.push_back(Multiply(weights_.at(attention + "v_proj.weight"), x));
      for (int h = 0; h < kHeads; ++h) Rotate(queries_[t].data() + h * kHeadDim, t);
      for (int h = 0; h < kKvHeads; ++h) Rotate(keys_[t].data() + h * kHeadDim, t);
      biases_.push_back(Multiply(weights_.at(attention + "delta.weight"), values_[t]));
      for (int m = 0; m < kKvHeads; ++m) {
        biases_[t][m] = weights_.at(attention + "A")[m] * std::log1p(std::exp(biases_[t][m]));
      }
    }
    MakeWindows();
    for (int t = 0; t < num_tokens_; ++t) {
      Doubles attended(kHeads * kHeadDim, 0.0);
      for (int m = 0; m < kKvHeads; ++m) Attend(layer, t, m, &attended);
      Add(Multiply(weights_.at(attention + "o_proj.weight"), attended), &(*hidden)[t]);
      const Doubles x = Norm((*hidden)[t], prefix + "post_attention_layernorm.weight");
      Doubles gate = Multiply(weights_.at(prefix + "mlp.gate_proj.weight"), x);
      const Doubles up = Multiply(weights_.at(prefix + "mlp.up_proj.weight"), x);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      Add(Multiply(weights_.at(prefix + "mlp.down_proj.weight"), gate), &(*hidden)[t]);
    }
  }
  static void Add(const Doubles& from, Doubles* to) {
    for (size_t i = 0; i < from.size(); ++i) (*to)[i] += from[i];
  }

  void MakeWindows() {
    window_keys_.clear();
    window_biases_.clear();
    for (int j = 0; 16 * j + 32 <= num_tokens_; ++j) {
      Doubles key(kKvHeads * kHeadDim, 0.0), bias(kKvHeads, 0.0);
      for (int t = 16 * j; t < 16 * j + 32; ++t) {
        for (size_t i = 0; i < key.size(); ++i) key[i] += keys_[t][i] / 32;
        for (int m = 0; m < kKvHeads; ++m) bias[m] += biases_[t][m] / 32;
      }
      window_keys_.push_back(key);
      window_biases_.push_back(bias);
    }
  }

  void Attend(int layer, int t, int m, Doubles* attended) {
    std::vector<int32_t> blocks(t / 64 + 1);
    for (size_t b = 0; b < blocks.size(); ++b) blocks[b] = static_cast<int32_t>(b);
    if (selects_) blocks = Choose(t, m);
    if (t == num_tokens_ - 1) chosen_[layer * kKvHeads + m] = blocks;
    for (int h = m * kGroup; h < (m + 1) * kGroup; ++h) {
      Doubles out(kHeadDim, 0.0);
      double total = 0;
      for (const int32_t block : blocks) {
        for (int j = 64 * block; j < std::min(64 * block + 64, t + 1); ++j) {
          const double logit =
              Dot(queries_[t].data() + h * kHeadDim, keys_[j].data() + m * kHeadDim) /
                  std::sqrt(double(kHeadDim)) +
              biases_[j][m];
          const double weight = std::exp(logit);
          total += weight;
          for (int d = 0; d < kHeadDim; ++d) out[d] += weight * values_[j][m * kHeadDim + d];
        }
      }
      for (int d = 0; d < kHeadDim; ++d) (*attended)[h * kHeadDim + d] = out[d] / total;
    }
  }

  // The largest of the block's five windows that are complete at token t.
  static double Pool(const Doubles& windows, int block) {
    double largest = -std::numeric_limits<double>::infinity();
    for (int j = std::max(0, 4 * block - 1); j < 4 * block + 4; ++j) {
      if (j < static_cast<int>(windows.size())) largest = std::max(largest, windows[j]);
    }
    return largest;
  }

  // The `wanted` best of `ranks`' blocks that are not taken yet.
  void Take(const Doubles& ranks, int begin, int end, int wanted, std::set<int32_t>* taken) {
    std::vector<int32_t> order;
    for (int32_t b = begin; b < end; ++b) {
      if (!taken->contains(b)) order.push_back(b);
    }
    if (wanted == 0 || static_cast<int>(order.size()) <= wanted) {
      taken->insert(order.begin(), wanted == 0 ? order.begin() : order.end());
      return;
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return ranks[a] > ranks[b]; });
    const double last = ranks[order[wanted - 1]], next = ranks[order[wanted]];
    // Neighbours may share their best window: an equal score whatever it is rounded to.
    if (last > next) {
      smallest_margin_ = std::min(smallest_margin_, (last - next) / std::abs(last));
    }
    taken->insert(order.begin(), order.begin() + wanted);
  }

  std::vector<int32_t> Choose(int t, int m) {
    const int blocks = t / 64 + 1;
    std::set<int32_t> taken;
    if (blocks <= kBudget.top_k) {
      for (int b = 0; b < blocks; ++b) taken.insert(b);
      return {taken.begin(), taken.end()};
    }
    const int windows = (t + 1 - 32) / 16 + 1;
    Doubles scores(windows, 0.0), biases(windows);
    for (int j = 0; j < windows; ++j) biases[j] = window_biases_[j][m];
    for (int h = m * kGroup; h < (m + 1) * kGroup; ++h) {
      Doubles head(windows);
      double total = 0;
      for (int j = 0; j < windows; ++j) {
        head[j] =
            std::exp(Dot(queries_[t].data() + h * kHeadDim, window_keys_[j].data() + m * kHeadDim) /
                     std::sqrt(double(kHeadDim)));
        total += head[j];
      }
      for (int j = 0; j < windows; ++j) scores[j] += head[j] / total;
    }
    const int end = blocks - kBudget.local;
    for (int b = 0; b < kBudget.init; ++b) taken.insert(b);
    for (int b = end; b < blocks; ++b) taken.insert(b);
    Doubles by_query(end), by_bias(end);
    for (int b = 0; b < end; ++b) {
      by_query[b] = Pool(scores, b);
      by_bias[b] = Pool(biases, b);
    }
    Take(by_query, kBudget.init, end, query_top_k_ - kBudget.init - kBudget.local, &taken);
    Take(by_bias, kBudget.init, end, kBudget.top_k - query_top_k_, &taken);
    return {taken.begin(), taken.end()};
  }

  std::map<std::string, Doubles> weights_;
  double theta_ = 0, epsilon_ = 0;
  int query_top_k_ = 0, num_tokens_ = 0;
  bool selects_ = false;
  std::vector<Doubles> queries_, keys_, values_, biases_;  // [tokens][...] of a layer
  std::vector<Doubles> window_keys_, window_biases_;       // [windows][...]
  std::vector<int32_t> chosen_[kLayers * kKvHeads];
  double smallest_margin_ = std::numeric_limits<double>::infinity();
};

class NosaTest : public testing::Test {
 protected:
  NosaTest() {
    WriteNosa(scratch_.path(), 1.0f);
    heads_ = forecast_.path() + "/forecast.safetensors";
    tests::WriteRandomForecast(heads_, kLayers, kKvHeads * kHeadDim, kHidden, 5);
  }

  ModelDriverOptions Options(const std::string& folder,
                             kernels::DType dtype = kernels::DType::kBF16) const {
    return {.folder = folder,
            .threads = 2,
            .kv_dtype = dtype,
            .max_rows = 1100,
            .max_segments = 16,
            .frames = 700,
            .host_blocks = 600,
            .staging_blocks = 16,
            .max_top_k = 24,
            .num_slots = kBudget.top_k,
            .forecast_heads = heads_};
  }
  ModelDriverOptions Options() const { return Options(scratch_.path()); }

  static AttentionChoice Choice(AttentionPolicy prefill, AttentionPolicy decode) {
    return {.prefill = prefill, .decode = decode, .budget = kBudget};
  }
  static std::vector<AttentionChoice> Choices() {
    using enum AttentionPolicy;
    if (kernels::kSanitized) return {Choice(kForecast, kForecast), Choice(kSparse, kDense)};
    return {Choice(kDense, kDense), Choice(kSparse, kSparse), Choice(kForecast, kForecast),
            Choice(kDense, kForecast), Choice(kSparse, kDense)};
  }

  tests::ScratchFolder scratch_, forecast_;
  std::string heads_;
};

double LargestOf(const Logits& logits) {
  double largest = 0;
  for (const auto& row : logits) {
    for (const float value : row) largest = std::max(largest, std::abs(double(value)));
  }
  return largest;
}

TEST_F(NosaTest, EqualsThePlainForwardPass) {
  constexpr int kShort = 600, kSteps = 6;
  Reference reference(scratch_.path());
  const std::vector<int32_t> prompt = Prompt(kShort);
  for (const AttentionPolicy policy : {AttentionPolicy::kDense, AttentionPolicy::kSparse}) {
    const AttentionChoice choice = Choice(policy, policy);
    SCOPED_TRACE(choice.Fingerprint());
    ModelDriver model(Options(scratch_.path(), kernels::DType::kF32));
    auto sequence = model.Start(prompt, kSteps, choice);
    Logits found = {model.Prefill(&sequence, 512)};
    for (auto& row : model.Decode(&sequence, kSteps)) found.push_back(row);
    const std::vector<Doubles> expected =
        reference.Run(sequence.tokens, policy != AttentionPolicy::kDense, kShort - 1);
    ASSERT_EQ(found.size(), expected.size());
    const double tolerance = kTolerance * LargestOf(found);
    for (size_t row = 0; row < found.size(); ++row) {
      double worst = 0;
      for (size_t i = 0; i < found[row].size(); ++i) {
        worst = std::max(worst, std::abs(found[row][i] - expected[row][i]));
      }
      EXPECT_LT(worst, tolerance) << "row " << row;
    }
    for (int layer = 1; layer < kLayers && policy != AttentionPolicy::kDense; ++layer) {
      for (int head = 0; head < kKvHeads; ++head) {
        const auto chosen = model.layer_worker().chosen(layer, 0, head);
        EXPECT_EQ(std::vector<int32_t>(chosen.begin(), chosen.end()),
                  reference.chosen(layer, head));
      }
    }
  }
  // Or rounding may choose otherwise than double does, and this test proves nothing.
  EXPECT_GT(reference.smallest_margin(), 1e-6);
}

TEST_F(NosaTest, WithoutGatesItIsLlama) {
  tests::ScratchFolder zero, llama;
  WriteNosa(zero.path(), 0.0f, /*query_top_k=*/24);  // biases choose no block
  auto config = nlohmann::json::parse(tests::ReadWhole(LlamaFolder() + "/config.json"));
  config["max_position_embeddings"] = 2048;
  tests::WriteWhole(llama.path() + "/config.json", config.dump());
  tests::WriteWhole(llama.path() + "/model.safetensors",
                    tests::ReadWhole(LlamaFolder() + "/model.safetensors"));
  ModelDriver plain(Options(llama.path())), gateless(Options(zero.path())), gated(Options());
  for (const AttentionChoice& choice : Choices()) {
    SCOPED_TRACE(choice.Fingerprint());
    const Logits expected = plain.Complete(Prompt(kPrompt), 512, 4, choice);
    ExpectSameLogits(gateless.Complete(Prompt(kPrompt), 512, 4, choice), expected);
    EXPECT_FALSE(SameBits(gated.Complete(Prompt(kPrompt), 512, 0, choice)[0], expected[0]));
  }
}

TEST_F(NosaTest, AnyResidencySlotsStagingChunksAndPrefetch) {
  ModelDriver device(Options());
  struct Variant {
    const char* name;
    int slots, staging, chunk;
    bool prefetch;
  };
  const Variant variants[] = {
      {"no spare slots", kBudget.top_k, 16, 256, true},
      {"fetch on need", kBudget.top_k, 16, 64, false},
      {"spare slots, whole prompt", 2 * kBudget.top_k, 32, 4096, true},
  };
  for (const AttentionChoice& choice : Choices()) {
    const Logits expected = device.Complete(Prompt(kPrompt), 4096, kDecodes, choice);
    ExpectSameLogits(device.Complete(Prompt(kPrompt), 64, kDecodes, choice), expected);
    for (const Variant& variant : variants) {
      SCOPED_TRACE(choice.Fingerprint() + ", " + variant.name);
      ModelDriverOptions options = Options();
      options.num_slots = variant.slots;
      options.staging_blocks = variant.staging;
      options.prefetch = variant.prefetch;
      ModelDriver tiered(options);
      ExpectSameLogits(
          tiered.Complete(Prompt(kPrompt), variant.chunk, kDecodes, choice, Residency::kTiered),
          expected);
      if (kernels::kSanitized) break;
    }
  }
}

TEST_F(NosaTest, TokenByToken) {
  ModelDriver model(Options());
  const AttentionChoice choice = Choice(AttentionPolicy::kSparse, AttentionPolicy::kSparse);
  ExpectSameLogits(model.Complete(Prompt(600), 1, 2, choice),
                   model.Complete(Prompt(600), 600, 2, choice));
}

// Biases choose blocks that the query does not, and the whole budget is used.
TEST_F(NosaTest, TwoStagesFillTheBudget) {
  tests::ScratchFolder by_query;
  WriteNosa(by_query.path(), 1.0f, kBudget.top_k);
  for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
    for (const AttentionPolicy policy : {AttentionPolicy::kSparse, AttentionPolicy::kForecast}) {
      int different = 0;
      std::vector<std::vector<int32_t>> lists[2];
      for (int stages = 1; stages <= 2; ++stages) {
        ModelDriver model(Options(stages == 1 ? by_query.path() : scratch_.path()));
        auto sequence = model.Start(Prompt(kPrompt), 8, Choice(policy, policy), residency);
        model.Prefill(&sequence, 512);
        model.Decode(&sequence, 3);
        const int last_block = (sequence.computed - 1) / 64;
        for (int layer = 1; layer < kLayers; ++layer) {
          for (int head = 0; head < kKvHeads; ++head) {
            const auto chosen = model.layer_worker().chosen(layer, 0, head);
            ASSERT_EQ(chosen.size(), static_cast<size_t>(kBudget.top_k));
            EXPECT_EQ(chosen[0], 0);
            EXPECT_EQ(chosen[6], last_block - 1);
            EXPECT_EQ(chosen[7], last_block);
            lists[stages - 1].emplace_back(chosen.begin(), chosen.end());
          }
        }
        model.Finish(sequence);
      }
      for (size_t i = 0; i < lists[0].size(); ++i) different += lists[0][i] != lists[1][i];
      EXPECT_GT(different, 0) << NameOf(policy);
    }
  }
}

TEST_F(NosaTest, SavedAndResumed) {
  for (const AttentionChoice& choice : Choices()) {
    SCOPED_TRACE(choice.Fingerprint());
    ModelDriver model(Options());
    const Logits expected = model.Complete(Prompt(kPrompt), 512, kDecodes, choice);
    ExpectSameLogits(
        tests::SavedAndResumed(&model, Prompt(kPrompt), choice, kDecodes, 9, OtherPrompt),
        expected);
    model.kv().store()->CheckInvariants();
  }
}

TEST_F(NosaTest, MirroredFromTheDevice) {
  const AttentionChoice choice = Choice(AttentionPolicy::kForecast, AttentionPolicy::kForecast);
  ModelDriver model(Options());
  const Logits expected = model.Complete(Prompt(kPrompt), 512, kDecodes, choice);
  ExpectSameLogits(
      tests::MirroredFromTheDevice(&model, Prompt(kPrompt), choice, kDecodes, 17, OtherPrompt),
      expected);
}

TEST_F(NosaTest, AfterAPrefixHit) {
  for (const AttentionChoice& choice : Choices()) {
    for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
      SCOPED_TRACE(choice.Fingerprint());
      ModelDriver model(Options());
      const Logits expected = model.Complete(Prompt(kPrompt), 512, 20, choice);
      tests::PublishPrompt(&model, Prompt(kPrompt), choice, residency);
      model.Complete(Prompt(900, 3), 512, 2, choice, residency);  // over the donor's frames
      for (const int hits : {1, 9, (kPrompt - 1) / 64}) {
        ExpectSameLogits(
            tests::AfterAPrefixHit(&model, Prompt(kPrompt), choice, residency, hits, 20), expected);
      }
    }
  }
}

TEST_F(NosaTest, InABatch) {
  ModelDriver model(Options());
  const std::vector<AttentionChoice> choices = Choices();
  const int batch = 10;
  std::vector<Logits> alone(batch);
  std::vector<ModelDriver::Sequence> sequences;
  const auto prompt = [](int i) { return Prompt(300 + 67 * i, 100 + i); };
  const auto choice = [&](int i) { return choices[i % choices.size()]; };
  for (int i = 0; i < batch; ++i) alone[i] = model.Complete(prompt(i), 512, 6, choice(i));
  for (int i = 0; i < batch; ++i) {
    const Residency residency = i % 3 == 0 ? Residency::kDevice : Residency::kTiered;
    sequences.push_back(model.Start(prompt(i), 6, choice(i), residency));
  }
  const std::vector<Logits> together = tests::StepTogether(&model, &sequences, 6, 1100);
  for (int i = 0; i < batch; ++i) {
    SCOPED_TRACE(testing::Message() << "sequence " << i << " " << choice(i).Fingerprint());
    ExpectSameLogits(together[i], alone[i]);
  }
}

// The runner for devices: on the CPU the bits of the CPU's own, on a device close to them; and in
// itself the same bits wherever KV lies, saved and resumed, and after a prefix hit.
TEST_F(NosaTest, OnADevice) {
  for (const tests::DriverBackend backend : tests::DriverBackendsHere()) {
    if (backend == tests::DriverBackend::kCpu) continue;
    ModelDriverOptions options = Options();
    options.backend = backend;
    for (const AttentionChoice& choice :
         {Choice(AttentionPolicy::kForecast, AttentionPolicy::kForecast),
          Choice(AttentionPolicy::kSparse, AttentionPolicy::kSparse),
          Choice(AttentionPolicy::kDense, AttentionPolicy::kDense)}) {
      SCOPED_TRACE(std::string(tests::NameOf(backend)) + " " + choice.Fingerprint());
      ModelDriver model(options);
      const Logits expected = model.Complete(Prompt(kPrompt), 512, 25, choice);
      if (backend == tests::DriverBackend::kCpuAsDevice) {
        ModelDriver host(Options());
        ExpectSameLogits(host.Complete(Prompt(kPrompt), 512, 25, choice), expected);
      }
      ExpectSameLogits(model.Complete(Prompt(kPrompt), 64, 25, choice, Residency::kTiered),
                       expected);
      if (choice.decode == AttentionPolicy::kSparse) continue;
      ExpectSameLogits(tests::SavedAndResumed(&model, Prompt(kPrompt), choice, 25, 9, OtherPrompt),
                       expected);
      for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
        ModelDriver hit(options);
        tests::PublishPrompt(&hit, Prompt(kPrompt), choice, residency);
        hit.Complete(Prompt(900, 3), 512, 2, choice, residency);  // over the donor's frames
        ExpectSameLogits(tests::AfterAPrefixHit(&hit, Prompt(kPrompt), choice, residency, 9, 25),
                         expected);
      }
    }
  }
}

// A float32 model and KV, whose choices rounding does not change.
TEST_F(NosaTest, ADeviceIsCloseToTheCpu) {
  constexpr double kDeviceTolerance = 1e-3;  // of the largest |logit|
  for (const tests::DriverBackend backend : tests::DriverBackendsHere()) {
    if (backend != tests::DriverBackend::kCuda) continue;
    ModelDriverOptions options = Options(scratch_.path(), kernels::DType::kF32);
    ModelDriver host(options);
    options.backend = backend;
    ModelDriver device(options);
    for (const AttentionPolicy policy : {AttentionPolicy::kDense, AttentionPolicy::kSparse}) {
      const AttentionChoice choice = Choice(policy, policy);
      const Logits expected = host.Complete(Prompt(600), 512, 6, choice);
      const Logits found = device.Complete(Prompt(600), 512, 6, choice);
      for (size_t row = 0; row < found.size(); ++row) {
        double worst = 0;
        for (size_t i = 0; i < found[row].size(); ++i) {
          worst = std::max(worst, std::abs(double(found[row][i]) - expected[row][i]));
        }
        EXPECT_LT(worst, kDeviceTolerance * LargestOf(expected)) << NameOf(policy) << " " << row;
      }
    }
  }
}

TEST_F(NosaTest, FramesOfBiasesAreCounted) {
  // The 8B shape: a frame of 2 MiB holds the biases of 96 blocks.
  const memory::KvLayout layout = memory::MakeKvLayout(32, 2, 128, 2, /*biases=*/true);
  EXPECT_EQ(layout.bias_frame_blocks(), 96);
  EXPECT_EQ(layout.host_block_bytes(), (2 << 20) + (64 << 10) + 64 * (64 + 4) * 4u);
  const memory::KvDemand dense{.residency = Residency::kDevice};
  EXPECT_EQ(memory::FootprintOf(layout, dense, 96).bias_frames, 1);
  EXPECT_EQ(memory::FootprintOf(layout, dense, 97).frames(), 97 + 2);
  const memory::KvDemand tiered{.residency = Residency::kTiered, .selects = true, .num_slots = 96};
  EXPECT_EQ(memory::FootprintOf(layout, tiered, 2048).frames(), 221 + 22);
  EXPECT_NE(memory::DescribeFootprint(layout, tiered, 2048).find("22 for eviction biases"),
            std::string::npos);
  EXPECT_EQ(memory::FootprintOf(memory::MakeKvLayout(32, 2, 128, 2), tiered, 2048).frames(), 221);
  // A page of 16 channels in bfloat16 is too small.
  EXPECT_EQ(memory::MakeKvLayout(3, 2, 16, 2, true).bias_frame_blocks(), 0);
}

TEST_F(NosaTest, WhatCannotBeServedIsRefusedByName) {
  const auto backend = kernels::MakeCpuBackend({.num_threads = 1});
  const memory::SteadyClock clock;
  ModelOptions options{.folder = scratch_.path(), .max_context = 0, .kv = {}, .attention = {}};
  options.kv.device_bytes = 64 << 20;
  const auto error = [&] {
    return std::string(LoadModel(backend.get(), &clock, options).status().message());
  };
  EXPECT_EQ(error(), "");
  EXPECT_EQ(LoadModel(backend.get(), &clock, options)->info.family, "nosa");
  options.attention.infinigen_basis = "basis";
  EXPECT_NE(error().find("infinigen is not offered for family nosa"), std::string::npos) << error();
  options.attention.infinigen_basis = "";

  const std::string path = scratch_.path() + "/config.json";
  const auto good = nlohmann::json::parse(tests::ReadWhole(path));
  const auto with = [&](const char* key, const nlohmann::json& value) {
    auto config = good;
    config[key] = value;
    tests::WriteWhole(path, config.dump());
    return error();
  };
  for (const char* key : {"sparse_config", "window_size", "topk", "use_nope", "sliding_window"}) {
    EXPECT_NE(with(key, 7).find(key), std::string::npos) << key;
  }
  EXPECT_NE(with("query_top_k_blocks", 0).find("query_top_k_blocks"), std::string::npos);
  EXPECT_NE(with("attention_bias", true).find("bias"), std::string::npos);

  // Public checkpoints call themselves llama.
  auto config = good;
  config["model_type"] = "llama";
  config["architectures"] = {"SparseLlamaForCausalLM"};
  config.erase("query_top_k_blocks");
  tests::WriteWhole(path, config.dump());
  const auto loaded = LoadModelConfig(scratch_.path());
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->family, "nosa");
  EXPECT_EQ(loaded->query_top_k_blocks, 41);

  const std::string weights = scratch_.path() + "/model.safetensors";
  TensorMap tensors = tests::ReadTensors(weights);
  tensors.erase("model.layers.1.self_attn.A");
  tests::WriteTensors(weights, tensors);
  EXPECT_NE(error().find("model.layers.1.self_attn.A"), std::string::npos) << error();
}

}  // namespace
}  // namespace augur::engine
