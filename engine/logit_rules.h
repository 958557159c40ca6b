// What a request changes of the logits before its tokens are drawn, as the engine core hands it to
// a runner: penalties, biases, allowed tokens, and a least number of tokens. The order and the
// formulae are kernels/ops/adjust_logits.h's.
//
// Thread: immutable once made. Ownership: values. Failure: none; ids are in the vocabulary.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace augur::engine {

struct LogitRules {
  float repetition_penalty = 1.0f;  // of tokens of the prompt and generated ones; 1: off
  float presence_penalty = 0.0f;    // of generated tokens, once; 0: off
  float frequency_penalty = 0.0f;   // likewise, for each time
  std::vector<std::pair<TokenId, float>> bias = {};
  std::vector<TokenId> allowed = {};  // empty: all
  // Not drawn before min_tokens are there: what would end the sequence.
  std::vector<TokenId> ending = {};
  int min_tokens = 0;

  bool has_bias() const { return !bias.empty() || !allowed.empty(); }
  bool has_penalty() const {
    return repetition_penalty != 1.0f || presence_penalty != 0.0f || frequency_penalty != 0.0f;
  }
  bool holds_ends(int num_generated) const { return num_generated < min_tokens && !ending.empty(); }
  // Whether the token behind `num_generated` ones is drawn under any of them. Once false it stays
  // so.
  bool ApplyAt(int num_generated) const {
    return has_bias() || has_penalty() || holds_ends(num_generated);
  }
};

// nullopt: the request has none.
std::optional<LogitRules> RulesOf(const Request& request,
                                  const std::vector<TokenId>& eos_token_ids);

}  // namespace augur::engine
