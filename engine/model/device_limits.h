// What a device does not serve, refused by name when a model is loaded. Pure.
#pragma once

#include "absl/status/status.h"
#include "engine/attention/attention_policy.h"
#include "engine/kv_options.h"
#include "engine/model/model_config.h"

namespace augur::engine {

// INVALID_ARGUMENT naming key, limit and what was found. Estimators and budgets of sampled values
// are ResolveValues' to refuse.
absl::Status CheckDeviceServes(const ModelConfig& config, const KvOptions& kv,
                               const ResolvedAttention& attention, int max_context);

}  // namespace augur::engine
