#include "engine/model/transformer_layers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

using kernels::Backend;
using kernels::DType;
using kernels::LinearParams;
using kernels::Phase;

// One call for the rows of each phase. room_rows: that x and y have; those behind a step's own rows
// belong to nobody.
// call: what is done with the rows of a phase.
template <class Call>
void RunPhases(LinearParams params, RowPhases phases, int room_rows, const Call& call) {
  const auto* x = static_cast<const std::byte*>(params.x);
  auto* y = static_cast<std::byte*>(params.y);
  const auto run = [&](int first, int rows, Phase phase) {
    if (rows == 0) return;
    params.x = x + size_t(first) * params.x_stride * kernels::BytesOf(params.x_dtype);
    params.y = y + size_t(first) * params.y_stride * kernels::BytesOf(params.y_dtype);
    params.rows = rows;
    params.room_rows = first + rows == phases.rows ? room_rows - first : rows;
    params.phase = phase;
    params.beside_copies = phases.beside_copies;
    call(params, first);
  };
  run(0, phases.decode_rows, Phase::kDecode);
  run(phases.decode_rows, phases.rows - phases.decode_rows, Phase::kPrefill);
}

void RunLinear(Backend* backend, const LinearParams& params, RowPhases phases, int room_rows) {
  RunPhases(params, phases, room_rows,
            [&](const LinearParams& rows, int) { backend->Linear(rows); });
}

