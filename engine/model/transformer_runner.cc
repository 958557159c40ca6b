#include "engine/model/transformer_runner.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "memory/base/status_macros.h"

namespace augur::engine {

absl::StatusOr<std::unique_ptr<TransformerRunner>> TransformerRunner::Create(
    kernels::Backend* backend, const ModelConfig& config, TransformerWeights weights,
    const TransformerRunnerOptions& options, memory::KvMemory* kv, const memory::Clock* clock) {
  std::unique_ptr<TransformerRunner> runner(
      new TransformerRunner(backend, config, std::move(weights), options));
  const LayerWorkerOptions attention = runner->AttentionOptions();
  runner->qkv_stride_ = attention.row_stride();
  AUGUR_RETURN_IF_ERROR(runner->Allocate());
  runner->FillRopeTables();
  AUGUR_ASSIGN_OR_RETURN(
      runner->layer_worker_,
      LayerWorker::Create(backend, runner->AttentionOptions(), kv->store(), kv->stats(), clock));
  return runner;
}

LayerWorkerOptions TransformerRunner::AttentionOptions() const {
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
          .cos = cos_,
          .sin = sin_,
          .infinigen = {.basis = weights_.infinigen ? &*weights_.infinigen : nullptr,
                        .weights = weights_.layers,
                        .hidden_size = config_.hidden_size},
          .eviction = {.weights = config_.has_eviction_heads
                                      ? std::span<const LayerWeights>(weights_.layers)
                                      : std::span<const LayerWeights>(),
                       .query_top_k = config_.query_top_k_blocks}};
}

TransformerRunner::TransformerRunner(kernels::Backend* backend, const ModelConfig& config,
                                     TransformerWeights weights,
                                     const TransformerRunnerOptions& options)
    : backend_(backend), config_(config), weights_(std::move(weights)), options_(options) {
  sampled_rows_.reserve(options.max_segments);
  sampling_.reserve(options.max_segments);
  sampled_.reserve(options.max_segments);
}

TransformerRunner::~TransformerRunner() {
  backend_->Synchronize();
  for (void* allocation : allocations_) backend_->Free(allocation);
}

absl::StatusOr<float*> TransformerRunner::AllocateFloats(const char* what, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  void* data = backend_->Allocate(bytes);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no memory for ", what, ": ", bytes, " bytes (batched_tokens ", options_.max_rows,
        ", batch ", options_.max_segments, ", context ", options_.max_context, ")"));
  }
  allocations_.push_back(data);
  return static_cast<float*>(data);
}

absl::Status TransformerRunner::Allocate() {
  const int64_t rows = options_.max_rows;
  const int64_t rope = int64_t{options_.max_context} * config_.head_dim / 2;
  AUGUR_ASSIGN_OR_RETURN(cos_, AllocateFloats("RoPE tables", rope));
  AUGUR_ASSIGN_OR_RETURN(sin_, AllocateFloats("RoPE tables", rope));
  AUGUR_ASSIGN_OR_RETURN(hidden_, AllocateFloats("activations", rows * config_.hidden_size));
  AUGUR_ASSIGN_OR_RETURN(normed_, AllocateFloats("activations", rows * config_.hidden_size));
  AUGUR_ASSIGN_OR_RETURN(qkv_, AllocateFloats("activations", rows * qkv_stride_));
  AUGUR_ASSIGN_OR_RETURN(attended_, AllocateFloats("activations", rows * config_.q_width()));
  AUGUR_ASSIGN_OR_RETURN(gate_up_,
                         AllocateFloats("activations", rows * 2 * config_.intermediate_size));
  AUGUR_ASSIGN_OR_RETURN(activated_,
                         AllocateFloats("activations", rows * config_.intermediate_size));
  AUGUR_ASSIGN_OR_RETURN(
      logits_, AllocateFloats("logits", int64_t{options_.max_segments} * config_.vocab_size));
  return absl::OkStatus();
}

// Angles in double precision: float32 products, as transformers has them, are off by 5e-5 rad at
// position 700 already and by 100 times that at the end of a long context.
void TransformerRunner::FillRopeTables() {
  const int half = config_.head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const double inverse_frequency = std::pow(config_.rope_theta, -2.0 * i / config_.head_dim);
    for (int position = 0; position < options_.max_context; ++position) {
      const double angle = position * inverse_frequency;
      const size_t at = size_t(position) * half + i;
      cos_[at] = static_cast<float>(std::cos(angle));
      sin_[at] = static_cast<float>(std::sin(angle));
    }
  }
}

