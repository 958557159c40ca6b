#include "tests/bench/value_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <utility>

#include "engine/batcher.h"
#include "engine/model/model_config.h"
#include "engine/model/model_loader.h"
#include "engine/model/transformer_runner.h"
#include "kernels/check.h"
#include "memory/base/clock.h"

namespace augur::bench {
namespace {

using kernels::kBlockTokens;
using kernels::ValueEstimator;

constexpr int kChunk = 512;

// Keys and values of one (layer, kv head) in blocks, and the queries of the measured tokens.
struct Captured {
  std::vector<float> keys, values;          // [blocks][64][head_dim]
  std::vector<float> sums;                  // [blocks][head_dim], all tokens of the block
  std::vector<std::vector<float>> queries;  // [steps]: [heads][head_dim]
};

class Capture final : public engine::AttentionObserver {
 public:
  Capture(const engine::ModelConfig& config, int max_tokens, int prompt_tokens)
      : config_(config), prompt_(prompt_tokens) {
    const size_t floats =
        size_t(max_tokens + kBlockTokens) / kBlockTokens * kBlockTokens * config.head_dim;
    groups_.resize(size_t(config.num_layers) * config.num_kv_heads);
    for (Captured& group : groups_) {
      group.keys.assign(floats, 0.0f);
      group.values.assign(floats, 0.0f);
    }
  }

  void set_position(int position) { position_ = position; }
  Captured& group(int layer, int kv_head) {
    return groups_[size_t(layer) * config_.num_kv_heads + kv_head];
  }

  void Observe(int layer, int rows, const float* qkv, int row_stride, const float*) override {
    const int dim = config_.head_dim, heads = config_.num_q_heads / config_.num_kv_heads;
    for (int row = 0; row < rows; ++row) {
      const float* q = qkv + size_t(row) * row_stride;
      const float* k = q + config_.q_width();
      const float* v = k + config_.kv_width();
      for (int head = 0; head < config_.num_kv_heads; ++head) {
        Captured& to = group(layer, head);
        const size_t place = size_t(position_ + row) * dim;
        std::copy_n(k + size_t(head) * dim, dim, to.keys.begin() + place);
        std::copy_n(v + size_t(head) * dim, dim, to.values.begin() + place);
        if (position_ + row < prompt_) continue;
        const float* own = q + size_t(head) * heads * dim;
        to.queries.emplace_back(own, own + size_t(heads) * dim);
      }
    }
  }

 private:
  const engine::ModelConfig config_;
  const int prompt_;
  int position_ = 0;
  std::vector<Captured> groups_;
};

struct Tally {
  double error = 0;   // sum of |out - exact|^2
  double signal = 0;  // sum of |exact|^2
  double distinct = 0;
  double draws = 0;
  int calls = 0;
};

// One (layer, kv head): every step's query over all tokens up to its own.
class GroupBench {
 public:
  GroupBench(kernels::Backend* backend, const engine::ModelConfig& config, int layer,
             Captured* captured, int prompt_tokens)
      : backend_(backend),
        captured_(captured),
        layer_(layer),
        dim_(config.head_dim),
        heads_(config.num_q_heads / config.num_kv_heads),
        prompt_(prompt_tokens) {
    const int steps = static_cast<int>(captured->queries.size());
    for (int block = 0; block * kBlockTokens < prompt_ + steps; ++block) {
      const size_t place = size_t(block) * kBlockTokens * dim_;
      keys_.push_back(reinterpret_cast<const std::byte*>(captured->keys.data() + place));
      values_.push_back(reinterpret_cast<const std::byte*>(captured->values.data() + place));
    }
    sums_.assign(keys_.size(), std::vector<float>(dim_, 0.0f));
    for (int step = 0; step < steps; ++step) exact_.push_back(Exact(step));
  }