// silu: of all rows.
void RunGated(Backend* backend, const LinearParams& params, const kernels::GatedSiluParams& silu,
              RowPhases phases, int room_rows) {
  const size_t row_bytes = silu.width * kernels::BytesOf(silu.dtype);
  RunPhases(params, phases, room_rows, [&](const LinearParams& rows, int first) {
    kernels::GatedSiluParams part = silu;
    part.gate_up = rows.y;
    part.out = static_cast<std::byte*>(silu.out) + first * row_bytes;
    part.rows = rows.rows;
    backend->GatedLinear(rows, part);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransformerLayers>> TransformerLayers::Create(
    Backend* backend, const ModelConfig& config, TransformerWeights weights,
    const TransformerLayersOptions& options) {
  std::unique_ptr<TransformerLayers> layers(
      new TransformerLayers(backend, config, std::move(weights), options));
  AUGUR_RETURN_IF_ERROR(layers->Allocate());
  AUGUR_ASSIGN_OR_RETURN(layers->rope_, RopeTables::Create(backend, config.rope, config.head_dim,
                                                           options.max_context));
  return layers;
}

TransformerLayers::TransformerLayers(Backend* backend, const ModelConfig& config,
                                     TransformerWeights weights,
                                     const TransformerLayersOptions& options)
    : backend_(backend),
      config_(config),
      weights_(std::move(weights)),
      options_(options),
      activation_dtype_(backend->ActivationDType(weights_.dtype)) {}

absl::StatusOr<void*> TransformerLayers::AllocateElements(const char* what, int64_t count,
                                                          DType dtype) {
  const size_t bytes = static_cast<size_t>(count) * kernels::BytesOf(dtype);
  allocations_.emplace_back(backend_, bytes);
  if (allocations_.back().allocated()) return static_cast<void*>(allocations_.back().data());
  return absl::ResourceExhaustedError(absl::StrCat("no memory for ", what, ": ", bytes,
                                                   " bytes (batched_tokens ", options_.max_rows,
                                                   ", batch ", options_.max_sampled, ")"));
}

absl::Status TransformerLayers::Allocate() {
  const int64_t rows = options_.max_rows;
  const int64_t hidden = rows * config_.hidden_size;
  const int64_t intermediate = rows * config_.intermediate_size;
  const int64_t logits = int64_t{options_.max_sampled} * config_.vocab_size;
  const auto floats = [&](const char* what, int64_t count, float** to) -> absl::Status {
    AUGUR_ASSIGN_OR_RETURN(void* const data, AllocateElements(what, count, DType::kF32));
    *to = static_cast<float*>(data);
    return absl::OkStatus();
  };
  constexpr const char* kActivations = "activations";
  AUGUR_RETURN_IF_ERROR(floats(kActivations, hidden, &hidden_));
  AUGUR_RETURN_IF_ERROR(floats(kActivations, rows * options_.qkv_stride, &qkv_));
  AUGUR_RETURN_IF_ERROR(floats("logits", logits, &logits_));
  AUGUR_RETURN_IF_ERROR(floats("logits changed by rules", logits, &adjusted_));
  AUGUR_ASSIGN_OR_RETURN(normed_, AllocateElements(kActivations, hidden, activation_dtype_));
  AUGUR_ASSIGN_OR_RETURN(
      attended_, AllocateElements(kActivations, rows * config_.q_width(), activation_dtype_));
  AUGUR_ASSIGN_OR_RETURN(gate_up_,
                         AllocateElements(kActivations, 2 * intermediate, activation_dtype_));
  AUGUR_ASSIGN_OR_RETURN(activated_,
                         AllocateElements(kActivations, intermediate, activation_dtype_));
  return absl::OkStatus();
}

void TransformerLayers::Embed(Backend* backend, const int32_t* ids, int rows) const {
  backend->Embedding({.ids = ids,
                      .table = weights_.embedding.data(),
                      .table_dtype = weights_.dtype,
                      .out = hidden_,
                      .rows = rows,
                      .vocab = config_.vocab_size,
                      .hidden = config_.hidden_size,
                      .scale = config_.embedding_scale()});
}

void TransformerLayers::ProjectQkv(Backend* backend, int layer, RowPhases phases) const {
  const LayerWeights& weights = weights_.layers[layer];
  backend->RmsNorm({.x = hidden_,
                    .weight = weights.attention_norm.data(),
                    .out = normed_,
                    .rows = phases.rows,
                    .hidden = config_.hidden_size,
                    .epsilon = config_.stream_epsilon(),
                    .out_dtype = activation_dtype_});
  RunLinear(backend,
            {.x = normed_,
             .weight = weights.qkv.weight.get(),
             .bias = weights.qkv.bias_data(),
             .y = qkv_,
             .x_stride = config_.hidden_size,
             .y_stride = options_.qkv_stride,
             .x_dtype = activation_dtype_},
            phases, options_.max_rows);
}

void TransformerLayers::AddAttended(Backend* backend, int layer, RowPhases phases) const {
  const LayerWeights& weights = weights_.layers[layer];
  RunLinear(backend,
            {.x = attended_,
             .weight = weights.output.weight.get(),
             .bias = weights.output.bias_data(),
             .y = hidden_,
             .x_stride = config_.q_width(),
             .y_stride = config_.hidden_size,
             .accumulate = true,
             .x_dtype = activation_dtype_},
            phases, options_.max_rows);
}

void TransformerLayers::AddMlp(Backend* backend, int layer, RowPhases phases) const {
  const LayerWeights& weights = weights_.layers[layer];
  const int hidden = config_.hidden_size;
  const int intermediate = config_.intermediate_size;
  backend->RmsNorm({.x = hidden_,
                    .weight = weights.mlp_norm.data(),
                    .out = normed_,
                    .rows = phases.rows,
                    .hidden = hidden,
                    .epsilon = config_.stream_epsilon(),
                    .out_dtype = activation_dtype_});
  RunGated(backend,
           {.x = normed_,
            .weight = weights.gate_up.weight.get(),
            .bias = weights.gate_up.bias_data(),
            .y = gate_up_,
            .x_stride = hidden,
            .y_stride = 2 * intermediate,
            .x_dtype = activation_dtype_,
            .y_dtype = activation_dtype_},
           {.out = activated_, .width = intermediate, .dtype = activation_dtype_}, phases,
           options_.max_rows);
  RunLinear(backend,
            {.x = activated_,
             .weight = weights.down.weight.get(),
             .bias = weights.down.bias_data(),
             .y = hidden_,
             .x_stride = intermediate,
             .y_stride = hidden,
             .accumulate = true,
             .x_dtype = activation_dtype_},
            phases, options_.max_rows);
}

void TransformerLayers::RunHead(Backend* backend, const int32_t* row_ids, int rows) const {
  backend->RmsNorm({.x = hidden_,
                    .row_ids = row_ids,
                    .weight = weights_.final_norm.data(),
                    .out = normed_,
                    .rows = rows,
                    .hidden = config_.hidden_size,
                    .epsilon = config_.stream_epsilon(),
                    .out_dtype = activation_dtype_});
  // One row of each sequence, whatever its phase: always the algorithm for few.
  RunLinear(backend,
            {.x = normed_,
             .weight = weights_.head.get(),
             .y = logits_,
             .x_stride = config_.hidden_size,
             .y_stride = config_.vocab_size,
             .x_dtype = activation_dtype_},
            {.decode_rows = rows, .rows = rows}, std::min(options_.max_rows, options_.max_sampled));
}

void TransformerLayers::Sample(Backend* backend, const kernels::SamplingRow* sampling, int rows,
                               int32_t* tokens) const {
  backend->SampleTokens({.logits = logits_,
                         .params = sampling,
                         .tokens = tokens,
                         .rows = rows,
                         .vocab = config_.vocab_size});
}

void TransformerLayers::SampleByRules(Backend* backend, const RuleRows& rules,
                                      const int32_t* row_ids, const int32_t* token_ids,
                                      const kernels::SamplingRow* sampling, int rows,
                                      int32_t* tokens) const {
  backend->CountTokens({.rules = rules.rules,
                        .row_ids = row_ids,
                        .token_ids = token_ids,
                        .words = rules.state->words(),
                        .counted = rules.state->counted(),
                        .rows = rows,
                        .vocab = config_.vocab_size});
  backend->AdjustLogits({.logits = logits_,
                         .rules = rules.rules,
                         .bias = rules.state->bias(),
                         .words = rules.state->words(),
                         .out = adjusted_,
                         .rows = rows,
                         .vocab = config_.vocab_size});
  backend->SampleTokens({.logits = adjusted_,
                         .params = sampling,
                         .tokens = tokens,
                         .rows = rows,
                         .vocab = config_.vocab_size});
}

void TransformerLayers::TopLogprobs(Backend* backend, const int32_t* tokens, const int32_t* top,
                                    int rows, kernels::TokenLogprobsRow* out) const {
  backend->TopLogprobs({.logits = logits_,
                        .tokens = tokens,
                        .top = top,
                        .out = out,
                        .rows = rows,
                        .vocab = config_.vocab_size});
}

void TransformerLayers::TellRows(Backend* backend, const ToldTokens& told) const {
  for (int first = 0; first < told.rows; first += options_.max_sampled) {
    const int rows = std::min(options_.max_sampled, told.rows - first);
    RunHead(backend, told.row_ids + first, rows);
    TopLogprobs(backend, told.tokens + first, told.top + first, rows, told.out + first);
  }
}

}  // namespace augur::engine
