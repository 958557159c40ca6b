// Sampled attention as a deployment and a request say it: exact values or an unbiased sample of
// them, by which estimator, with how many rows. engine/attention/sampling.md explains the family.
// Plain data and pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/kv_options.h"
#include "kernels/ops/sampled_attention.h"
#include "memory/layer_residency.h"

namespace augur::engine {

enum class ValueEstimator {
  kIid,
  kStratified,
  kSystematic,
  kProportional,
  kLargestRemainder,
  kFlash,
  kShared,
  // Sample the query's features, not the values: logits are unbiased, their softmax is not.
  kBernoulliScores,
  kBernoulliScoresGroup,
};

std::string_view NameOf(ValueEstimator estimator);  // "iid", ..., "bernoulli_scores_group"
std::optional<ValueEstimator> ValueEstimatorNamed(std::string_view name);
std::string_view NameOf(memory::ValueFetch fetch);  // "auto", "rows", "whole"
std::optional<memory::ValueFetch> ValueFetchNamed(std::string_view name);

// What a request's generated tokens do. Prompt tokens always read all values.
struct ValueChoice {
  bool sampled = false;
  int samples = 0;  // 0: the deployment's, layer by layer
};

// What a deployment says.
struct ValueSettings {
  bool sampled = false;           // of requests that do not say
  bool request_override = false;  // requests may say
  ValueEstimator estimator = ValueEstimator::kProportional;
  kernels::ValueBudget budget = kernels::ValueBudget::kDraws;
  std::vector<int> samples = {128};  // one for all layers, or one a layer
  int max_samples = 4096;            // of a request
  memory::ValueFetch fetch = memory::ValueFetch::kAuto;

  bool offered() const { return sampled || request_override; }
};

// The same for a model: samples has one entry a layer.
struct ValueSampling : ValueSettings {
  bool samples_queries() const {
    return estimator == ValueEstimator::kBernoulliScores ||
           estimator == ValueEstimator::kBernoulliScoresGroup;
  }
  // Sequences keep sums of values (memory/kv_layout.h).
  bool needs_value_sums() const { return offered() && estimator == ValueEstimator::kShared; }
  // Of the estimators that draw values.
  kernels::ValueEstimator kernel_estimator() const {
    return static_cast<kernels::ValueEstimator>(estimator);
  }
};

// INVALID_ARGUMENT naming key, value and limit.
absl::StatusOr<ValueSampling> ResolveValues(const ValueSettings& settings, int num_layers,
                                            ResidencyMode residency, bool on_device);

// "128" or "64,64,128": positive numbers; nothing where it is something else.
std::optional<std::vector<int>> ParseSamples(std::string_view text);
std::string FormatSamples(const std::vector<int>& samples);

}  // namespace augur::engine
