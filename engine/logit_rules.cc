#include "engine/logit_rules.h"

namespace augur::engine {

std::optional<LogitRules> RulesOf(const Request& request,
                                  const std::vector<TokenId>& eos_token_ids) {
  const SamplingParams& sampling = request.sampling;
  const StoppingCriteria& stopping = request.stopping;
  LogitRules rules{.repetition_penalty = sampling.repetition_penalty,
                   .presence_penalty = sampling.presence_penalty,
                   .frequency_penalty = sampling.frequency_penalty,
                   .bias = sampling.logit_bias,
                   .allowed = sampling.allowed_token_ids,
                   .ending = stopping.stop_token_ids,
                   .min_tokens = static_cast<int>(stopping.min_tokens)};
  if (!stopping.ignore_eos) {
    rules.ending.insert(rules.ending.end(), eos_token_ids.begin(), eos_token_ids.end());
  }
  if (!rules.ApplyAt(0)) return std::nullopt;
  return rules;
}

}  // namespace augur::engine
