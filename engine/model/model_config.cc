#include "engine/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/json/json_fields.h"
#include "engine/model/model_families.h"
#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr int64_t kMaxDimension = 1 << 24;

// The first layers, without a window, where qwen's config.json does not say how many.
constexpr int64_t kFullLayers = 28;
constexpr int64_t kNosaQueryTopK = 1 + 16 + 24;

bool NamesArchitecture(const JsonFields& fields, const char* architecture) {
  const std::optional<JsonNode> names = fields.Find("architectures");
  if (!names || !names->is_array()) return false;
  for (const auto& [index, name] : *names) {
    if (name.is_string() && name.string() == architecture) return true;
  }
  return false;
}

absl::StatusOr<ModelFamily> FindFamily(const JsonFields& fields) {
  AUGUR_ASSIGN_OR_RETURN(const std::string type, fields.String("model_type", std::nullopt));
  for (const ModelFamily& family : ModelFamilies()) {
    const bool by_architecture = type == "llama" && family.architecture != nullptr &&
                                 NamesArchitecture(fields, family.architecture);
    if (by_architecture) return family;
  }
  for (const ModelFamily& family : ModelFamilies()) {
    if (type == family.model_type) return family;
  }
  return fields.Error("model_type", absl::StrCat("one of ", SupportedFamilies()));
}

// Absent, null, false, 0 or empty.
bool IsOff(const std::optional<JsonNode>& value) {
  if (!value) return true;
  if (value->is_bool()) return !value->boolean();
  if (value->is_number()) return value->number() == 0;
  return (value->is_array() || value->is_object()) && value->size() == 0;
}

