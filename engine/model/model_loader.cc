#include "engine/model/model_loader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/batcher.h"
#include "engine/json/json_fields.h"
#include "engine/model/checkpoint.h"
#include "engine/model/device_limits.h"
#include "engine/model/device_runner.h"
#include "engine/model/forecast_heads.h"
#include "engine/model/infinigen_basis.h"
#include "engine/model/model_config.h"
#include "engine/model/transformer_runner.h"
#include "engine/model/transformer_weights.h"
#include "kernels/kv_page.h"
#include "memory/base/status_macros.h"
#include "memory/device_transfers.h"

namespace augur::engine {
namespace {

// Everything that a block's bits depend on beside its tokens. `origin`: which weights.
std::string Fingerprint(const ModelConfig& config, const std::string& origin,
                        kernels::DType kv_dtype, bool host_fp8) {
  return absl::StrCat(
      config.family, "/", origin, "/",
      absl::StrJoin({config.vocab_size, config.hidden_size, config.intermediate_size,
                     config.num_layers, config.num_q_heads, config.num_kv_heads, config.head_dim},
                    "x"),
      "/", config.rope.Describe(), "/", kernels::NameOf(kv_dtype), host_fp8 ? "/fp8" : "",
      config.has_eviction_heads ? absl::StrCat("/query", config.query_top_k_blocks) : "");
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

int StagingBlocks(const KvOptions& kv, int max_top_k) {
  if (kv.staging_blocks > 0) return kv.staging_blocks;
  constexpr int kGroup = kernels::kAttentionGroupBlocks;
  return std::max(64, (max_top_k + kGroup - 1) / kGroup * kGroup);
}

int StagingPagesOf(const kernels::Backend& backend, const memory::KvLayout& layout,
                   const ModelOptions& options, int max_context, int staging_blocks) {
  // On a device a layer's whole history passes through, and the next layer's comes meanwhile.
  if (backend.IsDevice()) return 2 * layout.num_kv_heads * BlocksFor(max_context);
  return memory::StagingPages(layout, {.max_rows = options.max_batched_tokens,
                                       .max_segments = options.max_batch,
                                       .fetch_blocks = staging_blocks});
}

// Frames and host blocks that the budgets pay for; what one does not fill is left unused.
absl::StatusOr<memory::KvMemoryOptions> PlanKvMemory(const kernels::Backend& backend,
                                                     const ModelConfig& config,
                                                     kernels::DType kv_dtype,
                                                     const ModelOptions& options, int max_context,
                                                     int max_top_k, bool value_sums) {
  const KvOptions& kv = options.kv;
  const int staging_blocks = StagingBlocks(kv, max_top_k);
  memory::KvMemoryOptions plan;
  plan.layout =
      memory::MakeKvLayout(config.num_layers, config.num_kv_heads, config.head_dim,
                           kernels::BytesOf(kv_dtype), config.has_eviction_heads, value_sums);
  if (kv.host_fp8) plan.layout.fp8_of = kv_dtype;
  if (config.has_eviction_heads && plan.layout.bias_frame_blocks() == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv_dtype: expected keys of at least 68 bytes, so that a page holds the eviction biases of "
        "32 blocks, found head_dim ",
        config.head_dim, " of ", kernels::NameOf(kv_dtype)));
  }
  if (kv.host_fp8 && kv.residency == ResidencyMode::kDevice) {
    return absl::InvalidArgumentError(
        "host_kv_dtype: expected same with residency: device, which has no host pages, found fp8");
  }
  plan.copies = kv.copies;
  plan.page_check = kv.page_check;
  int64_t staging_bytes = 0;
  const bool tiers = kv.residency != ResidencyMode::kDevice;
  if (staging_blocks % kernels::kAttentionGroupBlocks != 0 ||
      (tiers && staging_blocks < max_top_k)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "staging_blocks: expected a multiple of ", kernels::kAttentionGroupBlocks,
        tiers ? absl::StrCat(", at least max_top_k_blocks = ", max_top_k) : std::string(),
        ", found ", staging_blocks));
  }
  if (tiers) {
    plan.num_staging_pages =
        StagingPagesOf(backend, plan.layout, options, max_context, staging_blocks);
    staging_bytes = static_cast<int64_t>(plan.num_staging_pages * plan.layout.page_bytes);
    const int64_t block_bytes = static_cast<int64_t>(plan.layout.host_block_bytes());
    const int64_t blocks = kv.host_bytes / block_bytes;
    if (blocks < 2 || blocks > INT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat("host_kv_bytes: expected at least two blocks of ", block_bytes,
                       " bytes, found ", kv.host_bytes));
    }
    plan.num_host_blocks = static_cast<int>(blocks);
  }
  const int64_t frame_bytes = static_cast<int64_t>(plan.layout.frame_bytes());
  int64_t device_bytes = kv.device_bytes;
  if (device_bytes == 0) device_bytes = backend.FreeBytes() / 10 * 9;
  const int64_t frames = (device_bytes - staging_bytes) / frame_bytes;
  if (frames < 2 || frames > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv_bytes: expected at least two frames of ", frame_bytes, " bytes",
        staging_bytes > 0 ? absl::StrCat(" beside a staging area of ", staging_bytes) : "",
        ", found ", device_bytes));
  }
  plan.num_frames = static_cast<int>(frames);
  return plan;
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

