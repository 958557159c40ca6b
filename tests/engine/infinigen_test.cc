// The policy infinigen against a slow plain reference in double, and the promise that a row depends
// on itself alone: whole, in chunks, in a batch, tiered or not, prefetched or not, saved and
// resumed, computed again.
#include "engine/attention/infinigen.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "engine/batcher.h"
#include "engine/calibration/infinigen_calibration.h"
#include "engine/model/model_loader.h"
#include "engine/model/transformer_runner.h"
#include "engine/pool_fit.h"
#include "kernels/backend.h"
#include "memory/base/clock.h"
#include "tests/support/checkpoint_writer.h"

namespace augur::engine {
namespace {

using memory::Residency;
using memory::SequenceId;
using tests::ScratchFolder;
using tests::TensorMap;

constexpr int kContext = 1024;
constexpr kernels::SelectionBudget kBudget{.top_k = 5, .init = 1, .local = 2};

std::string GoldenFolder() { return std::string(AUGUR_SOURCE_DIR) + "/tests/golden/models/llama"; }

AttentionChoice Infinigen(const kernels::SelectionBudget& budget = kBudget) {
  return {
      .prefill = AttentionPolicy::kSparse, .decode = AttentionPolicy::kInfinigen, .budget = budget};
}

// A prompt that repeats itself here and there, so that some blocks matter more than others.
std::vector<TokenId> MakePrompt(int length, int seed) {
  std::vector<TokenId> tokens;
  uint32_t state = seed;
  for (int i = 0; i < length; ++i) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back(i % 7 == 3 && i > 40 ? tokens[i - 37] : 3 + (state >> 16) % 380);
  }
  return tokens;
}

// Inputs, q and k of all layers and positions, of runs of one sequence.
class Recorder final : public AttentionObserver {
 public:
  explicit Recorder(const ModelConfig& config) : config_(config), layers(config.num_layers) {}
  void Observe(int layer, int rows, const float* qkv, int row_stride, const float* input) override {
    for (int row = 0; row < rows; ++row) {
      const float* q = qkv + size_t(row) * row_stride;
      const float* in = input + size_t(row) * config_.hidden_size;
      layers[layer].push_back(
          {{in, in + config_.hidden_size},
           {q, q + config_.q_width()},
           {q + config_.q_width(), q + config_.q_width() + config_.kv_width()}});
    }
  }

  struct Token {
    std::vector<float> input, q, k;
  };

 private:
  const ModelConfig config_;

 public:
  std::vector<std::vector<Token>> layers;  // [layers][positions]
};

// A loaded model and sequences on it, driven step by step.
class Machine {
 public:
  struct Options {
    Residency residency = Residency::kDevice;
    bool prefetch = true;
    bool host = false;  // a host pool although residency is kDevice
    int threads = 1;
    bool fp8 = false;  // host pages
  };

  Machine(const std::string& folder, const std::string& basis, const Options& options)
      : options_(options), backend_(kernels::MakeCpuBackend({.num_threads = options.threads})) {
    const bool host = options.host || options.residency == Residency::kTiered;
    ModelOptions model;
    model.folder = folder;
    model.kv.residency = host ? ResidencyMode::kAuto : ResidencyMode::kDevice;
    model.kv.device_bytes = 16 << 20;
    model.kv.host_bytes = host ? 16 << 20 : 0;
    model.kv.host_fp8 = options.fp8;
    model.kv.prefetch = options.prefetch;
    model.kv.staging_blocks = 32;
    model.kv.recall_every = 0;
    model.attention.top_k_blocks = 20;
    model.attention.spare_slots = 1;
    model.attention.infinigen_basis = basis;
    model.max_batch = 4;
    model.max_batched_tokens = 1024;
    absl::StatusOr<LoadedModel> loaded = LoadModel(backend_.get(), &clock_, model);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    model_ = *std::move(loaded);
  }

  TransformerRunner& runner() { return static_cast<TransformerRunner&>(*model_.runner); }
  memory::KvStore& store() { return *model_.kv->store(); }
  memory::SequenceKv& kv(SequenceId id) { return store().sequence(id); }