// Keys of other families that change the maths, and are not built: each must be off.
absl::Status RefuseUnsupported(const JsonFields& fields, const ModelFamily& family) {
  AUGUR_ASSIGN_OR_RETURN(const std::string activation, fields.String("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") return fields.Error("hidden_act", "\"silu\"");
  const auto refuse = [&fields](const char* key) {
    return fields.Error(key,
                        "no such key, because what it asks for is not supported for this family");
  };
  for (const char* key : {"quantization_config",
                          "compression_config",
                          "attn_logit_softcapping",
                          "final_logit_softcapping",
                          "query_pre_attn_scalar",
                          "logit_scale",
                          "clip_qkv",
                          "attention_chunk_size",
                          "no_rope_layers",
                          "no_rope_layer_interval",
                          "use_qk_norm",
                          "qk_norm",
                          "qk_layernorm",
                          "use_parallel_residual",
                          "parallel_attn",
                          "alibi",
                          "num_experts",
                          "num_local_experts",
                          "n_routed_experts",
                          "kv_lora_rank",
                          "lm_head_bias",
                          "rope_interleaved",
                          "rotary_pct",
                          "rotary_dim",
                          "attention_sinks"}) {
    if (!IsOff(fields.Find(key))) return refuse(key);
  }
  if (family.multipliers != MultiplierKeys::kGranite) {
    for (const char* key : {"embedding_multiplier", "residual_multiplier", "attention_multiplier",
                            "logits_scaling"}) {
      if (fields.Has(key)) return refuse(key);
    }
  }
  if (family.multipliers != MultiplierKeys::kMuP) {
    for (const char* key : {"scale_emb", "scale_depth", "dim_model_base"}) {
      if (fields.Has(key)) return refuse(key);
    }
  }
  return absl::OkStatus();
}

// Whether layer_types names a layer with a sliding window.
absl::StatusOr<bool> NamesSlidingLayers(const JsonFields& fields, JsonNode types) {
  bool found = false;
  if (!types.is_array()) return fields.Error("layer_types", "a list");
  for (const auto& [index, type] : types) {
    const std::string_view name = type.is_string() ? type.string() : "";
    found = found || name == "sliding_attention";
    if (name == "full_attention" || name == "sliding_attention") continue;
    return fields.Error("layer_types", "\"full_attention\" alone");
  }
  return found;
}

// A window that is as long as the context, or longer, never cuts.
absl::Status RefuseWindow(const JsonFields& fields, const ModelFamily& family,
                          const ModelConfig& config) {
  const int64_t absent = fields.Mentions("sliding_window") ? 0 : family.sliding_window;
  AUGUR_ASSIGN_OR_RETURN(const int64_t window, fields.Int("sliding_window", absent, 0, INT64_MAX));
  AUGUR_ASSIGN_OR_RETURN(const bool use, fields.Bool("use_sliding_window", false));
  AUGUR_ASSIGN_OR_RETURN(const int64_t full_layers,
                         fields.Int("max_window_layers", kFullLayers, 0, INT64_MAX));
  const std::optional<JsonNode> types = fields.Find("layer_types");
  bool named = false;
  if (types) {
    AUGUR_ASSIGN_OR_RETURN(named, NamesSlidingLayers(fields, *types));
  }
  const bool in_layers = types ? named : full_layers < config.num_layers;
  const bool by_switch = family.window == SlidingWindow::kBySwitch;
  const bool on = window != 0 && (!by_switch || (use && in_layers));
  if (on && window < config.max_position_embeddings) {
    return fields.Error(
        "sliding_window",
        absl::StrCat("null, or at least the context of ", config.max_position_embeddings,
                     ", because a window of ", window, " that is in use is not supported"));
  }
  if (!named || on) return absl::OkStatus();
  return fields.Error("layer_types", "\"full_attention\" alone, where sliding_window is off");
}

absl::Status ReadBiases(const JsonFields& fields, const ModelFamily& family, ModelConfig* config) {
  AUGUR_ASSIGN_OR_RETURN(const bool attention, fields.Bool("attention_bias", false));
  AUGUR_ASSIGN_OR_RETURN(config->mlp_bias, fields.Bool("mlp_bias", false));
  if (family.attention_bias == AttentionBias::kNone && attention) {
    return fields.Error("attention_bias", "false for this family");
  }
  if (!family.mlp_bias_by_key && config->mlp_bias) {
    return fields.Error("mlp_bias", "false for this family");
  }
  config->output_bias = family.attention_bias == AttentionBias::kByKey && attention;
  config->qkv_bias = config->output_bias || family.attention_bias == AttentionBias::kOnQkv;
  return absl::OkStatus();
}

absl::Status ReadMultipliers(const JsonFields& fields, const ModelFamily& family,
                             ModelConfig* config) {
  // What float32 can hold the square and the inverse of.
  const auto read = [&fields](const char* key) -> absl::StatusOr<double> {
    AUGUR_ASSIGN_OR_RETURN(const double value, fields.Number(key, 1.0));
    if (value >= 1e-9 && value <= 1e9) return value;
    return fields.Error(key, "a number from 1e-9 to 1e9");
  };
  Multipliers& multipliers = config->multipliers;
  multipliers.attention = 1 / std::sqrt(static_cast<double>(config->head_dim));
  if (family.multipliers == MultiplierKeys::kGranite) {
    AUGUR_ASSIGN_OR_RETURN(multipliers.embedding, read("embedding_multiplier"));
    AUGUR_ASSIGN_OR_RETURN(multipliers.residual, read("residual_multiplier"));
    AUGUR_ASSIGN_OR_RETURN(multipliers.attention, read("attention_multiplier"));
    AUGUR_ASSIGN_OR_RETURN(const double scaling, read("logits_scaling"));
    multipliers.logits = 1 / scaling;
  }
  if (family.multipliers == MultiplierKeys::kMuP) {
    AUGUR_ASSIGN_OR_RETURN(multipliers.embedding, read("scale_emb"));
    AUGUR_ASSIGN_OR_RETURN(const double depth, read("scale_depth"));
    multipliers.residual = depth / std::sqrt(static_cast<double>(config->num_layers));
    AUGUR_ASSIGN_OR_RETURN(const double base, read("dim_model_base"));
    multipliers.logits = base / config->hidden_size;
  }
  return absl::OkStatus();
}

// The public code holds the selection's shape as constants: a config.json that has it as keys means
// something that was never seen.
absl::Status ReadEviction(const JsonFields& fields, ModelConfig* config) {
  for (const char* key :
       {"kernel_size", "kernel_stride", "block_size", "init_blocks", "window_size", "local_blocks",
        "select_blocks", "topk", "topk_blocks", "use_nope", "dense_len"}) {
    if (fields.Has(key)) {
      return fields.Error(key, "no such key, because family nosa takes it from its code");
    }
  }
  AUGUR_ASSIGN_OR_RETURN(const int64_t query_top_k,
                         fields.Int("query_top_k_blocks", kNosaQueryTopK, 1, kMaxDimension));
  config->has_eviction_heads = true;
  config->query_top_k_blocks = static_cast<int>(query_top_k);
  return absl::OkStatus();
}

// MiniCPM4's selection knobs (research names in kernels/ops/select_blocks.h): the effective top-k
// is topk + window_size / block_size, and the local window counts the current block too.
absl::Status ReadSparseConfig(const JsonFields& fields, const std::string& file,
                              ModelConfig* config) {
  const std::optional<JsonNode> sparse = fields.Find("sparse_config");
  if (!sparse) return absl::OkStatus();
  if (!sparse->is_object()) return fields.Error("sparse_config", "an object");
  const JsonFields inner(*sparse, file, "sparse_config.");
  for (const auto& [key, built] : {std::pair{"kernel_size", kernels::kWindowTokens},
                                   std::pair{"kernel_stride", kernels::kWindowStride},
                                   std::pair{"block_size", kernels::kBlockTokens}}) {
    AUGUR_ASSIGN_OR_RETURN(const int64_t value, inner.Int(key, built, 1, kMaxDimension));
    if (value != built) return inner.Error(key, absl::StrCat(built));
  }
  AUGUR_ASSIGN_OR_RETURN(const bool use_nope, inner.Bool("use_nope", false));
  if (use_nope) return inner.Error("use_nope", "false");
  AUGUR_ASSIGN_OR_RETURN(const int64_t init, inner.Int("init_blocks", 1, 0, kMaxDimension));
  AUGUR_ASSIGN_OR_RETURN(const int64_t window,
                         inner.Int("window_size", 2048, kernels::kBlockTokens, kMaxDimension));
  if (window % kernels::kBlockTokens != 0) {
    return inner.Error("window_size", absl::StrCat("a multiple of ", kernels::kBlockTokens));
  }
  AUGUR_ASSIGN_OR_RETURN(const int64_t top_k, inner.Int("topk", 64, 1, kMaxDimension));
  AUGUR_ASSIGN_OR_RETURN(const int64_t dense_len, inner.Int("dense_len", 8192, -1, kMaxDimension));
  const int local = static_cast<int>(window / kernels::kBlockTokens);
  config->sparse = SparseConfig{.budget = {.top_k = static_cast<int>(top_k) + local,
                                           .init = static_cast<int>(init),
                                           .local = local + 1},
                                .dense_len = static_cast<int>(dense_len)};
  return absl::OkStatus();
}

absl::Status ReadShapes(const JsonFields& fields, const ShapeDefaults& absent,
                        ModelConfig* config) {
  const auto read = [&fields](const char* key, int64_t or_else, int* out) {
    const absl::StatusOr<int64_t> value = fields.Int(key, or_else, 1, kMaxDimension);
    if (value.ok()) *out = static_cast<int>(*value);
    return value.status();
  };
  AUGUR_RETURN_IF_ERROR(read("vocab_size", absent.vocab_size, &config->vocab_size));
  AUGUR_RETURN_IF_ERROR(read("hidden_size", absent.hidden_size, &config->hidden_size));
  AUGUR_RETURN_IF_ERROR(
      read("intermediate_size", absent.intermediate_size, &config->intermediate_size));
  AUGUR_RETURN_IF_ERROR(read("num_hidden_layers", absent.num_layers, &config->num_layers));
  AUGUR_RETURN_IF_ERROR(read("num_attention_heads", absent.num_q_heads, &config->num_q_heads));
  // A null means the query heads' number and the head's share of hidden_size in every family.
  const auto or_else = [&fields](const char* key, int64_t family_default, int64_t otherwise) {
    return family_default > 0 && !fields.Mentions(key) ? family_default : otherwise;
  };
  AUGUR_RETURN_IF_ERROR(
      read("num_key_value_heads",
           or_else("num_key_value_heads", absent.num_kv_heads, config->num_q_heads),
           &config->num_kv_heads));
  const int64_t head_dim = or_else("head_dim", absent.head_dim, 0);
  if (!fields.Has("head_dim") && head_dim == 0 && config->hidden_size % config->num_q_heads != 0) {
    return fields.Error("num_attention_heads",
                        absl::StrCat("a divisor of hidden_size ", config->hidden_size));
  }
  const int share = std::max(1, config->hidden_size / config->num_q_heads);
  AUGUR_RETURN_IF_ERROR(read("head_dim", head_dim > 0 ? head_dim : share, &config->head_dim));
  if (config->head_dim % 2 != 0 || config->head_dim > 256) {
    return fields.Error("head_dim", "an even number up to 256");
  }
  if (config->num_q_heads % config->num_kv_heads != 0) {
    return fields.Error("num_key_value_heads",
                        absl::StrCat("a divisor of num_attention_heads ", config->num_q_heads));
  }
  if (int64_t{config->num_q_heads} * config->head_dim > kMaxDimension) {
    return fields.Error("num_attention_heads",
                        absl::StrCat("at most ", kMaxDimension / config->head_dim, " of head_dim ",
                                     config->head_dim));
  }
  return absl::OkStatus();
}

absl::Status ReadTokenIds(const std::string& folder, const JsonFields& fields,
                          const ModelFamily& family, ModelConfig* config) {
  std::set<TokenId> eos;
  bool is_said = fields.Mentions("eos_token_id");
  AUGUR_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                         fields.IntOrList("eos_token_id", 0, config->vocab_size - 1));
  eos.insert(ids.begin(), ids.end());
  const std::string generation = folder + "/generation_config.json";
  if (HasEntry(generation)) {
    AUGUR_ASSIGN_OR_RETURN(const JsonDocument document,
                           ReadJsonObject(generation, kMaxConfigBytes));
    const JsonFields generation_fields(document, generation);
    AUGUR_ASSIGN_OR_RETURN(const std::vector<int64_t> more,
                           generation_fields.IntOrList("eos_token_id", 0, config->vocab_size - 1));
    eos.insert(more.begin(), more.end());
    is_said = is_said || generation_fields.Mentions("eos_token_id");
  }
  if (!is_said && family.eos_token_id >= 0 && family.eos_token_id < config->vocab_size) {
    eos.insert(static_cast<TokenId>(family.eos_token_id));
  }
  config->eos_token_ids.assign(eos.begin(), eos.end());
  AUGUR_ASSIGN_OR_RETURN(const std::vector<int64_t> bos,
                         fields.IntOrList("bos_token_id", 0, config->vocab_size - 1));
  if (!bos.empty()) config->bos_token_id = static_cast<TokenId>(bos.front());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& folder) {
  return LoadModelConfigFile(folder + "/config.json");
}