struct LoadedWeights {
  TransformerWeights weights;
  std::string origin;  // for the fingerprint
};

absl::StatusOr<LoadedWeights> LoadRandomWeights(const ModelOptions& options,
                                                const ModelConfig& config,
                                                kernels::Backend* backend) {
  const std::string& heads = options.attention.forecast_heads;
  if (!heads.empty() && heads != "random") {
    return absl::InvalidArgumentError(
        absl::StrCat("forecast_heads: expected random with random_weights, found ", heads));
  }
  LoadedWeights loaded;
  AUGUR_ASSIGN_OR_RETURN(
      loaded.weights, RandomTransformerWeights(config, kernels::DType::kBF16, options.random_seed,
                                               !heads.empty(), backend));
  loaded.origin = absl::StrCat("random", options.random_seed, heads.empty() ? "" : "/forecast");
  return loaded;
}

absl::StatusOr<LoadedWeights> LoadCheckpointWeights(const ModelOptions& options,
                                                    const ModelConfig& config,
                                                    kernels::Backend* backend) {
  std::optional<ForecastHeads> heads;
  if (!options.attention.forecast_heads.empty()) {
    AUGUR_ASSIGN_OR_RETURN(heads, LoadForecastHeads(options.attention.forecast_heads, config));
  }
  AUGUR_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(options.folder));
  LoadedWeights loaded;
  AUGUR_ASSIGN_OR_RETURN(loaded.weights, LoadTransformerWeights(*checkpoint, config, backend,
                                                                heads ? &*heads : nullptr));
  loaded.origin = absl::StrCat(checkpoint->num_bytes());
  if (heads) absl::StrAppend(&loaded.origin, "/forecast", heads->fingerprint);
  return loaded;
}

absl::StatusOr<LoadedWeights> LoadWeights(const ModelOptions& options, const ModelConfig& config,
                                          kernels::Backend* backend) {
  AUGUR_ASSIGN_OR_RETURN(LoadedWeights loaded, options.random_weights.empty()
                                                   ? LoadCheckpointWeights(options, config, backend)
                                                   : LoadRandomWeights(options, config, backend));
  if (!options.random_weights.empty() && options.attention.infinigen_basis == "random") {
    AUGUR_ASSIGN_OR_RETURN(loaded.weights.infinigen,
                           RandomInfinigenBasis(config, options.random_seed));
  } else if (!options.attention.infinigen_basis.empty()) {
    AUGUR_ASSIGN_OR_RETURN(loaded.weights.infinigen,
                           LoadInfinigenBasis(options.attention.infinigen_basis, config));
  }
  return loaded;
}

// Writes have time: what fills the link, within the bounds of what is allowed.
int SpillCtas(const CopyQuotaOptions& copy_ctas) {
  constexpr int kUsual = 4;
  return std::clamp(kUsual, copy_ctas.min_ctas, copy_ctas.max_ctas);
}

struct RunnerShape {
  int max_context = 0;
  int max_top_k = 0;
  int num_slots = 0;
  AttentionPolicy decode_policy = AttentionPolicy::kDense;
  kernels::DType kv_dtype = kernels::DType::kF32;
  bool has_forecast = false;
  ValueSampling values = {};
};

absl::StatusOr<std::unique_ptr<ModelRunner>> MakeRunner(
    kernels::Backend* backend, const ModelConfig& config, TransformerWeights weights,
    const ModelOptions& options, const RunnerShape& shape, memory::KvMemory* kv,
    memory::DeviceTransfers* transfers, const memory::Clock* clock) {
  if (backend->IsDevice() || options.as_device) {
    const ResidencyMode residency = options.kv.residency;
    return DeviceRunner::Create(
        backend, config, std::move(weights),
        {.max_rows = options.max_batched_tokens,
         .max_segments = options.max_batch,
         .max_context = shape.max_context,
         .kv_dtype = shape.kv_dtype,
         .decode_policy = shape.decode_policy,
         .has_forecast = shape.has_forecast,
         .max_top_k = shape.max_top_k,
         .max_slots = residency == ResidencyMode::kDevice ? 0 : shape.num_slots,
         .resident = residency != ResidencyMode::kTiered,
         .prefetch = options.kv.prefetch,
         .copy_ctas = options.kv.copy_ctas,
         .driven = options.driven,
         .values = shape.values},
        kv, transfers, clock);
  }
  return TransformerRunner::Create(backend, config, std::move(weights),
                                   {.max_rows = options.max_batched_tokens,
                                    .max_segments = options.max_batch,
                                    .max_context = shape.max_context,
                                    .kv_dtype = shape.kv_dtype,
                                    .has_forecast = shape.has_forecast,
                                    .max_top_k = shape.max_top_k,
                                    .staging_blocks = StagingBlocks(options.kv, shape.max_top_k),
                                    .prefetch = options.kv.prefetch,
                                    .recall_every = options.kv.recall_every,
                                    .compute_threads = options.compute_threads,
                                    .values = shape.values},
                                   kv, clock);
}

