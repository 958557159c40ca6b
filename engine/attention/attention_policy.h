// Which blocks a token attends to: policies, their knobs, and the rule that picks one for a token.
// Plain data and pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/attention/value_sampling.h"
#include "kernels/ops/select_blocks.h"

namespace augur::engine {

enum class AttentionPolicy {
  kDense,      // every block
  kSparse,     // InfLLM-V2: scored by the layer's own queries
  kInfinigen,  // scored a layer ahead by approximated queries; prefill as kSparse
  kForecast,   // SparDA: scored a layer ahead by the Forecast heads
};

std::string_view NameOf(AttentionPolicy policy);  // "dense", ...
std::optional<AttentionPolicy> PolicyNamed(std::string_view name);

// What a request's tokens use; part of the prefix-cache key, since deeper layers' KV depends on it.
struct AttentionChoice {
  AttentionPolicy prefill = AttentionPolicy::kDense;
  AttentionPolicy decode = AttentionPolicy::kDense;
  kernels::SelectionBudget budget{.top_k = 25, .init = 1, .local = 8};
  // Below this length every token attends to all blocks: the prompt's length for prefill tokens,
  // the current one for generated tokens. -1: never.
  int dense_len = -1;
  // Not part of the prefix-cache key: blocks that are published come from prompts.
  ValueChoice values = {};

  // Reads compressed keys at some time.
  bool selects() const {
    return prefill != AttentionPolicy::kDense || decode != AttentionPolicy::kDense;
  }
  // Names everything above but the values, for the prefix-cache key.
  std::string Fingerprint() const;
};

// A model's own budget: sparse_config of its config.json (MiniCPM4's names and meaning).
struct SparseConfig {
  kernels::SelectionBudget budget;  // top_k: topk + window_size / block_size
  int dense_len = -1;
};

// What a deployment says; unset values come from the model's sparse_config, and where it has none
// from AttentionChoice's defaults and dense attention.
struct AttentionSettings {
  std::optional<AttentionPolicy> prefill;
  std::optional<AttentionPolicy> decode;
  std::optional<int> top_k_blocks;
  std::optional<int> max_top_k_blocks;  // of any request; unset: top_k_blocks
  std::optional<int> init_blocks;
  std::optional<int> local_blocks;
  std::optional<int> dense_len;
  std::optional<int> spare_slots;  // unset: top_k_blocks
  std::string forecast_heads;      // file; empty: no policy `forecast`
  std::string infinigen_basis;     // file; empty: no policy `infinigen`
  ValueSettings values = {};
};

struct ResolvedAttention {
  AttentionChoice choice;
  int max_top_k = 0;
  int spare_slots = 0;
  ValueSampling values = {};  // by ResolveValues
  int num_slots() const { return max_top_k + spare_slots; }
};

// INVALID_ARGUMENT naming key, value and limit.
absl::StatusOr<ResolvedAttention> ResolveAttention(const AttentionSettings& settings,
                                                   const std::optional<SparseConfig>& model);

// The policy of the token at `position` of a sequence whose prompt has `prompt_tokens`: a token's
// KV does not depend on how it came to be computed (in prefill, in decode, again after a
// preemption).
AttentionPolicy PolicyAt(const AttentionChoice& choice, int position, int prompt_tokens);

// First position after `position` at which PolicyAt changes; INT_MAX: never.
int NextPolicyChange(const AttentionChoice& choice, int position, int prompt_tokens);

}  // namespace augur::engine
