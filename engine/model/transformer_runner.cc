#include "engine/model/transformer_runner.h"

#include <utility>

#include "kernels/check.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

int QkvStride(const ModelConfig& config, bool has_forecast) {
  return config.q_width() + (has_forecast ? 4 : 2) * config.kv_width();
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransformerRunner>> TransformerRunner::Create(
    kernels::Backend* backend, const ModelConfig& config, TransformerWeights weights,
    const TransformerRunnerOptions& options, memory::KvMemory* kv, const memory::Clock* clock) {
  AUGUR_CHECK(!backend->IsDevice());
  std::unique_ptr<TransformerRunner> runner(new TransformerRunner(backend, config, options));
  AUGUR_ASSIGN_OR_RETURN(
      runner->layers_,
      TransformerLayers::Create(backend, config, std::move(weights),
                                {.max_rows = options.max_rows,
                                 .max_sampled = options.max_segments,
                                 .max_context = options.max_context,
                                 .qkv_stride = QkvStride(config, options.has_forecast)}));
  AUGUR_ASSIGN_OR_RETURN(
      runner->layer_worker_,
      LayerWorker::Create(backend, runner->AttentionOptions(), kv->store(), kv->stats(), clock));
  AUGUR_ASSIGN_OR_RETURN(runner->rules_state_,
                         LogitState::Create(backend, options.max_segments, config.vocab_size));
  return runner;
}

LayerWorkerOptions TransformerRunner::AttentionOptions() const {
  const TransformerWeights& weights = layers_->weights();
  return {.num_layers = config_.num_layers,
          .num_q_heads = config_.num_q_heads,
          .num_kv_heads = config_.num_kv_heads,
          .head_dim = config_.head_dim,
          .kv_dtype = options_.kv_dtype,
          .has_forecast = options_.has_forecast,
          .max_rows = options_.max_rows,
          .max_segments = options_.max_segments,
          .max_context = options_.max_context,
          .max_top_k = options_.max_top_k,
          .fetch_blocks = options_.staging_blocks,
          .prefetch = options_.prefetch,
          .recall_every = options_.recall_every,
          .compute_threads = options_.compute_threads,
          .attention_scale = config_.attention_scale(),
          .rope = layers_->rope(),
          .head_norms = config_.has_head_norms ? std::span<const LayerWeights>(weights.layers)
                                               : std::span<const LayerWeights>(),
          .head_norm_epsilon = static_cast<float>(config_.rms_norm_epsilon),
          .infinigen = {.basis = weights.infinigen ? &*weights.infinigen : nullptr,
                        .weights = weights.layers,
                        .hidden_size = config_.hidden_size},
          .eviction = {.weights = config_.has_eviction_heads
                                      ? std::span<const LayerWeights>(weights.layers)
                                      : std::span<const LayerWeights>(),
                       .query_top_k = config_.query_top_k_blocks},
          .values = options_.values};
}

TransformerRunner::TransformerRunner(kernels::Backend* backend, const ModelConfig& config,
                                     const TransformerRunnerOptions& options)
    : backend_(backend), config_(config), options_(options) {
  sampled_rows_.reserve(options.max_segments);
  sampling_.reserve(options.max_segments);
  rules_.reserve(options.max_segments);
  sampled_.reserve(options.max_segments);
}

TransformerRunner::~TransformerRunner() { backend_->Synchronize(); }

void TransformerRunner::Run(const StepInputs& inputs, StepOutputs* outputs) {
  const int rows = static_cast<int>(inputs.token_ids.size());
  AUGUR_CHECK(rows > 0 && rows <= options_.max_rows);
  AUGUR_CHECK(static_cast<int>(inputs.segments.size()) <= options_.max_segments);
  int covered = 0;
  for (const StepSegment& segment : inputs.segments) {
    AUGUR_CHECK(segment.rows.first_row == covered && segment.rows.num_rows > 0);
    AUGUR_CHECK(segment.rows.first_position + segment.rows.num_rows <=
                layers_->rope().covers[segment.rope_variant]);
    covered += segment.rows.num_rows;
  }
  AUGUR_CHECK(covered == rows);

  const RowPhases phases{.decode_rows = 0, .rows = rows};  // one algorithm here for both
  layers_->Embed(backend_, inputs.token_ids.data(), rows);
  layer_worker_->BeginStep(inputs.segments, rows);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    layers_->ProjectQkv(backend_, layer, phases);
    layer_worker_->RunLayer(layer, layers_->qkv(), static_cast<float*>(layers_->attended()),
                            static_cast<const float*>(layers_->normed()));
    layers_->AddAttended(backend_, layer, phases);
    layers_->AddMlp(backend_, layer, phases);
  }
  layer_worker_->EndStep();
  RunHead(inputs, outputs);
}