void TransformerRunner::Run(const StepInputs& inputs, StepOutputs* outputs) {
  const int rows = static_cast<int>(inputs.token_ids.size());
  AUGUR_CHECK(rows > 0 && rows <= options_.max_rows);
  AUGUR_CHECK(static_cast<int>(inputs.segments.size()) <= options_.max_segments);
  int covered = 0;
  for (const StepSegment& segment : inputs.segments) {
    AUGUR_CHECK(segment.rows.first_row == covered && segment.rows.num_rows > 0);
    AUGUR_CHECK(segment.rows.first_position + segment.rows.num_rows <= options_.max_context);
    covered += segment.rows.num_rows;
  }
  AUGUR_CHECK(covered == rows);

  backend_->Embedding({.ids = inputs.token_ids.data(),
                       .table = weights_.embedding.bytes.data(),
                       .table_dtype = weights_.embedding.dtype,
                       .out = hidden_,
                       .rows = rows,
                       .vocab = config_.vocab_size,
                       .hidden = config_.hidden_size});
  layer_worker_->BeginStep(inputs.segments, rows);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    RunAttention(layer, rows);
    RunMlp(layer, rows);
  }
  layer_worker_->EndStep();
  RunHead(inputs, outputs);
}

void TransformerRunner::RunAttention(int layer, int rows) {
  const LayerWeights& weights = weights_.layers[layer];
  const int hidden = config_.hidden_size;

  backend_->RmsNorm({.x = hidden_,
                     .weight = weights.attention_norm.data(),
                     .out = normed_,
                     .rows = rows,
                     .hidden = hidden,
                     .epsilon = config_.rms_norm_epsilon});
  backend_->Linear({.x = normed_,
                    .weight = weights.qkv.weight.get(),
                    .bias = weights.qkv.bias_data(),
                    .y = qkv_,
                    .rows = rows,
                    .x_stride = hidden,
                    .y_stride = qkv_stride_});
  layer_worker_->RunLayer(layer, qkv_, attended_, normed_);
  backend_->Linear({.x = attended_,
                    .weight = weights.output.weight.get(),
                    .bias = weights.output.bias_data(),
                    .y = hidden_,
                    .rows = rows,
                    .x_stride = config_.q_width(),
                    .y_stride = hidden,
                    .accumulate = true});
}

void TransformerRunner::RunMlp(int layer, int rows) {
  const LayerWeights& weights = weights_.layers[layer];
  const int hidden = config_.hidden_size;
  const int intermediate = config_.intermediate_size;

  backend_->RmsNorm({.x = hidden_,
                     .weight = weights.mlp_norm.data(),
                     .out = normed_,
                     .rows = rows,
                     .hidden = hidden,
                     .epsilon = config_.rms_norm_epsilon});
  backend_->Linear({.x = normed_,
                    .weight = weights.gate_up.weight.get(),
                    .bias = weights.gate_up.bias_data(),
                    .y = gate_up_,
                    .rows = rows,
                    .x_stride = hidden,
                    .y_stride = 2 * intermediate});
  backend_->GatedSilu(
      {.gate_up = gate_up_, .out = activated_, .rows = rows, .width = intermediate});
  backend_->Linear({.x = activated_,
                    .weight = weights.down.weight.get(),
                    .bias = weights.down.bias_data(),
                    .y = hidden_,
                    .rows = rows,
                    .x_stride = intermediate,
                    .y_stride = hidden,
                    .accumulate = true});
}

void TransformerRunner::RunHead(const StepInputs& inputs, StepOutputs* outputs) {
  sampled_rows_.clear();
  sampling_.clear();
  for (const StepSegment& segment : inputs.segments) {
    if (!segment.wants_token) continue;
    sampled_rows_.push_back(segment.rows.first_row + segment.rows.num_rows - 1);
    sampling_.push_back(segment.sampling);
  }
  outputs->tokens.assign(inputs.segments.size(), 0);
  const int rows = static_cast<int>(sampled_rows_.size());
  if (rows > 0) {
    sampled_.resize(rows);
    backend_->RmsNorm({.x = hidden_,
                       .row_ids = sampled_rows_.data(),
                       .weight = weights_.final_norm.data(),
                       .out = normed_,
                       .rows = rows,
                       .hidden = config_.hidden_size,
                       .epsilon = config_.rms_norm_epsilon});
    backend_->Linear({.x = normed_,
                      .weight = weights_.head.get(),
                      .y = logits_,
                      .rows = rows,
                      .x_stride = config_.hidden_size,
                      .y_stride = config_.vocab_size});
    backend_->SampleTokens({.logits = logits_,
                            .params = sampling_.data(),
                            .tokens = sampled_.data(),
                            .rows = rows,
                            .vocab = config_.vocab_size});
  }
  backend_->Synchronize();
  int next = 0;
  for (size_t i = 0; i < inputs.segments.size(); ++i) {
    if (inputs.segments[i].wants_token) outputs->tokens[i] = sampled_[next++];
  }
}

std::span<const float> TransformerRunner::logits() const {
  return {logits_, sampled_rows_.size() * config_.vocab_size};
}

}  // namespace augur::engine
