// What this daemon serves, as far as the API needs to know: filled once when the model is loaded,
// read-only after, shared by reference with everything that outlives no call.
#pragma once

#include <climits>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/attention/attention_policy.h"
#include "engine/tokenizer/tokenizer.h"

namespace augur::server {

// What `augur info --kv` shows beside the live counts.
struct KvDescription {
  std::string residency;
  std::string full_context;  // the memory formula for a request as long as the context
  bool full_context_fits = true;
  int64_t page_bytes = 0;
  int64_t host_page_bytes = 0;
  int64_t frame_bytes = 0;
  int64_t host_block_bytes = 0;
  int slots = 0;
};

struct Deployment {
  std::string served_name;
  std::string family;
  std::string dtype;    // of the weights, "bfloat16"
  std::string version;  // of augurd
  int64_t num_parameters = 0;
  int vocab_size = 0;
  int max_context = 0;               // tokens of prompt and completion
  int short_rope_context = INT_MAX;  // engine/model_runner.h, RopeVariantOf
  int max_batch = 0;                 // sequences in a step
  std::vector<engine::TokenId> eos_token_ids;
  bool has_tokenizer = false;       // false: token ids in, token ids out
  int64_t longest_token_bytes = 0;  // of the vocabulary; 0 without a tokenizer
  bool prefix_cache = true;
  engine::AttentionChoice attention;  // unless a request says otherwise
  // That a request may name.
  std::vector<engine::AttentionPolicy> policies = {engine::AttentionPolicy::kDense};
  int max_top_k_blocks = 0;
  engine::ValueSettings values = {};  // by which, and whether, a request may sample
  KvDescription kv;
  // What KV bits depend on beside the tokens and what a request says (memory/block_key.h).
  std::string kv_variant;
};

}  // namespace augur::server
