// The weights of a decoder-only transformer as the backend's ops read them: fused and packed once
// at load.
//
// Thread: immutable after LoadTransformerWeights. Ownership: packed matrices belong to the struct;
// vectors are plain host memory. Failure: a status naming file and tensor.
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

namespace augur::engine {

struct LinearWeights {
  std::unique_ptr<kernels::PackedWeight> weight;  // [out, in]
  std::vector<float> bias;                        // [out], empty: none
  const float* bias_data() const { return bias.empty() ? nullptr : bias.data(); }
};

// NOSA's eviction head (kernels/ops/eviction_bias.h), tensors `self_attn.A` and
// `self_attn.delta.weight` (`.bias` with attention_bias) as the public modelling code
// (thunlp/NOSA:modeling_llama_nosa.py) declares them; public checkpoints themselves were not at
// hand and may need confirmation.
struct EvictionHead {
  std::vector<float> gate;    // [kv heads]: A
  std::vector<float> weight;  // [kv heads, kv heads * head_dim]
  std::vector<float> bias;    // [kv heads], empty: none
};

struct LayerWeights {
  std::vector<float> attention_norm;  // [hidden]
  // [(q heads + 2 kv heads) * head_dim, hidden]; with Forecast heads, then the next layer's
  // [kv heads * head_dim] (not in the last layer) and, in layer 0, its own.
  LinearWeights qkv;
  LinearWeights output;         // [hidden, q heads * head_dim]
  std::vector<float> mlp_norm;  // [hidden]
  LinearWeights gate_up;        // [2 * intermediate, hidden]: gate, then up
  LinearWeights down;           // [hidden, intermediate]
  EvictionHead eviction;        // empty but for the family nosa
};

struct TransformerWeights {
  kernels::DType dtype = kernels::DType::kF32;  // of the embedding table: the checkpoint's
  TensorData embedding;                         // [vocab, hidden]
  std::vector<LayerWeights> layers;
  std::vector<float> final_norm;                // [hidden]
  std::unique_ptr<kernels::PackedWeight> head;  // [vocab, hidden]
  int64_t num_parameters = 0;                   // tied ones once
  std::optional<InfinigenBasis> infinigen;      // set by the model loader
};

// `heads` may be null. They are rounded to the dtype of the projections that they are fused with.
absl::StatusOr<TransformerWeights> LoadTransformerWeights(const Checkpoint& checkpoint,
                                                          const ModelConfig& config,
                                                          kernels::Backend* backend,
                                                          const ForecastHeads* heads = nullptr);

}  // namespace augur::engine
