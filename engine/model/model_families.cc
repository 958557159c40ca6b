#include "engine/model/model_families.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace augur::engine {
namespace {

constexpr ShapeDefaults kLlamaShape{.vocab_size = 32000,
                                    .hidden_size = 4096,
                                    .intermediate_size = 11008,
                                    .num_layers = 32,
                                    .num_q_heads = 32};

// Defaults of transformers 5.24 (configuration_*.py); minicpm's of its own
// configuration_minicpm.py.
constexpr ModelFamily kFamilies[] = {
    {.model_type = "llama",
     .shape = kLlamaShape,
     .max_position_embeddings = 2048,
     .eos_token_id = 2,
     .mlp_bias_by_key = true},
    {.model_type = "mistral",
     .shape = {.vocab_size = 32000,
               .hidden_size = 4096,
               .intermediate_size = 14336,
               .num_layers = 32,
               .num_q_heads = 32,
               .num_kv_heads = 8},
     .max_position_embeddings = 4096 * 32,
     .sliding_window = 4096,
     .eos_token_id = 2,
     .attention_bias = AttentionBias::kNone},
    {.model_type = "qwen2",
     .shape = {.vocab_size = 151936,
               .hidden_size = 4096,
               .intermediate_size = 22016,
               .num_layers = 32,
               .num_q_heads = 32,
               .num_kv_heads = 32},
     .max_position_embeddings = 32768,
     .sliding_window = 4096,
     .attention_bias = AttentionBias::kOnQkv,
     .window = SlidingWindow::kBySwitch},
    {.model_type = "qwen3",
     .shape = {.vocab_size = 151936,
               .hidden_size = 4096,
               .intermediate_size = 22016,
               .num_layers = 32,
               .num_q_heads = 32,
               .num_kv_heads = 32,
               .head_dim = 128},
     .max_position_embeddings = 32768,
     .sliding_window = 4096,
     .window = SlidingWindow::kBySwitch,
     .has_head_norms = true},
    {.model_type = "phi3",
     .shape = {.vocab_size = 32064,
               .hidden_size = 3072,
               .intermediate_size = 8192,
               .num_layers = 32,
               .num_q_heads = 32},
     .max_position_embeddings = 4096,
     .original_max_position_embeddings = 4096,
     .rms_norm_epsilon = 1e-5,
     .eos_token_id = 32000,
     .attention_bias = AttentionBias::kNone,
     .rope_types = RopeTypes::kLongRope,
     .has_fused_projections = true},
    {.model_type = "granite",
     .shape = kLlamaShape,
     .max_position_embeddings = 2048,
     .eos_token_id = 2,
     .mlp_bias_by_key = true,
     .multipliers = MultiplierKeys::kGranite},
    {.model_type = "minicpm",
     .shape = kLlamaShape,
     .max_position_embeddings = 2048,
     .tie_word_embeddings = true,
     .eos_token_id = 2,
     .multipliers = MultiplierKeys::kMuP},
    // Public checkpoints call themselves llama; as plain llama they would run and answer wrongly.
    {.model_type = "nosa",
     .architecture = "SparseLlamaForCausalLM",
     .shape = kLlamaShape,
     .max_position_embeddings = 2048,
     .eos_token_id = 2,
     .mlp_bias_by_key = true,
     .has_eviction_heads = true},
};

}  // namespace

std::span<const ModelFamily> ModelFamilies() { return kFamilies; }

std::string SupportedFamilies() {
  return absl::StrJoin(kFamilies, ", ", [](std::string* out, const ModelFamily& family) {
    absl::StrAppend(out, family.model_type);
  });
}

}  // namespace augur::engine