  void Open(SequenceId id, const AttentionChoice& choice, std::vector<TokenId> prompt,
            int num_slots = 6) {
    const int most = kContext / kernels::kBlockTokens;
    memory::KvDemand demand{.residency = options_.residency,
                            .selects = choice.selects(),
                            .num_slots = num_slots,
                            .partial_keys = choice.decode == AttentionPolicy::kInfinigen};
    ASSERT_TRUE(store().Open(
        {.id = id, .demand = demand, .keys = {}, .hits = 0, .blocks = 1, .most_blocks = most}));
    sequences_[id] = {choice, prompt, static_cast<int>(prompt.size()), 0, {}};
  }

  // One step: so many tokens of each sequence. Appends the likeliest token where all are computed,
  // and keeps the logits.
  void Step(const std::vector<std::pair<SequenceId, int>>& parts) {
    std::vector<int32_t> ids;
    std::vector<StepSegment> segments;
    for (const auto& [id, count] : parts) {
      Sequence& sequence = sequences_.at(id);
      ASSERT_TRUE(store().Extend(id, BlocksFor(sequence.computed + count)));
      StepSegment segment;
      segment.rows = {static_cast<int>(ids.size()), count, sequence.computed};
      segment.kv = &kv(id);
      segment.attention = &sequence.choice;
      segment.prompt_tokens = sequence.prompt;
      segment.wants_token = sequence.computed + count == static_cast<int>(sequence.tokens.size());
      segment.sampling.temperature = 0;
      const auto first = sequence.tokens.begin() + sequence.computed;
      ids.insert(ids.end(), first, first + count);
      segments.push_back(segment);
    }
    StepOutputs outputs;
    runner().Run({.token_ids = ids, .segments = segments}, &outputs);
    store().Poll();
    size_t at = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      Sequence& sequence = sequences_.at(parts[i].first);
      sequence.computed += parts[i].second;
      if (!segments[i].wants_token) continue;
      sequence.tokens.push_back(outputs.tokens[i]);
      const auto logits = runner().logits().subspan(384 * at++, 384);
      sequence.logits.insert(sequence.logits.end(), logits.begin(), logits.end());
    }
    store().CheckInvariants();
  }

  // The rest of the tokens known so far, `chunk` at a time, then single ones.
  void Generate(SequenceId id, int chunk, int tokens) {
    for (int i = 0; i < tokens;) {
      const int rest = Remaining(id);
      Step({{id, std::min(chunk, rest)}});
      i += rest <= chunk ? 1 : 0;
    }
  }
  int Remaining(SequenceId id) const {
    const Sequence& sequence = sequences_.at(id);
    return static_cast<int>(sequence.tokens.size()) - sequence.computed;
  }

  void SaveAndResume(SequenceId id) {
    store().Save(id, sequences_.at(id).computed);
    // What others compute meanwhile overwrites the frames.
    std::memset(store().pools().device, 0xff,
                store().pools().layout.frame_bytes() * store().pools().num_frames);
    ASSERT_TRUE(store().Resume(id, 6));
    store().FinishWarmUp(id);
    EXPECT_EQ(kv(id).partial_tokens, 0);
    store().CheckInvariants();
  }
  // As a preemption without a host pool: everything is computed again.
  void Forget(SequenceId id) {
    Sequence& sequence = sequences_.at(id);
    store().Release(id);
    store().WaitForClosing();
    sequence.computed = 0;
    const std::vector<TokenId> tokens = sequence.tokens;
    const std::vector<float> logits = sequence.logits;
    const int prompt = sequence.prompt;
    Open(id, sequence.choice, tokens);
    sequences_.at(id).prompt = prompt;
    sequences_.at(id).logits = logits;
  }

  const std::vector<float>& logits(SequenceId id) const { return sequences_.at(id).logits; }
  const std::vector<TokenId>& tokens(SequenceId id) const { return sequences_.at(id).tokens; }
  const std::vector<int32_t>& channels(SequenceId id) { return kv(id).channels; }

 private:
  struct Sequence {
    AttentionChoice choice;
    std::vector<TokenId> tokens;
    int prompt = 0;
    int computed = 0;
    std::vector<float> logits;  // of every token generated
  };

  const Options options_;
  const memory::SteadyClock clock_;
  std::unique_ptr<kernels::Backend> backend_;
  LoadedModel model_;
  std::map<SequenceId, Sequence> sequences_;
};

