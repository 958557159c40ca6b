// config.json and generation_config.json of a Hugging Face folder as one checked struct.
//
// Absent keys take transformers' defaults for the family. A key that changes the maths and is not
// supported is an error by its name, never ignored. Family nosa is model_type "nosa", or "llama"
// with the architecture SparseLlamaForCausalLM, as public checkpoints name themselves. Thread: any.
// Failure: a one-line status naming file and key.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attention/attention_policy.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/dtype.h"

namespace augur::engine {

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
  float rms_norm_epsilon = 1e-6f;
  double rope_theta = 10000.0;
  bool tie_word_embeddings = false;
  bool attention_bias = false;         // on q, k, v and o
  bool mlp_bias = false;               // on gate, up and down
  std::optional<SparseConfig> sparse;  // sparse_config, where the model has one
  // NOSA: layers have an eviction head (transformer_weights.h), and of a selection's blocks this
  // many, forced ones included, are the query's choice (query_top_k_blocks, Augur's own key;
  // absent: 41 = 1 init + 16 window + 24, which the public code holds as constants).
  bool has_eviction_heads = false;
  int query_top_k_blocks = 0;
  std::vector<TokenId> eos_token_ids;  // union of both files, ascending
  std::optional<TokenId> bos_token_id;

  int q_width() const { return num_q_heads * head_dim; }
  int kv_width() const { return num_kv_heads * head_dim; }
};

// Families that LoadModelConfig accepts, for messages.
std::string SupportedFamilies();

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& folder);
// Likewise a config.json by its path, with the generation_config.json beside it.
absl::StatusOr<ModelConfig> LoadModelConfigFile(const std::string& path);

}  // namespace augur::engine
