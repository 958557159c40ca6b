// The families that are served, one row a family: what transformers assumes where a config.json is
// silent, and in what a family differs from the one decoder layer (transformer_layers.h). A new
// family of that kind is a new row; README.md says how.
//
// Plain data. Thread: any.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace augur::engine {

// Which of q, k, v and o have biases.
enum class AttentionBias {
  kNone,   // an attention_bias that says so is refused
  kByKey,  // all four by attention_bias
  kOnQkv,  // q, k and v
};

// Numbers that multiply beside the weights, and under which keys (model_config.h: Multipliers).
enum class MultiplierKeys {
  kNone,     // any such key is refused
  kGranite,  // embedding_multiplier, residual_multiplier, attention_multiplier, logits_scaling
  kMuP,      // scale_emb, scale_depth / sqrt(layers), dim_model_base / hidden_size
};

// When a sliding window is in use; one that is at least as long as the context never cuts.
enum class SlidingWindow {
  kByLength,  // where sliding_window is a number
  kBySwitch,  // where use_sliding_window is true as well, in layers from max_window_layers on or in
              // those that layer_types names
};

enum class RopeTypes {
  kAll,
  kLongRope,  // "default" and "longrope", which the family also calls "su" and "yarn"
};

// Of a checkpoint without these keys.
struct ShapeDefaults {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_layers = 0;
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;  // 0: as many as query heads
  int64_t head_dim = 0;      // 0: hidden_size / query heads
};

struct ModelFamily {
  const char* model_type = nullptr;
  // Also a checkpoint of model_type "llama" that names this architecture; may be null.
  const char* architecture = nullptr;
  ShapeDefaults shape = {};
  int64_t max_position_embeddings = 0;
  int64_t original_max_position_embeddings = 0;  // of its RoPE scaling; 0: rope_scaling's own
  double rms_norm_epsilon = 1e-6;
  bool tie_word_embeddings = false;
  int64_t sliding_window = 0;  // 0: none
  int64_t eos_token_id = -1;   // -1: none

  AttentionBias attention_bias = AttentionBias::kByKey;
  bool mlp_bias_by_key = false;  // else an mlp_bias that says so is refused
  MultiplierKeys multipliers = MultiplierKeys::kNone;
  SlidingWindow window = SlidingWindow::kByLength;
  RopeTypes rope_types = RopeTypes::kAll;
  bool has_fused_projections = false;  // qkv_proj and gate_up_proj, one tensor each
  bool has_head_norms = false;         // q_norm and k_norm, before RoPE
  bool has_eviction_heads = false;     // transformer_weights.h
};

std::span<const ModelFamily> ModelFamilies();

// Their model_types, for messages.
std::string SupportedFamilies();

}  // namespace augur::engine
