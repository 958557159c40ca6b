#include "engine/model/model_config.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/json/json_fields.h"
#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

constexpr int64_t kMaxConfigBytes = 4 << 20;
constexpr int64_t kMaxDimension = 1 << 24;

// What transformers assumes where a config.json of the family is silent.
struct FamilyDefaults {
  const char* model_type;
  int64_t max_position_embeddings;
  double rms_norm_epsilon;
  double rope_theta;
  bool tie_word_embeddings;
  bool has_eviction_heads;
};

constexpr FamilyDefaults kFamilies[] = {
    {.model_type = "llama",
     .max_position_embeddings = 2048,
     .rms_norm_epsilon = 1e-6,
     .rope_theta = 10000.0,
     .tie_word_embeddings = false,
     .has_eviction_heads = false},
    {.model_type = "nosa",
     .max_position_embeddings = 2048,
     .rms_norm_epsilon = 1e-6,
     .rope_theta = 10000.0,
     .tie_word_embeddings = false,
     .has_eviction_heads = true},
};

// What public NOSA checkpoints give as architecture, under model_type "llama". As plain llama they
// would run and answer wrongly.
constexpr const char* kNosaArchitecture = "SparseLlamaForCausalLM";
constexpr int64_t kNosaQueryTopK = 1 + 16 + 24;

absl::StatusOr<FamilyDefaults> FindFamily(const JsonFields& fields) {
  AUGUR_ASSIGN_OR_RETURN(std::string type, fields.String("model_type", std::nullopt));
  const std::optional<JsonNode> architectures = fields.Find("architectures");
  if (type == "llama" && architectures && architectures->is_array()) {
    for (const auto& [index, name] : *architectures) {
      if (name.is_string() && name.string() == kNosaArchitecture) type = "nosa";
    }
  }
  for (const FamilyDefaults& family : kFamilies) {
    if (type == family.model_type) return family;
  }
  return fields.Error("model_type", absl::StrCat("one of ", SupportedFamilies()));
}

// Keys that change the maths in a way that is not built: each must be absent or say "off".
absl::Status RefuseUnsupported(const JsonFields& fields) {
  AUGUR_ASSIGN_OR_RETURN(const std::string activation, fields.String("hidden_act", "silu"));
  if (activation != "silu" && activation != "swish") return fields.Error("hidden_act", "\"silu\"");
  AUGUR_ASSIGN_OR_RETURN(const double rotary, fields.Number("partial_rotary_factor", 1.0));
  if (rotary != 1.0) return fields.Error("partial_rotary_factor", "1");
  for (const char* key : {"quantization_config", "sliding_window", "layer_types",
                          "attention_multiplier", "residual_multiplier", "embedding_multiplier",
                          "logits_scaling", "scale_emb", "scale_depth", "dim_model_base"}) {
    if (fields.Has(key)) {
      return fields.Error(key,
                          "no such key, because what it asks for is not supported for this family");
    }
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

// Both dialects: rope_theta + rope_scaling, and rope_parameters{rope_theta, rope_type}.
absl::Status ReadRope(const JsonFields& fields, const std::string& file, ModelConfig* config) {
  AUGUR_ASSIGN_OR_RETURN(config->rope_theta, fields.Number("rope_theta", config->rope_theta));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const std::optional<JsonNode> rope = fields.Find(key);
    if (!rope) continue;
    if (!rope->is_object()) return fields.Error(key, "an object");
    const JsonFields inner(*rope, file, absl::StrCat(key, "."));
    AUGUR_ASSIGN_OR_RETURN(config->rope_theta, inner.Number("rope_theta", config->rope_theta));
    const char* type_key = inner.Has("rope_type") ? "rope_type" : "type";
    AUGUR_ASSIGN_OR_RETURN(const std::string type, inner.String(type_key, "default"));
    if (type != "default") return inner.Error(type_key, "\"default\"");
  }
  if (!(config->rope_theta > 0)) return fields.Error("rope_theta", "a number above 0");
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

absl::Status ReadShapes(const JsonFields& fields, ModelConfig* config) {
  const auto read = [&fields](const char* key, std::optional<int64_t> absent, int* out) {
    const absl::StatusOr<int64_t> value = fields.Int(key, absent, 1, kMaxDimension);
    if (value.ok()) *out = static_cast<int>(*value);
    return value.status();
  };
  AUGUR_RETURN_IF_ERROR(read("vocab_size", std::nullopt, &config->vocab_size));
  AUGUR_RETURN_IF_ERROR(read("hidden_size", std::nullopt, &config->hidden_size));
  AUGUR_RETURN_IF_ERROR(read("intermediate_size", std::nullopt, &config->intermediate_size));
  AUGUR_RETURN_IF_ERROR(read("num_hidden_layers", std::nullopt, &config->num_layers));
  AUGUR_RETURN_IF_ERROR(read("num_attention_heads", std::nullopt, &config->num_q_heads));
  AUGUR_RETURN_IF_ERROR(read("num_key_value_heads", config->num_q_heads, &config->num_kv_heads));
  if (!fields.Has("head_dim") && config->hidden_size % config->num_q_heads != 0) {
    return fields.Error("num_attention_heads",
                        absl::StrCat("a divisor of hidden_size ", config->hidden_size));
  }
  AUGUR_RETURN_IF_ERROR(
      read("head_dim", std::max(1, config->hidden_size / config->num_q_heads), &config->head_dim));
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
                          ModelConfig* config) {
  std::set<TokenId> eos;
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
  }
  config->eos_token_ids.assign(eos.begin(), eos.end());
  AUGUR_ASSIGN_OR_RETURN(const std::vector<int64_t> bos,
                         fields.IntOrList("bos_token_id", 0, config->vocab_size - 1));
  if (!bos.empty()) config->bos_token_id = static_cast<TokenId>(bos.front());
  return absl::OkStatus();
}

}  // namespace

