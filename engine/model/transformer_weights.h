// The weights of a decoder-only transformer as the backend's ops read them: fused and packed once
// at load.
//
// Thread: immutable after LoadTransformerWeights. Ownership: everything belongs to the struct and
// lies in the backend's memory; the backend outlives it. Failure: a status naming file and tensor,
// or the memory that was short.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/checkpoint.h"
#include "engine/model/forecast_heads.h"
#include "engine/model/infinigen_basis.h"
#include "engine/model/model_config.h"
#include "kernels/backend.h"
#include "kernels/backend_array.h"

namespace augur::engine {

struct LinearWeights {
  std::unique_ptr<kernels::PackedWeight> weight;  // [out, in]
  kernels::BackendArray<float> bias;              // [out], empty: none
  const float* bias_data() const { return bias.data(); }
};

// NOSA's eviction head (kernels/ops/eviction_bias.h), tensors `self_attn.A` and
// `self_attn.delta.weight` (`.bias` with attention_bias) as the public modelling code
// (thunlp/NOSA:modeling_llama_nosa.py) declares them; public checkpoints themselves were not at
// hand and may need confirmation.
struct EvictionHead {
  kernels::BackendArray<float> gate;    // [kv heads]: A
  kernels::BackendArray<float> weight;  // [kv heads, kv heads * head_dim]
  kernels::BackendArray<float> bias;    // [kv heads], empty: none
};

struct LayerWeights {
  kernels::BackendArray<float> attention_norm;  // [hidden]
  // [(q heads + 2 kv heads) * head_dim, hidden]; with Forecast heads, then the next layer's
  // [kv heads * head_dim] (not in the last layer) and, in layer 0, its own.
  LinearWeights qkv;
  // [head_dim] each, of families that norm q and k heads before RoPE; empty: none.
  kernels::BackendArray<float> q_norm;
  kernels::BackendArray<float> k_norm;
  LinearWeights output;                   // [hidden, q heads * head_dim]
  kernels::BackendArray<float> mlp_norm;  // [hidden]
  LinearWeights gate_up;                  // [2 * intermediate, hidden]: gate, then up
  LinearWeights down;                     // [hidden, intermediate]
  EvictionHead eviction;                  // empty but for the family nosa
};

struct TransformerWeights {
  kernels::DType dtype = kernels::DType::kF32;  // of the embedding table: the checkpoint's
  kernels::BackendArray<std::byte> embedding;   // [vocab, hidden] of dtype
  std::vector<LayerWeights> layers;
  kernels::BackendArray<float> final_norm;      // [hidden], times Multipliers::logits
  std::unique_ptr<kernels::PackedWeight> head;  // [vocab, hidden]
  int64_t num_parameters = 0;                   // tied ones once
  std::optional<InfinigenBasis> infinigen;      // set by the model loader
};

// `heads` may be null. They are rounded to the dtype of the projections that they are fused with.
absl::StatusOr<TransformerWeights> LoadTransformerWeights(const Checkpoint& checkpoint,
                                                          const ModelConfig& config,
                                                          kernels::Backend* backend,
                                                          const ForecastHeads* heads = nullptr);

// Weights of the config's shape without a checkpoint: matrices by kernels/random_weight.h, each
// with a seed of its own made of `seed`, scaled so that activations neither vanish nor grow
// (1 / sqrt(in_features)); norms are 1, biases 0. For benches and for trying a shape.
absl::StatusOr<TransformerWeights> RandomTransformerWeights(const ModelConfig& config,
                                                            kernels::DType dtype, uint64_t seed,
                                                            bool has_forecast,
                                                            kernels::Backend* backend);

}  // namespace augur::engine
