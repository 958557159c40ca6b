// config.json and generation_config.json of a Hugging Face folder as one checked struct.
//
// Absent keys take transformers' defaults for the family (model_families.h). A key that changes the
// maths and is not supported is an error by its name, never ignored. Thread: any. Failure: a
// one-line status naming file and key.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attention/attention_policy.h"
#include "engine/model/rope_scaling.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/dtype.h"

namespace augur::engine {

// What granite and MiniCPM (muP) multiply by beside their weights. None costs anything in a step,
// and none is rounded into a weight, so that results differ from the reference's by the rounding of
// float32 alone:
//   attention   is the scale of the attention ops, in place of 1 / sqrt(head_dim)
//   logits      is multiplied into the last norm's weight (float32)
//   residual r  the residual stream h = m (embedding) + r (sum of what layers add) is kept as h /
//   r:
//               layers add their output as it is, and since RMSNorm(h) with epsilon is RMSNorm(h /
//               r) with epsilon / r^2, norms take that epsilon
//   embedding m is, divided by r, the scale of the embedding op
struct Multipliers {
  double embedding = 1;
  double residual = 1;
  double attention = 0;  // set by LoadModelConfig
  double logits = 1;
};

struct ModelConfig {
  std::string family;  // model_type, e.g. "llama"
  int vocab_size = 0;
  int hidden_size = 0;
  int intermediate_size = 0;
  int num_layers = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int max_position_embeddings = 0;
  double rms_norm_epsilon = 1e-6;
  RopeScaling rope;
  Multipliers multipliers;
  bool tie_word_embeddings = false;
  bool has_fused_projections = false;  // qkv_proj and gate_up_proj, one tensor each
  bool has_head_norms = false;         // RMSNorm of each q and k head before RoPE
  bool qkv_bias = false;
  bool output_bias = false;
  bool mlp_bias = false;               // on gate, up and down
  std::optional<SparseConfig> sparse;  // sparse_config, where the model has one
  // NOSA: layers have an eviction head (transformer_weights.h), and of a selection's blocks this
  // many, forced ones included, are the query's choice (query_top_k_blocks, Augur's own key;
  // absent: 41 = 1 init + 16 window + 24, which the public code holds as constants).
  bool has_eviction_heads = false;
  int query_top_k_blocks = 0;
  std::vector<TokenId> eos_token_ids;  // union of both files, ascending
  std::optional<TokenId> bos_token_id;

  float attention_scale() const { return static_cast<float>(multipliers.attention); }
  // Of the embedding's output, and epsilon of the norms of the residual stream: see Multipliers.
  float embedding_scale() const {
    return static_cast<float>(multipliers.embedding / multipliers.residual);
  }
  float stream_epsilon() const {
    return static_cast<float>(rms_norm_epsilon / (multipliers.residual * multipliers.residual));
  }
  int q_width() const { return num_q_heads * head_dim; }
  int kv_width() const { return num_kv_heads * head_dim; }
};

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& folder);
// Likewise a config.json by its path, with the generation_config.json beside it.
absl::StatusOr<ModelConfig> LoadModelConfigFile(const std::string& path);

}  // namespace augur::engine