absl::StatusOr<ModelConfig> LoadModelConfigFile(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  AUGUR_ASSIGN_OR_RETURN(const JsonDocument document, ReadJsonObject(path, kMaxConfigBytes));
  const JsonFields fields(document, path);
  AUGUR_ASSIGN_OR_RETURN(const ModelFamily family, FindFamily(fields));
  AUGUR_RETURN_IF_ERROR(RefuseUnsupported(fields, family));

  ModelConfig config;
  config.family = family.model_type;
  config.has_fused_projections = family.has_fused_projections;
  config.has_head_norms = family.has_head_norms;
  AUGUR_RETURN_IF_ERROR(ReadShapes(fields, family.shape, &config));
  if (family.has_eviction_heads) AUGUR_RETURN_IF_ERROR(ReadEviction(fields, &config));
  AUGUR_ASSIGN_OR_RETURN(
      const int64_t positions,
      fields.Int("max_position_embeddings", family.max_position_embeddings, 1, kMaxDimension));
  config.max_position_embeddings = static_cast<int>(positions);
  AUGUR_RETURN_IF_ERROR(RefuseWindow(fields, family, config));
  AUGUR_ASSIGN_OR_RETURN(config.rope, ReadRopeScaling(fields, path, family, config.head_dim,
                                                      config.max_position_embeddings));
  AUGUR_RETURN_IF_ERROR(ReadSparseConfig(fields, path, &config));
  AUGUR_ASSIGN_OR_RETURN(config.rms_norm_epsilon,
                         fields.Number("rms_norm_eps", family.rms_norm_epsilon));
  if (!(config.rms_norm_epsilon > 0)) return fields.Error("rms_norm_eps", "a number above 0");
  AUGUR_RETURN_IF_ERROR(ReadMultipliers(fields, family, &config));
  AUGUR_ASSIGN_OR_RETURN(config.tie_word_embeddings,
                         fields.Bool("tie_word_embeddings", family.tie_word_embeddings));
  AUGUR_RETURN_IF_ERROR(ReadBiases(fields, family, &config));
  AUGUR_RETURN_IF_ERROR(ReadTokenIds(folder, fields, family, &config));
  return config;
}

}  // namespace augur::engine