class InfinigenTest : public testing::Test {
 protected:
  void SetUp() override {
    nlohmann::json config =
        nlohmann::json::parse(tests::ReadWhole(GoldenFolder() + "/config.json"));
    config["max_position_embeddings"] = kContext;
    tests::WriteWhole(folder() + "/config.json", config.dump());
    tensors_ = tests::ReadTensors(GoldenFolder() + "/model.safetensors");
    tests::WriteTensors(folder() + "/model.safetensors", tensors_);
    config_ = *LoadModelConfig(folder());
    QueryMoments moments(config_);
    {
      Machine machine(folder(), "", {});
      machine.runner().set_observer(&moments);
      machine.Open(1, {}, MakePrompt(256, 77));
      machine.Generate(1, 256, 1);
    }
    basis_ = moments.Solve();
    ASSERT_TRUE(WriteInfinigenBasis(basis_, config_, basis_file()).ok());
  }
  std::string folder() const { return scratch_.path(); }
  std::string basis_file() const { return scratch_.path() + "/basis.safetensors"; }

  double Basis(int layer, int kv_head, int row, int column) const {
    const size_t d = config_.head_dim;
    return basis_.layers[layer][(kv_head * d + row) * d + column];
  }
  std::vector<int32_t> PlainChannels(const Recorder& recorded, int layer, int kv_head,
                                     int prompt) const;
  std::vector<double> PlainScores(const Recorder& recorded, int layer, int kv_head, int position,
                                  const std::vector<int32_t>& channels) const;
  void ExpectPlainChoice(const Recorder& recorded, const Machine& machine, int layer, int kv_head,
                         int position, const std::vector<double>& scores);

  ScratchFolder scratch_;
  TensorMap tensors_;
  ModelConfig config_;
  InfinigenBasis basis_;
};

// The quarter of channels with the largest sum of |q A| over the prompt's tokens and the group.
std::vector<int32_t> InfinigenTest::PlainChannels(const Recorder& recorded, int layer, int kv_head,
                                                  int prompt) const {
  const int d = config_.head_dim, group = config_.num_q_heads / config_.num_kv_heads;
  std::vector<double> sums(d);
  for (int t = 0; t < prompt; ++t) {
    for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      for (int c = 0; c < d; ++c) {
        double product = 0;
        for (int i = 0; i < d; ++i) {
          product +=
              double{recorded.layers[layer][t].q[head * d + i]} * Basis(layer, kv_head, i, c);
        }
        sums[c] += std::abs(product);
      }
    }
  }
  std::vector<int32_t> order(d);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return sums[a] > sums[b]; });
  order.resize(d / 4);
  std::sort(order.begin(), order.end());
  return order;
}

// Of every block: the largest product of the approximated query, heads turned one by one and then
// summed, with partial keys.
std::vector<double> InfinigenTest::PlainScores(const Recorder& recorded, int layer, int kv_head,
                                               int position,
                                               const std::vector<int32_t>& channels) const {
  const int d = config_.head_dim, group = config_.num_q_heads / config_.num_kv_heads;
  const std::string& bytes =
      tensors_.at("model.layers." + std::to_string(layer) + ".self_attn.q_proj.weight").bytes;
  std::vector<float> weight(bytes.size() / sizeof(float));
  std::memcpy(weight.data(), bytes.data(), bytes.size());
  const std::vector<float>& input = recorded.layers[layer - 1][position].input;
  std::vector<double> q(d);
  for (int head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    std::vector<double> plain(d);
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < config_.hidden_size; ++j) {
        plain[i] += double{weight[size_t(head * d + i) * config_.hidden_size + j]} * input[j];
      }
    }
    for (int i = 0; i < d / 2; ++i) {
      const double angle = position * std::pow(config_.rope.theta, -2.0 * i / d);
      q[i] += plain[i] * std::cos(angle) - plain[i + d / 2] * std::sin(angle);
      q[i + d / 2] += plain[i + d / 2] * std::cos(angle) + plain[i] * std::sin(angle);
    }
  }
  std::vector<double> scores(position / 64 + 1, -std::numeric_limits<double>::infinity());
  for (int t = 0; t < position; ++t) {
    const std::vector<float>& k = recorded.layers[layer][t].k;
    double score = 0;
    for (const int32_t c : channels) {
      double partial_q = 0, partial_k = 0;
      for (int i = 0; i < d; ++i) {
        partial_q += q[i] * Basis(layer, kv_head, i, c);
        partial_k += double{k[kv_head * d + i]} * Basis(layer, kv_head, i, c);
      }
      score += partial_q * partial_k;
    }
    // Block b pools tokens 64 b - 1 to 64 b + 63.
    scores[t / 64] = std::max(scores[t / 64], score);
    if (t % 64 == 63 && t / 64 + 1 < static_cast<int>(scores.size())) {
      scores[t / 64 + 1] = std::max(scores[t / 64 + 1], score);
    }
  }
  return scores;
}

