// What this daemon serves, as far as the API needs to know: filled once when the model is loaded,
// read-only after, shared by reference with everything that outlives no call.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/attention/attention_policy.h"
#include "engine/tokenizer/tokenizer.h"

namespace augur::server {

struct Deployment {
  std::string served_name;
  std::string family;
  std::string dtype;    // of the weights, "bfloat16"
  std::string version;  // of augurd
  int64_t num_parameters = 0;
  int vocab_size = 0;
  int max_context = 0;  // tokens of prompt and completion
  int max_batch = 0;    // sequences in a step
  std::vector<engine::TokenId> eos_token_ids;
  bool has_tokenizer = false;       // false: token ids in, token ids out
  int64_t longest_token_bytes = 0;  // of the vocabulary; 0 without a tokenizer
  bool prefix_cache = true;
  engine::AttentionChoice attention;              // unless a request says otherwise
  std::vector<engine::AttentionPolicy> policies;  // that a request may name
  int max_top_k_blocks = 0;
  std::string kv_variant;  // what KV bits depend on beside the tokens (memory/block_key.h)
};

}  // namespace augur::server