  void Measure(ValueEstimator estimator, kernels::ValueBudget budget, bool has_sums, int rows,
               uint64_t seed, Tally* tally) {
    std::vector<float> state(kernels::ValueStateFloats(heads_), 0.0f);
    for (std::vector<float>& sum : sums_) std::fill(sum.begin(), sum.end(), 0.0f);
    for (int token = 0; token < prompt_; ++token) AddToSums(token);
    for (size_t step = 0; step < exact_.size(); ++step) {
      const int position = prompt_ + static_cast<int>(step);
      AddToSums(position);
      const int32_t entries = position / kBlockTokens + 1;
      std::vector<const float*> sums;
      for (const std::vector<float>& sum : sums_) sums.push_back(sum.data());
      const kernels::SampledSegment segment{.row = 0,
                                            .position = position,
                                            .keys = keys_.data(),
                                            .values = values_.data(),
                                            .counts = &entries,
                                            .value_sums = has_sums ? sums.data() : nullptr,
                                            .state = state.data(),
                                            .list_stride = static_cast<int>(keys_.size()),
                                            .samples = rows,
                                            .seed = seed};
      kernels::SampledCounts counts;
      std::vector<float> out(size_t(heads_) * dim_);
      backend_->SampledAttention({.q = captured_->queries[step].data(),
                                  .out = out.data(),
                                  .segments = &segment,
                                  .counts = &counts,
                                  .num_segments = 1,
                                  .rows = 1,
                                  .q_stride = heads_ * dim_,
                                  .num_q_heads = heads_,
                                  .num_kv_heads = 1,
                                  .head_dim = dim_,
                                  .dtype = kernels::DType::kF32,
                                  .scale = 1.0f / std::sqrt(static_cast<float>(dim_)),
                                  .layer = layer_,
                                  .estimator = estimator,
                                  .budget = budget});
      backend_->Synchronize();
      for (size_t c = 0; c < out.size(); ++c) {
        const double error = out[c] - exact_[step][c];
        tally->error += error * error;
        tally->signal += exact_[step][c] * exact_[step][c];
      }
      tally->distinct += static_cast<double>(counts.distinct);
      tally->draws += static_cast<double>(counts.draws) / heads_;
      ++tally->calls;
    }
  }

  // Squares of the changes of the base-2 logarithm of a head's normaliser from token to token.
  // Likewise over its anchor (kernels/ops/sampled_attention.h).
  void AddDrift(double* sums, int* count) const {
    for (size_t i = heads_; i < log_norms_.size(); ++i) {
      const double change = log_norms_[i] - log_norms_[i - heads_];
      const double over_anchor = change - (log_anchors_[i] - log_anchors_[i - heads_]);
      sums[0] += change * change;
      sums[1] += over_anchor * over_anchor;
      ++*count;
    }
  }

 private:
  void AddToSums(int token) {
    for (int c = 0; c < dim_; ++c) {
      sums_[token / kBlockTokens][c] += captured_->values[size_t(token) * dim_ + c];
    }
  }

  std::vector<double> Exact(int step) {
    const int tokens = prompt_ + step + 1;
    std::vector<double> out(size_t(heads_) * dim_, 0.0), weights(tokens);
    for (int g = 0; g < heads_; ++g) {
      const float* q = captured_->queries[step].data() + size_t(g) * dim_;
      double sum = 0;
      for (int t = 0; t < tokens; ++t) {
        double score = 0;
        for (int c = 0; c < dim_; ++c)
          score += double{q[c]} * captured_->keys[size_t(t) * dim_ + c];
        sum += weights[t] = std::exp(score / std::sqrt(static_cast<double>(dim_)));
      }
      log_norms_.push_back(std::log2(sum));
      double anchor = 0;
      for (int t = 0; t < tokens; ++t) {
        const int from_end = (tokens - 1) / kBlockTokens - t / kBlockTokens;
        if (t < kBlockTokens || from_end < kernels::kAnchorLast) anchor += weights[t];
      }
      log_anchors_.push_back(std::log2(anchor));
      for (int t = 0; t < tokens; ++t) {
        for (int c = 0; c < dim_; ++c) {
          out[size_t(g) * dim_ + c] += weights[t] / sum * captured_->values[size_t(t) * dim_ + c];
        }
      }
    }
    return out;
  }