// The policy's blocks are the best by the plain scores, to rounding.
void InfinigenTest::ExpectPlainChoice(const Recorder&, const Machine& machine, int layer,
                                      int kv_head, int position,
                                      const std::vector<double>& scores) {
  const std::span<const int32_t> chosen =
      const_cast<Machine&>(machine).runner().layer_worker().chosen(layer, 0, kv_head);
  const int blocks = position / 64 + 1;
  ASSERT_EQ(static_cast<int>(chosen.size()), std::min(blocks, kBudget.top_k));
  ASSERT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
  std::vector<double> candidates(scores.begin() + kBudget.init, scores.end() - kBudget.local);
  std::sort(candidates.begin(), candidates.end(), std::greater<>());
  const double worst = candidates[kBudget.top_k - kBudget.init - kBudget.local - 1];
  int forced = 0;
  for (const int32_t block : chosen) {
    if (block < kBudget.init || block >= blocks - kBudget.local) {
      ++forced;
      continue;
    }
    EXPECT_GE(scores[block], worst - 1e-6 * std::abs(worst)) << "block " << block;
  }
  EXPECT_EQ(forced, kBudget.init + kBudget.local);
}

TEST_F(InfinigenTest, TheChoiceIsThatOfAPlainReference) {
  int distinct = 0;
  for (const int length : {383, 384, 385, 399, 400, 401, 447, 448, 449, 463, 464, 465}) {
    SCOPED_TRACE(length);
    Machine machine(folder(), basis_file(), {});
    Recorder recorded(config_);
    machine.runner().set_observer(&recorded);
    machine.Open(1, Infinigen(), MakePrompt(length, length));
    machine.Generate(1, 128, 1);
    for (int step = 0; step < 3; ++step) {
      machine.Step({{1, 1}});
      for (int layer = 1; layer < config_.num_layers; ++layer) {
        for (int head = 0; head < config_.num_kv_heads; ++head) {
          const std::vector<int32_t> channels = PlainChannels(recorded, layer, head, length);
          const auto kept = machine.channels(1).begin() + (layer * 2 + head) * 4;
          EXPECT_EQ(channels, std::vector<int32_t>(kept, kept + 4));
          ExpectPlainChoice(recorded, machine, layer, head, length + step,
                            PlainScores(recorded, layer, head, length + step, channels));
          distinct += machine.runner().layer_worker().chosen(layer, 0, head)[1] != 1 ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(distinct, 20);  // the choices are not all the same
}

// Logits of `tokens` generated tokens after a prompt that was computed in chunks of `chunk`.
std::vector<float> Logits(Machine* machine, int chunk, int tokens) {
  machine->Open(1, Infinigen(), MakePrompt(450, 5));
  machine->Generate(1, chunk, tokens);
  return machine->logits(1);
}

TEST_F(InfinigenTest, TheSameBitsInAnyChunksAndResidency) {
  constexpr int kTokens = 80;  // across a block edge
  Machine whole(folder(), basis_file(), {});
  const std::vector<float> expected = Logits(&whole, 512, kTokens);
  for (const int chunk : {64, 128}) {
    Machine machine(folder(), basis_file(), {.threads = 2});
    EXPECT_EQ(Logits(&machine, chunk, kTokens), expected) << chunk;
    EXPECT_EQ(machine.channels(1), whole.channels(1));
    EXPECT_EQ(machine.kv(1).channel_sums, whole.kv(1).channel_sums);
  }
  for (const bool prefetch : {true, false}) {
    for (const int chunk : {512, 64}) {
      Machine machine(folder(), basis_file(),
                      {.residency = Residency::kTiered, .prefetch = prefetch});
      EXPECT_EQ(Logits(&machine, chunk, kTokens), expected) << chunk << prefetch;
    }
  }
  // The choice matters: another policy's bits differ.
  Machine other(folder(), basis_file(), {});
  other.Open(
      1,
      {.prefill = AttentionPolicy::kSparse, .decode = AttentionPolicy::kSparse, .budget = kBudget},
      MakePrompt(450, 5));
  other.Generate(1, 512, kTokens);
  EXPECT_NE(other.logits(1), expected);
}

TEST_F(InfinigenTest, TheSameBitsInABatch) {
  Machine alone(folder(), basis_file(), {});
  const std::vector<float> expected = Logits(&alone, 512, 24);
  for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
    Machine machine(folder(), basis_file(), {.residency = residency});
    machine.Open(7, {}, MakePrompt(100, 8));
    machine.Open(8, Infinigen(), MakePrompt(400, 9));
    machine.Open(1, Infinigen(), MakePrompt(450, 5));
    machine.Step({{7, 64}, {1, 64}});
    machine.Step({{7, 36}, {8, 256}, {1, 320}});
    machine.Step({{8, 144}, {7, 1}, {1, 66}});
    for (int i = 0; i < 23; ++i) machine.Step({{8, 1}, {7, 1}, {1, 1}});
    EXPECT_EQ(machine.logits(1), expected);
  }
}

TEST_F(InfinigenTest, ABudgetOfAllBlocksIsDense) {
  constexpr int kBlocks = 8;  // of 450 + 20 tokens
  Machine dense(folder(), "", {});
  dense.Open(1, {}, MakePrompt(450, 5));
  dense.Generate(1, 512, 20);
  for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
    Machine machine(folder(), basis_file(), {.residency = residency});
    machine.Open(1, Infinigen({.top_k = 20, .init = 1, .local = 2}), MakePrompt(450, 5), 20);
    machine.Generate(1, 512, 20);
    EXPECT_EQ(machine.logits(1), dense.logits(1));
    for (int layer = 1; layer < config_.num_layers; ++layer) {
      EXPECT_EQ(machine.runner().layer_worker().chosen(layer, 0, 1).size(), kBlocks);
    }
  }
}

TEST_F(InfinigenTest, PreemptedSequencesGoOnWithTheSameBits) {
  constexpr int kTokens = 30;
  Machine straight(folder(), basis_file(), {});
  straight.Open(1, Infinigen(), MakePrompt(450, 5));
  straight.Generate(1, 512, 1);
  const std::vector<float> sums = straight.kv(1).channel_sums;
  straight.Generate(1, 1, kTokens - 1);
  EXPECT_EQ(straight.kv(1).channel_sums, sums);  // of the prompt alone
  const std::vector<float> expected = straight.logits(1);
  {  // saved in the prompt, in decode, twice without a step between
    Machine machine(folder(), basis_file(), {.residency = Residency::kTiered});
    machine.Open(1, Infinigen(), MakePrompt(450, 5));
    machine.Step({{1, 192}});
    machine.SaveAndResume(1);
    machine.Generate(1, 512, 1);
    machine.SaveAndResume(1);
    machine.Generate(1, 1, 10);
    machine.SaveAndResume(1);
    machine.SaveAndResume(1);
    machine.Generate(1, 1, kTokens - 11);
    EXPECT_EQ(machine.logits(1), expected);
  }
  {  // partial keys made again of fp8 pages are those of the rounded rows
    std::vector<std::vector<float>> found;
    for (const bool saved : {false, true}) {
      Machine machine(folder(), basis_file(),
                      {.residency = saved ? Residency::kTiered : Residency::kDevice,
                       .host = true,
                       .fp8 = true});
      machine.Open(1, Infinigen(), MakePrompt(450, 5));
      machine.Generate(1, 512, 1);
      if (saved) machine.SaveAndResume(1);
      machine.Generate(1, 1, 10);
      found.push_back(machine.logits(1));
    }
    EXPECT_EQ(found[1], found[0]);
    EXPECT_NE(found[0], expected);
  }
  {  // from the device to the tiers
    Machine machine(folder(), basis_file(), {.host = true});
    machine.Open(1, Infinigen(), MakePrompt(450, 5));
    machine.Generate(1, 512, 9);
    ASSERT_TRUE(machine.store().BeginMirror(1, kContext / 64));
    machine.Generate(1, 1, 3);
    machine.SaveAndResume(1);
    machine.Generate(1, 1, kTokens - 12);
    EXPECT_EQ(machine.logits(1), expected);
  }
  for (const int chunk : {512, 128}) {  // all computed again: chunks across the prompt's end
    Machine machine(folder(), basis_file(), {});
    machine.Open(1, Infinigen(), MakePrompt(450, 5));
    machine.Generate(1, 512, 12);
    machine.Forget(1);
    machine.Generate(1, chunk, kTokens - 12);
    EXPECT_EQ(machine.logits(1), expected) << chunk;
    EXPECT_EQ(machine.kv(1).channel_sums, sums);
  }
}

// A policy that is dense below a length switches in the middle of a generation.
TEST_F(InfinigenTest, PartialKeysAreKeptWhileTheSequenceIsShort) {
  AttentionChoice choice = Infinigen();
  choice.dense_len = 460;
  std::vector<std::vector<float>> logits;
  for (const Residency residency : {Residency::kDevice, Residency::kTiered}) {
    Machine machine(folder(), basis_file(), {.residency = residency});
    machine.Open(1, choice, MakePrompt(450, 5));
    machine.Generate(1, 512, 30);
    logits.push_back(machine.logits(1));
    EXPECT_EQ(machine.runner().layer_worker().chosen(2, 0, 0).size(), kBudget.top_k);
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST_F(InfinigenTest, EightBlocksOfPartialKeysTakeAFrame) {
  const memory::KvLayout layout = memory::MakeKvLayout(3, 2, 16, 2);
  EXPECT_EQ(layout.partial_bytes(), 64u * 4 * 2);
  memory::KvDemand demand{.selects = true, .partial_keys = true};
  for (const auto& [blocks, frames] : {std::pair{1, 1}, {8, 1}, {9, 2}, {128, 16}}) {
    EXPECT_EQ(memory::FootprintOf(layout, demand, blocks).partial_frames, frames);
  }
  EXPECT_NE(memory::DescribeFootprint(layout, demand, 128).find("16 for partial keys"),
            std::string::npos);
  demand.partial_keys = false;
  EXPECT_EQ(memory::FootprintOf(layout, demand, 128).partial_frames, 0);
  Request request;
  request.attention = Infinigen();
  EXPECT_TRUE(DemandOf(request, {}, Residency::kDevice).partial_keys);
  request.attention.decode = AttentionPolicy::kSparse;
  EXPECT_FALSE(DemandOf(request, {}, Residency::kDevice).partial_keys);
}

TEST_F(InfinigenTest, AWrongFileIsRefusedByName) {
  const TensorMap good = tests::ReadTensors(basis_file());
  const auto expect_refused = [&](const TensorMap& tensors, const std::vector<std::string>& words) {
    tests::WriteTensors(basis_file(), tensors);
    const auto loaded = LoadInfinigenBasis(basis_file(), config_);
    ASSERT_FALSE(loaded.ok());
    const std::string message(loaded.status().message());
    EXPECT_EQ(message.find('\n'), std::string::npos);
    for (const std::string& word : words) {
      EXPECT_NE(message.find(word), std::string::npos) << word << " in: " << message;
    }
  };
  EXPECT_TRUE(LoadInfinigenBasis(basis_file(), config_).ok());
  TensorMap bad = good;
  bad.at("layers.1.basis").shape = {2, 8, 32};
  expect_refused(bad, {"basis.safetensors", "layers.1.basis", "16", "32"});
  bad = good;
  bad.erase("layers.2.basis");
  expect_refused(bad, {"basis.safetensors", "layers.2.basis", "none"});
  expect_refused(tests::Convert(good, "BF16"), {"layers.0.basis", "float32", "bfloat16"});
  bad = good;
  bad.at("layers.0.basis").bytes[3] = '\x7f';
  bad.at("layers.0.basis").bytes[2] = '\xff';
  expect_refused(bad, {"layers.0.basis", "finite"});
  tests::WriteTensors(basis_file(), good);
  ModelConfig narrow = config_;
  narrow.head_dim = 12;
  const absl::Status status = LoadInfinigenBasis(basis_file(), narrow).status();
  EXPECT_NE(status.message().find("multiple of 8"), std::string::npos) << status;
}

TEST_F(InfinigenTest, TheBasisIsOrthogonalAndKeepsProducts) {
  const int d = config_.head_dim;
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    for (int head = 0; head < config_.num_kv_heads; ++head) {
      for (int i = 0; i < d; ++i) {
        for (int j = 0; j < d; ++j) {
          double product = 0;  // (A AT)[i][j]: then (q A) . (k A) = q . k for all q and k
          for (int c = 0; c < d; ++c) {
            product += Basis(layer, head, i, c) * Basis(layer, head, j, c);
          }
          EXPECT_NEAR(product, i == j ? 1.0 : 0.0, 1e-5);
        }
      }
    }
  }
}

// Queries along known directions with known strengths: these are the columns, strongest first.
TEST(QueryMomentsTest, ColumnsAreTheDirectionsOfTheMeanQueries) {
  ModelConfig config;
  config.num_layers = 1;
  config.num_q_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 8;
  QueryMoments moments(config);
  for (int i = 0; i < 8; ++i) {
    std::vector<float> qkv(32);
    // The heads differ; their mean is (i + 1) times direction (3 i) % 8.
    qkv[3 * i % 8] = 2.0f * (i + 1) + 5.0f;
    qkv[8 + 3 * i % 8] = -5.0f;
    moments.Observe(0, 1, qkv.data(), 32, nullptr);
  }
  const InfinigenBasis basis = moments.Solve();
  for (int column = 0; column < 8; ++column) {
    for (int d = 0; d < 8; ++d) {
      EXPECT_NEAR(basis.layers[0][d * 8 + column], d == 3 * (7 - column) % 8 ? 1.0 : 0.0, 1e-6);
    }
  }
}

TEST_F(InfinigenTest, WhatCannotBeWrittenLeavesTheOldFile) {
  const std::string before = tests::ReadWhole(basis_file());
  const std::string missing = folder() + "/nowhere/basis.safetensors";
  const absl::Status status = WriteInfinigenBasis(basis_, config_, missing);
  EXPECT_NE(status.message().find(missing), std::string::npos) << status;
  const std::string taken = folder() + "/taken";  // the new file is complete before it is refused
  std::filesystem::create_directory(taken);
  EXPECT_FALSE(WriteInfinigenBasis(basis_, config_, taken).ok());
  EXPECT_EQ(tests::ReadWhole(basis_file()), before);
  int entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder())) {
    entries += entry.is_regular_file() ? 1 : 0;
  }
  EXPECT_EQ(entries, 3);  // config, weights, basis
}

TEST_F(InfinigenTest, ALimitOfColumnsChangesNoBit) {
  for (const kernels::CpuIsa isa : {kernels::CpuIsa::kGeneric, kernels::CpuIsa::kAuto}) {
    const auto backend = kernels::MakeCpuBackend({.num_threads = 2, .isa = isa});
    constexpr int kOut = 300, kIn = 70;
    std::vector<float> weight(kOut * kIn), x(5 * kIn), bias(kOut), all(5 * kOut);
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = std::sin(0.37f * i);
    for (size_t i = 0; i < x.size(); ++i) x[i] = std::cos(0.91f * i);
    for (int i = 0; i < kOut; ++i) bias[i] = 0.01f * i;
    const auto packed = backend->PackWeight({weight.data(), kernels::DType::kF32, kOut, kIn});
    kernels::LinearParams params{.x = x.data(), .weight = packed.get(), .bias = bias.data()};
    params.y = all.data();
    params.rows = 5;
    params.x_stride = kIn;
    params.y_stride = kOut;
    backend->Linear(params);
    for (const int columns : {1, 31, 32, 33, 100, 300}) {
      std::vector<float> some(5 * columns);
      params.y = some.data();
      params.y_stride = columns;
      params.columns = columns;
      backend->Linear(params);
      for (int row = 0; row < 5; ++row) {
        for (int c = 0; c < columns; ++c) EXPECT_EQ(some[row * columns + c], all[row * kOut + c]);
      }
    }
  }
}

// A sequence may take the whole pool.
TEST_F(InfinigenTest, OpensWithAllFramesOfThePool) {
  Machine machine(folder(), basis_file(), {});
  const int frames = machine.store().available_frames();
  memory::KvDemand demand{.selects = true, .partial_keys = true};
  int blocks = 1;
  while (memory::FootprintOf(machine.store().pools().layout, demand, blocks + 1).frames() <=
         frames) {
    ++blocks;
  }
  EXPECT_TRUE(machine.store().Open(
      {.id = 1, .demand = demand, .keys = {}, .hits = 0, .blocks = blocks, .most_blocks = blocks}));
  machine.store().CheckInvariants();
  machine.store().Release(1);
  EXPECT_EQ(machine.store().available_frames(), frames);
}

}  // namespace
}  // namespace augur::engine
