// What a step's rows ask for beside a plain draw, gathered on the host: how runners see that a step
// has nothing of the kind, and what they upload where it has.
//
// Thread: the engine's. Ownership: values. Failure: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/ops/adjust_logits.h"

namespace augur::engine {

// Prompt tokens to be told: the hidden row before each, the token, and how many alternatives.
struct ToldList {
  std::vector<int32_t> row_ids, tokens, top;

  void Clear() {
    row_ids.clear();
    tokens.clear();
    top.clear();
  }
  void Add(int row, int32_t token, int alternatives) {
    row_ids.push_back(row);
    tokens.push_back(token);
    top.push_back(alternatives);
  }
};

inline bool HasRules(const std::vector<kernels::LogitRule>& rules) {
  return std::any_of(rules.begin(), rules.end(),
                     [](const kernels::LogitRule& rule) { return rule.slot >= 0; });
}

// top: as kernels::TopLogprobsParams has it.
inline bool WantsLogprobs(const std::vector<int32_t>& top) {
  return std::any_of(top.begin(), top.end(), [](int32_t count) { return count >= 0; });
}

}  // namespace augur::engine