  kernels::Backend* const backend_;
  Captured* const captured_;
  const int layer_, dim_, heads_, prompt_;
  std::vector<const std::byte*> keys_, values_;
  std::vector<std::vector<float>> sums_;
  std::vector<std::vector<double>> exact_;
  std::vector<double> log_norms_, log_anchors_;  // [steps][heads]
};

// The prompt in chunks, then greedy tokens.
std::unique_ptr<Capture> RunModel(engine::LoadedModel* model, const engine::ModelConfig& config,
                                  const std::vector<int32_t>& prompt, int steps) {
  const int tokens = static_cast<int>(prompt.size());
  auto capture = std::make_unique<Capture>(config, tokens + steps, tokens);
  auto* runner = dynamic_cast<engine::TransformerRunner*>(model->runner.get());
  AUGUR_CHECK(runner != nullptr);
  runner->set_observer(capture.get());
  const int blocks = engine::BlocksFor(tokens + steps);
  AUGUR_CHECK(model->kv->store()->Open(
      {.id = 1, .demand = {}, .keys = {}, .hits = 0, .blocks = blocks, .most_blocks = blocks}));
  const engine::AttentionChoice dense;
  engine::StepOutputs outputs;
  const auto run = [&](int first, std::vector<int32_t> ids) {
    engine::StepSegment segment;
    segment.rows = {0, static_cast<int>(ids.size()), first};
    segment.kv = &model->kv->store()->sequence(1);
    segment.attention = &dense;
    segment.prompt_tokens = tokens;
    segment.rope_variant = engine::RopeVariantOf(model->info.short_rope_context, tokens + steps);
    segment.wants_token = true;
    segment.sampling.temperature = 0;
    capture->set_position(first);
    runner->Run({.token_ids = ids, .segments = {&segment, 1}}, &outputs);
  };
  for (int first = 0; first < tokens; first += kChunk) {
    const int end = std::min(tokens, first + kChunk);
    run(first, {prompt.begin() + first, prompt.begin() + end});
  }
  for (int step = 0; step < steps; ++step) run(tokens + step, {outputs.tokens[0]});
  runner->set_observer(nullptr);
  return capture;
}

struct Design {
  const char* name;
  ValueEstimator estimator;
  bool has_sums;
  kernels::ValueBudget budget = kernels::ValueBudget::kRows;
};
constexpr Design kDesigns[] = {
    {"iid", ValueEstimator::kIid, false},
    {"stratified", ValueEstimator::kStratified, false},
    {"systematic", ValueEstimator::kSystematic, false},
    {"proportional", ValueEstimator::kProportional, false},
    {"largest_remainder", ValueEstimator::kLargestRemainder, false},
    {"flash", ValueEstimator::kFlash, false},
    {"shared without sums", ValueEstimator::kShared, false},
    {"shared", ValueEstimator::kShared, true},
    {"proportional, draws", ValueEstimator::kProportional, false, kernels::ValueBudget::kDraws},
    {"shared, draws", ValueEstimator::kShared, true, kernels::ValueBudget::kDraws},
};

}  // namespace

bool RunValueBench(kernels::Backend* backend, const BenchContext& context,
                   const ValueBenchOptions& options) {
  const auto config = engine::LoadModelConfig(options.folder);
  const memory::SteadyClock clock;
  engine::ModelOptions model_options;
  model_options.folder = options.folder;
  model_options.kv.dtype = kernels::DType::kF32;
  model_options.kv.device_bytes = int64_t{1} << 30;
  model_options.max_batch = 1;
  model_options.max_batched_tokens = kChunk;
  model_options.attention.prefill = engine::AttentionPolicy::kDense;
  model_options.attention.decode = engine::AttentionPolicy::kDense;
  auto model = engine::LoadModel(backend, &clock, model_options);
  if (!config.ok() || !model.ok() || model->tokenizer == nullptr) {
    std::fprintf(stderr, "augur-bench: %s\n", std::string(model.status().message()).c_str());
    return false;
  }
  std::ostringstream text;
  for (const std::string& path : options.texts) {
    const std::ifstream file(path, std::ios::binary);
    text << file.rdbuf();
  }
  std::vector<int32_t> prompt = model->tokenizer->Encode(text.str(), {});
  if (prompt.empty()) {
    std::fprintf(stderr, "augur-bench: --text: no text to read\n");
    return false;
  }
  prompt.resize(std::min<size_t>(prompt.size(), options.tokens));
  const auto capture = RunModel(&*model, *config, prompt, options.steps);
  std::map<std::pair<std::string, int>, Tally> tallies;
  double drifts_squared[2] = {};
  int drifts = 0;
  for (int layer = 0; layer < config->num_layers; ++layer) {
    for (int head = 0; head < config->num_kv_heads; ++head) {
      GroupBench group(backend, *config, layer, &capture->group(layer, head),
                       static_cast<int>(prompt.size()));
      group.AddDrift(drifts_squared, &drifts);
      for (const int rows : options.rows) {
        for (const Design& design : kDesigns) {
          group.Measure(design.estimator, design.budget, design.has_sums, rows, options.seed,
                        &tallies[{design.name, rows}]);
        }
      }
    }
  }
  BenchRecord(context, "values_drift")
      .Add("tokens", static_cast<int64_t>(prompt.size()))
      .Add("log2_norm_change_rms", std::sqrt(drifts_squared[0] / std::max(1, drifts)))
      .Add("over_anchor_rms", std::sqrt(drifts_squared[1] / std::max(1, drifts)))
      .Print();
  for (const auto& [key, tally] : tallies) {
    BenchRecord(context, "values")
        .Add("estimator", key.first)
        .Add("rows", static_cast<int64_t>(key.second))
        .Add("relative_mse", tally.error / tally.signal)
        .Add("distinct_rows", tally.distinct / tally.calls)
        .Add("draws", tally.draws / tally.calls)
        .Print();
  }
  return true;
}

}  // namespace augur::bench
