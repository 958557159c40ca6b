// From a Hugging Face folder to a runner that is ready to step. What a device's runner does not
// serve (the page check) is refused by name.
//
// Thread: any one; not concurrent with steps. Failure: a status of one line that names file, key or
// tensor, what was expected and what was found (INVALID_ARGUMENT, NOT_FOUND), or RESOURCE_EXHAUSTED
// with size and knob when memory is short.
#pragma once

#include <climits>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv_options.h"
#include "engine/model_runner.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/backend.h"
#include "memory/base/clock.h"
#include "memory/kv_memory.h"

namespace augur::engine {

struct ModelInfo {
  std::string family;  // "llama"
  int vocab_size = 0;
  int max_context = 0;  // the model's own limit
  // RopeVariantOf's argument (engine/model_runner.h).
  int short_rope_context = INT_MAX;
  int64_t num_parameters = 0;
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<TokenId> eos_token_ids;
  std::string fingerprint;  // names what KV bits depend on: config, weights file sizes, KV dtype
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  kernels::DType kv_dtype = kernels::DType::kF32;
};

struct ModelOptions {
  std::string folder;
  // Instead of a folder: a config.json whose shape is filled with random bfloat16 weights
  // (RandomTransformerWeights) made of random_seed, without tokenizer.
  std::string random_weights = {};
  uint64_t random_seed = 0;
  int max_context = 0;  // 0: the model's own; above it is refused
  KvOptions kv;
  AttentionSettings attention;
  int compute_threads = 1;  // of the backend, for what is counted
  int max_batch = 32;
  int max_batched_tokens = 512;
  bool as_device = false;  // for tests: the runner for devices on the CPU
  kernels::DrivenChoice driven = {};  // for benches, on a device
};

struct LoadedModel {
  ModelInfo info;
  int max_context = 0;  // effective
  ResolvedAttention attention;
  std::unique_ptr<memory::KvMemory> kv;  // outlives the runner
  std::unique_ptr<ModelRunner> runner;   // uses `backend`
  std::unique_ptr<Tokenizer> tokenizer;  // null when the folder has no tokenizer.json
};

// `backend` and `clock` outlive the model.
absl::StatusOr<LoadedModel> LoadModel(kernels::Backend* backend, const memory::Clock* clock,
                                      const ModelOptions& options);

}  // namespace augur::engine
