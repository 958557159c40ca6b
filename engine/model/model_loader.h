// From a Hugging Face folder to a runner that is ready to step.
//
// Thread: any one; not concurrent with steps. Failure: a status of one line that names file, key or
// tensor, what was expected and what was found (INVALID_ARGUMENT, NOT_FOUND), or RESOURCE_EXHAUSTED
// with size and knob when memory is short.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model_runner.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/backend.h"

namespace augur::engine {

struct ModelInfo {
  std::string family;  // "llama"
  int vocab_size = 0;
  int max_context = 0;  // the model's own limit
  int64_t num_parameters = 0;
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<TokenId> eos_token_ids;
  std::string fingerprint;  // names what KV bits depend on: config, weights file sizes, KV dtype
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
};

struct ModelOptions {
  std::string folder;
  int max_context = 0;   // 0: the model's own; above it is refused
  int64_t kv_bytes = 0;  // budget of the KV pool; what one block does not fill is left unused
  std::optional<kernels::DType> kv_dtype;  // unset: the checkpoint's
  int max_batch = 32;
  int max_batched_tokens = 512;
};

struct LoadedModel {
  ModelInfo info;
  int max_context = 0;  // effective
  int num_blocks = 0;   // of 64 tokens, that kv_bytes paid for
  int64_t block_bytes = 0;
  std::unique_ptr<ModelRunner> runner;   // uses `backend`
  std::unique_ptr<Tokenizer> tokenizer;  // null when the folder has no tokenizer.json
};

// `backend` outlives the runner.
absl::StatusOr<LoadedModel> LoadModel(kernels::Backend* backend, const ModelOptions& options);

}  // namespace augur::engine