void TransformerRunner::RunHead(const StepInputs& inputs, StepOutputs* outputs) {
  sampled_rows_.clear();
  sampling_.clear();
  rules_.clear();
  top_.clear();
  for (const StepSegment& segment : inputs.segments) {
    if (!segment.wants_token) continue;
    sampled_rows_.push_back(segment.rows.first_row + segment.rows.num_rows - 1);
    sampling_.push_back(segment.sampling);
    rules_.push_back(rules_state_->Prepare(segment));
    top_.push_back(segment.logprobs);
  }
  TellPrompts(inputs, outputs);
  logprobs_.clear();
  if (!sampled_rows_.empty()) Sample(inputs);
  backend_->Synchronize();
  outputs->tokens.assign(inputs.segments.size(), 0);
  outputs->logprobs.clear();
  if (!logprobs_.empty()) outputs->logprobs.resize(inputs.segments.size());
  int next = 0;
  for (size_t i = 0; i < inputs.segments.size(); ++i) {
    if (!inputs.segments[i].wants_token) continue;
    if (!logprobs_.empty()) outputs->logprobs[i] = logprobs_[next];
    outputs->tokens[i] = sampled_[next++];
  }
}

// Before the sampled rows, whose logits stay for who asks.
void TransformerRunner::TellPrompts(const StepInputs& inputs, StepOutputs* outputs) {
  told_.Clear();
  for (const StepSegment& segment : inputs.segments) {
    const ToldRows told = ToldRowsOf(segment);
    for (int position = told.first; position < told.first + told.count; ++position) {
      const int row = segment.rows.first_row + position - segment.rows.first_position;
      told_.Add(row, segment.tokens[position + 1], segment.prompt_logprobs);
    }
  }
  outputs->prompt_logprobs.resize(told_.row_ids.size());
  layers_->TellRows(backend_, {.row_ids = told_.row_ids.data(),
                               .tokens = told_.tokens.data(),
                               .top = told_.top.data(),
                               .out = outputs->prompt_logprobs.data(),
                               .rows = static_cast<int>(told_.row_ids.size())});
}

void TransformerRunner::Sample(const StepInputs& inputs) {
  const int rows = static_cast<int>(sampled_rows_.size());
  sampled_.resize(rows);
  layers_->RunHead(backend_, sampled_rows_.data(), rows);
  if (HasRules(rules_)) {
    layers_->SampleByRules(backend_, {rules_.data(), rules_state_.get()}, sampled_rows_.data(),
                           inputs.token_ids.data(), sampling_.data(), rows, sampled_.data());
  } else {
    layers_->Sample(backend_, sampling_.data(), rows, sampled_.data());
  }
  if (!WantsLogprobs(top_)) return;
  logprobs_.resize(rows);
  layers_->TopLogprobs(backend_, sampled_.data(), top_.data(), rows, logprobs_.data());
}

std::span<const float> TransformerRunner::logits() const {
  return {layers_->logits(), sampled_rows_.size() * config_.vocab_size};
}

std::span<const float> TransformerRunner::adjusted() const {
  return {layers_->adjusted(), sampled_rows_.size() * config_.vocab_size};
}

}  // namespace augur::engine
