#include "engine/model/model_loader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/checkpoint.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_config.h"
#include "engine/model/transformer_runner.h"
#include "engine/model/transformer_weights.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

// Everything that a block's bits depend on beside its tokens.
std::string Fingerprint(const ModelConfig& config, const Checkpoint& checkpoint,
                        kernels::DType kv_dtype) {
  return absl::StrCat(
      config.family, "/", checkpoint.num_bytes(), "/",
      absl::StrJoin({config.vocab_size, config.hidden_size, config.intermediate_size,
                     config.num_layers, config.num_q_heads, config.num_kv_heads, config.head_dim},
                    "x"),
      "/theta", config.rope_theta, "/", kernels::NameOf(kv_dtype));
}

absl::StatusOr<int> EffectiveContext(const ModelConfig& config, const ModelOptions& options) {
  if (options.max_context == 0) return config.max_position_embeddings;
  if (options.max_context > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat(
        "context: expected at most the model's ", config.max_position_embeddings, " (",
        options.folder, "/config.json: max_position_embeddings), found ", options.max_context));
  }
  return options.max_context;
}

absl::StatusOr<int> CountBlocks(const kernels::PagedKv& shape, const ModelOptions& options) {
  const int64_t block_bytes = static_cast<int64_t>(shape.block_bytes());
  const int64_t blocks = options.kv_bytes / block_bytes;
  if (blocks < 2 || blocks > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("kv_bytes: expected at least two blocks of ",
                                                   block_bytes, " bytes, found ",
                                                   options.kv_bytes));
  }
  return static_cast<int>(blocks);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadMatchingTokenizer(const std::string& folder,
                                                                 const ModelConfig& config) {
  const std::string path = folder + "/tokenizer.json";
  if (!HasEntry(path)) return std::unique_ptr<Tokenizer>();
  AUGUR_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(path));
  if (tokenizer->vocab_size() > config.vocab_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": vocabulary: expected at most ", config.vocab_size,
                     " ids (config.json: vocab_size), found ", tokenizer->vocab_size()));
  }
  return tokenizer;
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(kernels::Backend* backend, const ModelOptions& options) {
  AUGUR_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.folder));
  LoadedModel model;
  AUGUR_ASSIGN_OR_RETURN(model.max_context, EffectiveContext(config, options));
  AUGUR_ASSIGN_OR_RETURN(model.tokenizer, LoadMatchingTokenizer(options.folder, config));
  AUGUR_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(options.folder));
  AUGUR_ASSIGN_OR_RETURN(TransformerWeights weights,
                         LoadTransformerWeights(*checkpoint, config, backend));

  const kernels::DType kv_dtype = options.kv_dtype.value_or(weights.dtype);
  const kernels::PagedKv shape{.pool = nullptr,
                               .dtype = kv_dtype,
                               .num_blocks = 0,
                               .num_layers = config.num_layers,
                               .num_kv_heads = config.num_kv_heads,
                               .head_dim = config.head_dim};
  model.block_bytes = static_cast<int64_t>(shape.block_bytes());
  AUGUR_ASSIGN_OR_RETURN(model.num_blocks, CountBlocks(shape, options));
  model.info = {.family = config.family,
                .vocab_size = config.vocab_size,
                .max_context = config.max_position_embeddings,
                .num_parameters = weights.num_parameters,
                .dtype = weights.dtype,
                .eos_token_ids = config.eos_token_ids,
                .fingerprint = Fingerprint(config, *checkpoint, kv_dtype),
                .num_layers = config.num_layers,
                .num_kv_heads = config.num_kv_heads,
                .head_dim = config.head_dim};
  AUGUR_ASSIGN_OR_RETURN(model.runner,
                         TransformerRunner::Create(backend, config, std::move(weights),
                                                   {.max_rows = options.max_batched_tokens,
                                                    .max_segments = options.max_batch,
                                                    .max_context = model.max_context,
                                                    .num_blocks = model.num_blocks,
                                                    .kv_dtype = kv_dtype}));
  return model;
}

}  // namespace augur::engine