std::string SupportedFamilies() {
  return absl::StrJoin(kFamilies, ", ", [](std::string* out, const FamilyDefaults& family) {
    absl::StrAppend(out, family.model_type);
  });
}

absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& folder) {
  return LoadModelConfigFile(folder + "/config.json");
}

absl::StatusOr<ModelConfig> LoadModelConfigFile(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  AUGUR_ASSIGN_OR_RETURN(const JsonDocument document, ReadJsonObject(path, kMaxConfigBytes));
  const JsonFields fields(document, path);
  AUGUR_ASSIGN_OR_RETURN(const FamilyDefaults family, FindFamily(fields));
  AUGUR_RETURN_IF_ERROR(RefuseUnsupported(fields));

  ModelConfig config;
  config.family = family.model_type;
  config.rope_theta = family.rope_theta;
  AUGUR_RETURN_IF_ERROR(ReadShapes(fields, &config));
  if (family.has_eviction_heads) AUGUR_RETURN_IF_ERROR(ReadEviction(fields, &config));
  AUGUR_RETURN_IF_ERROR(ReadRope(fields, path, &config));
  AUGUR_RETURN_IF_ERROR(ReadSparseConfig(fields, path, &config));
  AUGUR_ASSIGN_OR_RETURN(
      const int64_t positions,
      fields.Int("max_position_embeddings", family.max_position_embeddings, 1, kMaxDimension));
  config.max_position_embeddings = static_cast<int>(positions);
  AUGUR_ASSIGN_OR_RETURN(const double epsilon,
                         fields.Number("rms_norm_eps", family.rms_norm_epsilon));
  if (!(epsilon > 0)) return fields.Error("rms_norm_eps", "a number above 0");
  config.rms_norm_epsilon = static_cast<float>(epsilon);
  AUGUR_ASSIGN_OR_RETURN(config.tie_word_embeddings,
                         fields.Bool("tie_word_embeddings", family.tie_word_embeddings));
  AUGUR_ASSIGN_OR_RETURN(config.attention_bias, fields.Bool("attention_bias", false));
  AUGUR_ASSIGN_OR_RETURN(config.mlp_bias, fields.Bool("mlp_bias", false));
  AUGUR_RETURN_IF_ERROR(ReadTokenIds(folder, fields, &config));
  return config;
}

}  // namespace augur::engine
