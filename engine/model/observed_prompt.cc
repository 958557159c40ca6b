#include "engine/model/observed_prompt.h"

#include <algorithm>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "engine/model/transformer_runner.h"
#include "engine/tokenizer/utf8.h"
#include "kernels/check.h"
#include "kernels/kv_page.h"
#include "memory/base/status_macros.h"

namespace augur::engine {

absl::StatusOr<LoadedModel> LoadObservedModel(const std::string& folder, int tokens, int threads,
                                              kernels::DType kv_dtype, kernels::Backend* backend,
                                              const memory::Clock* clock) {
  AUGUR_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(folder));
  if (tokens > config.max_position_embeddings) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, "/config.json: expected a context of at least ", tokens,
                     " tokens (max_position_embeddings), found ", config.max_position_embeddings));
  }
  const memory::KvLayout layout =
      memory::MakeKvLayout(config.num_layers, config.num_kv_heads, config.head_dim,
                           static_cast<int>(kernels::BytesOf(kv_dtype)));
  // Its blocks, the one that is being filled, compressed keys of each.
  const int64_t blocks = tokens / kernels::kBlockTokens + 2;
  const int64_t key_frames = blocks / kernels::kKeyPageBlocks + 1;
  ModelOptions options;
  options.folder = folder;
  options.kv.dtype = kv_dtype;
  options.kv.device_bytes = (blocks + key_frames) * static_cast<int64_t>(layout.frame_bytes());
  options.compute_threads = threads;
  options.max_batch = 1;
  options.max_batched_tokens = kObservedChunkTokens;
  AUGUR_ASSIGN_OR_RETURN(LoadedModel model, LoadModel(backend, clock, options));
  if (model.tokenizer != nullptr) return model;
  return absl::NotFoundError(
      absl::StrCat(folder, "/tokenizer.json: expected a tokenizer, found none"));
}

void ObservePrompt(std::span<const TokenId> tokens, const AttentionChoice& choice,
                   LoadedModel* model, AttentionObserver* observer,
                   const std::function<void(int first_position, int num_rows)>& before_chunk) {
  auto* const runner = static_cast<TransformerRunner*>(model->runner.get());
  runner->set_observer(observer);
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
  for (int first = 0; first < num_tokens; first += kObservedChunkTokens) {
    const int count = std::min(kObservedChunkTokens, num_tokens - first);
    StepSegment segment;
    segment.rows = {.first_row = 0, .num_rows = count, .first_position = first};
    segment.kv = &store->sequence(1);
    segment.attention = &choice;
    segment.prompt_tokens = num_tokens;
    segment.rope_variant = RopeVariantOf(model->info.short_rope_context, num_tokens);
    before_chunk(first, count);
    runner->Run({.token_ids = tokens.subspan(first, count), .segments = {&segment, 1}}, &outputs);
  }
  store->Release(1);
  runner->set_observer(nullptr);
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
