// The layers of a decoder-only transformer but for attention over KV: norms, projections, MLP, head
// and sampling, op by op on a backend, with the activations in between. Runners call it layer by
// layer and do attention themselves.
//
// Rows stand in the order [generated tokens][prompt tokens] (kernels/ops/phase.h): every matrix
// product is one call for each kind.
//
// Thread: the engine's. Ownership: weights and activations, allocated by Create; the backend
// outlives it. The methods take the backend to call, so that a runner may record them
// (Backend::Record). Failure: Create names the buffer, its bytes and the knob.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/logit_state.h"
#include "engine/model/model_config.h"
#include "engine/model/rope_tables.h"
#include "engine/model/transformer_weights.h"
#include "kernels/backend.h"
#include "kernels/backend_array.h"

namespace augur::engine {

struct TransformerLayersOptions {
  int max_rows = 0;     // of a step
  int max_sampled = 0;  // rows of a step that the head reads
  int max_context = 0;  // positions that the RoPE tables cover
  int qkv_stride = 0;   // floats of a qkv row
};

struct RowPhases {
  int decode_rows = 0;         // first of them: generated tokens
  int rows = 0;                // all of them
  bool beside_copies = false;  // of pages, on another order (kernels/ops/linear.h)
};

// Rules of sampled rows and the state that they read (engine/model/logit_state.h).
struct RuleRows {
  const kernels::LogitRule* rules = nullptr;  // [rows]
  LogitState* state = nullptr;
};

// Tokens behind hidden rows, to be told.
struct ToldTokens {
  const int32_t* row_ids = nullptr;          // [rows]
  const int32_t* tokens = nullptr;           // [rows]
  const int32_t* top = nullptr;              // [rows]
  kernels::TokenLogprobsRow* out = nullptr;  // [rows]
  int rows = 0;
};

class TransformerLayers {
 public:
  static absl::StatusOr<std::unique_ptr<TransformerLayers>> Create(
      kernels::Backend* backend, const ModelConfig& config, TransformerWeights weights,
      const TransformerLayersOptions& options);

  // ids: [rows]. Fills hidden.
  void Embed(kernels::Backend* backend, const int32_t* ids, int rows) const;
  // hidden -> normed() -> qkv().
  void ProjectQkv(kernels::Backend* backend, int layer, RowPhases phases) const;
  // attended() -> added to hidden.
  void AddAttended(kernels::Backend* backend, int layer, RowPhases phases) const;
  // Added to hidden.
  void AddMlp(kernels::Backend* backend, int layer, RowPhases phases) const;
  // logits() of the hidden rows row_ids [rows].
  void RunHead(kernels::Backend* backend, const int32_t* row_ids, int rows) const;
  // A token of each row of logits() by its sampling row.
  void Sample(kernels::Backend* backend, const kernels::SamplingRow* sampling, int rows,
              int32_t* tokens) const;
  // Likewise, of the rows as their rules change them (adjusted()). row_ids: of the rows' input
  // tokens in token_ids.
  void SampleByRules(kernels::Backend* backend, const RuleRows& rules, const int32_t* row_ids,
                     const int32_t* token_ids, const kernels::SamplingRow* sampling, int rows,
                     int32_t* tokens) const;

  // Log probabilities under logits() as they are (kernels/ops/top_logprobs.h).
  void TopLogprobs(kernels::Backend* backend, const int32_t* tokens, const int32_t* top, int rows,
                   kernels::TokenLogprobsRow* out) const;
  // Likewise of any number of hidden rows, by as many calls of RunHead as they need.
  void TellRows(kernels::Backend* backend, const ToldTokens& told) const;

  float* qkv() const { return qkv_; }  // [max_rows, qkv_stride]
  int qkv_stride() const { return options_.qkv_stride; }
  void* normed() const { return normed_; }             // [max_rows, hidden] of activation_dtype()
  void* attended() const { return attended_; }         // [max_rows, q width] likewise
  const float* logits() const { return logits_; }      // [max_sampled, vocab]
  const float* adjusted() const { return adjusted_; }  // likewise
  const RopeAngles& rope() const { return rope_.angles(); }
  kernels::DType activation_dtype() const { return activation_dtype_; }
  const TransformerWeights& weights() const { return weights_; }

 private:
  TransformerLayers(kernels::Backend* backend, const ModelConfig& config,
                    TransformerWeights weights, const TransformerLayersOptions& options);
  absl::Status Allocate();
  absl::StatusOr<void*> AllocateElements(const char* what, int64_t count, kernels::DType dtype);

  kernels::Backend* const backend_;
  const ModelConfig config_;
  const TransformerWeights weights_;
  const TransformerLayersOptions options_;
  const kernels::DType activation_dtype_;

  std::vector<kernels::BackendArray<std::byte>> allocations_;
  RopeTables rope_;
  float* hidden_ = nullptr;  // [max_rows, hidden]: the residual stream, see Multipliers
  void* normed_ = nullptr;
  float* qkv_ = nullptr;
  void* attended_ = nullptr;
  void* gate_up_ = nullptr;    // [max_rows, 2 * intermediate]
  void* activated_ = nullptr;  // [max_rows, intermediate]
  float* logits_ = nullptr;
  float* adjusted_ = nullptr;
};

}  // namespace augur::engine
