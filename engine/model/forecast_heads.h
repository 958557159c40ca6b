// Forecast heads (SparDA Sec. 4.1) from a safetensors file with the public names:
//   [prefix]layers.{l}.self_attn.q_future_proj.weight   [kv heads * head_dim, hidden], layers 0 to
//   L-2 [prefix]layers.0.self_attn.q_curr_proj.weight       likewise
// where prefix is "", "model.", "module.model." and the like. A head is one bias-free projection of
// the activation that feeds q, k and v; RoPE with the token's own position follows.
//
// Thread: any. Failure: a one-line status naming file and tensor, what was expected and found.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/checkpoint.h"
#include "engine/model/model_config.h"

namespace augur::engine {

struct ForecastHeads {
  std::vector<TensorData> next;  // [L - 1]: of layer l for the selection of layer l + 1
  TensorData current;            // of layer 0 for its own
  std::string fingerprint;       // names the file's content, for the prefix-cache key
};

absl::StatusOr<ForecastHeads> LoadForecastHeads(const std::string& path, const ModelConfig& config);

}  // namespace augur::engine
