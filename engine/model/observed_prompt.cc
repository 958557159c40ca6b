#include "engine/model/observed_prompt.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "engine/model/device_runner.h"
#include "engine/model/transformer_runner.h"
#include "engine/tokenizer/utf8.h"
#include "kernels/check.h"
#include "kernels/kv_page.h"
#include "memory/base/status_macros.h"

namespace augur::engine {

namespace {

TransformerRunner* HostRunner(const LoadedModel& model) {
  return static_cast<TransformerRunner*>(model.runner.get());
}
DeviceRunner* RunnerOnDevice(const LoadedModel& model) {
  return static_cast<DeviceRunner*>(model.runner.get());
}

void ReadPrompt(std::span<const TokenId> tokens, const AttentionChoice& choice,
                ObservedModel* model, const BeforeChunk& before_chunk) {
  memory::KvStore* const store = model->kv->store();
  const int num_tokens = static_cast<int>(tokens.size());
  const int blocks = (num_tokens + kernels::kBlockTokens - 1) / kernels::kBlockTokens;
  AUGUR_CHECK(store->Open({.id = 1,
                           .demand = {.selects = choice.selects()},
                           .keys = {},
                           .hits = 0,
                           .blocks = blocks,
                           .most_blocks = blocks}));
  StepOutputs outputs;
  for (int first = 0; first < num_tokens; first += model->chunk_tokens) {
    const int count = std::min(model->chunk_tokens, num_tokens - first);
    StepSegment segment;
    segment.rows = {.first_row = 0, .num_rows = count, .first_position = first};
    segment.kv = &store->sequence(1);
    segment.attention = &choice;
    segment.prompt_tokens = num_tokens;
    segment.rope_variant = RopeVariantOf(model->info.short_rope_context, num_tokens);
    before_chunk(first, count);
    model->runner->Run({.token_ids = tokens.subspan(first, count), .segments = {&segment, 1}},
                       &outputs);
  }
  model->runner->Leave(&store->sequence(1), /*keep=*/false);
  store->Release(1);
  store->WaitForClosing();
}

}  // namespace

const TransformerLayers& ObservedModel::layers() const {
  return on_device ? RunnerOnDevice(*this)->layers() : HostRunner(*this)->layers();
}

absl::StatusOr<ObservedModel> LoadObservedModel(const ObservedModelOptions& options,
                                                kernels::Backend* backend,
                                                const memory::Clock* clock) {
  const bool is_random = !options.random_weights.empty();
  AUGUR_ASSIGN_OR_RETURN(const ModelConfig config, is_random
                                                       ? LoadModelConfigFile(options.random_weights)
                                                       : LoadModelConfig(options.folder));
  if (options.tokens > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.folder, "/config.json: expected a context of at least ", options.tokens,
        " tokens (max_position_embeddings), found ", config.max_position_embeddings));
  }
  ObservedModel model;
  model.on_device = backend->IsDevice() || options.as_device;
  model.chunk_tokens = backend->IsDevice() ? std::min(kObservedDeviceChunkTokens, options.tokens)
                                           : kObservedChunkTokens;
  const kernels::DType largest = options.kv_dtype.value_or(kernels::DType::kF32);
  const memory::KvLayout layout =
      memory::MakeKvLayout(config.num_layers, config.num_kv_heads, config.head_dim,
                           static_cast<int>(kernels::BytesOf(largest)));
  // Its blocks, the one that is being filled, compressed keys of each.
  const int64_t blocks = options.tokens / kernels::kBlockTokens + 2;
  const int64_t key_frames = blocks / kernels::kKeyPageBlocks + 1;
  ModelOptions to_load;
  to_load.folder = options.folder;
  to_load.random_weights = options.random_weights;
  to_load.kv.dtype = options.kv_dtype;
  to_load.kv.device_bytes = (blocks + key_frames) * static_cast<int64_t>(layout.frame_bytes());
  to_load.attention = options.attention;
  to_load.compute_threads = options.threads;
  to_load.max_batch = 1;
  to_load.as_device = options.as_device;
  to_load.max_batched_tokens = model.chunk_tokens;
  AUGUR_ASSIGN_OR_RETURN(static_cast<LoadedModel&>(model), LoadModel(backend, clock, to_load));
  if (model.tokenizer != nullptr || is_random) return model;
  return absl::NotFoundError(
      absl::StrCat(options.folder, "/tokenizer.json: expected a tokenizer, found none"));
}

void ObservePrompt(std::span<const TokenId> tokens, const AttentionChoice& choice,
                   ObservedModel* model, AttentionObserver* observer,
                   const BeforeChunk& before_chunk) {
  AUGUR_CHECK(!model->on_device);
  HostRunner(*model)->set_observer(observer);
  ReadPrompt(tokens, choice, model, before_chunk);
  HostRunner(*model)->set_observer(nullptr);
}

void ObservePromptOnDevice(std::span<const TokenId> tokens, const AttentionChoice& choice,
                           ObservedModel* model, DeviceObserver* observer,
                           const BeforeChunk& before_chunk) {
  AUGUR_CHECK(model->on_device);
  RunnerOnDevice(*model)->set_observer(observer);
  ReadPrompt(tokens, choice, model, before_chunk);
  RunnerOnDevice(*model)->set_observer(nullptr);
}

absl::StatusOr<std::string> ReadUtf8File(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  }
  if (IsValidUtf8(text)) return text;
  return absl::InvalidArgumentError(absl::StrCat(path, ": expected UTF-8 text, found other bytes"));
}

}  // namespace augur::engine