// No sequence is longer than its pool, so what grows with the context needs to grow no further: a
// config.json may say 16 million positions.
int LongestSequence(const memory::KvMemoryOptions& pools, int max_context) {
  const int64_t blocks = std::max(pools.num_frames, pools.num_host_blocks);
  return static_cast<int>(std::min<int64_t>(max_context, blocks * kernels::kBlockTokens));
}

absl::StatusOr<ModelConfig> ConfigOf(const ModelOptions& options) {
  if (!options.random_weights.empty()) return LoadModelConfigFile(options.random_weights);
  return LoadModelConfig(options.folder);
}

}  // namespace

absl::StatusOr<LoadedModel> LoadModel(kernels::Backend* backend, const memory::Clock* clock,
                                      const ModelOptions& options) {
  AUGUR_ASSIGN_OR_RETURN(const ModelConfig config, ConfigOf(options));
  LoadedModel model;
  AUGUR_ASSIGN_OR_RETURN(model.max_context, EffectiveContext(config, options));
  AUGUR_ASSIGN_OR_RETURN(model.attention, ResolveAttention(options.attention, config.sparse));
  AUGUR_ASSIGN_OR_RETURN(model.attention.values,
                         ResolveValues(options.attention.values, config.num_layers,
                                       options.kv.residency, backend->IsDevice()));
  model.attention.choice.values.sampled = model.attention.values.sampled;
  if (backend->IsDevice()) {
    AUGUR_RETURN_IF_ERROR(CheckDeviceServes(config, options.kv, model.attention, model.max_context));
  }
  // No selection is larger than the context.
  const int max_top_k = std::min(model.attention.max_top_k, BlocksFor(model.max_context));
  if (options.random_weights.empty()) {
    AUGUR_ASSIGN_OR_RETURN(model.tokenizer, LoadMatchingTokenizer(options.folder, config));
  }
  AUGUR_ASSIGN_OR_RETURN(LoadedWeights loaded, LoadWeights(options, config, backend));

  const kernels::DType kv_dtype = options.kv.dtype.value_or(loaded.weights.dtype);
  AUGUR_ASSIGN_OR_RETURN(const memory::KvMemoryOptions plan,
                         PlanKvMemory(*backend, config, kv_dtype, options, model.max_context,
                                      max_top_k, model.attention.values.needs_value_sums()));
  std::unique_ptr<memory::DeviceTransfers> transfers;
  if (backend->IsDevice() && plan.num_host_blocks > 0) {
    AUGUR_ASSIGN_OR_RETURN(transfers, memory::DeviceTransfers::Create(
                                          backend, {.ctas = SpillCtas(options.kv.copy_ctas)}));
  }
  memory::DeviceTransfers* const device_transfers = transfers.get();
  AUGUR_ASSIGN_OR_RETURN(model.kv, memory::KvMemory::Create(backend, plan, std::move(transfers)));
  model.info = {.family = config.family,
                .vocab_size = config.vocab_size,
                .max_context = config.max_position_embeddings,
                .short_rope_context = config.rope.short_context(),
                .num_parameters = loaded.weights.num_parameters,
                .dtype = loaded.weights.dtype,
                .eos_token_ids = config.eos_token_ids,
                .fingerprint = Fingerprint(config, loaded.origin, kv_dtype, options.kv.host_fp8),
                .num_layers = config.num_layers,
                .num_kv_heads = config.num_kv_heads,
                .head_dim = config.head_dim,
                .kv_dtype = kv_dtype};
  AUGUR_ASSIGN_OR_RETURN(
      model.runner,
      MakeRunner(backend, config, std::move(loaded.weights), options,
                 {.max_context = LongestSequence(plan, model.max_context),
                  .max_top_k = max_top_k,
                  .num_slots = std::min(model.attention.num_slots(), BlocksFor(model.max_context)),
                  .decode_policy = model.attention.choice.decode,
                  .kv_dtype = kv_dtype,
                  .has_forecast = !options.attention.forecast_heads.empty(),
                  .values = model.attention.values},
                 model.kv.get(), device_transfers, clock));
  return model;
}

}  // namespace augur::engine
