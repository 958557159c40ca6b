#include "engine/attention/value_sampling.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

constexpr std::array<std::pair<ValueEstimator, std::string_view>, 9> kEstimators = {{
    {ValueEstimator::kIid, "iid"},
    {ValueEstimator::kStratified, "stratified"},
    {ValueEstimator::kSystematic, "systematic"},
    {ValueEstimator::kProportional, "proportional"},
    {ValueEstimator::kLargestRemainder, "largest_remainder"},
    {ValueEstimator::kFlash, "flash"},
    {ValueEstimator::kShared, "shared"},
    {ValueEstimator::kBernoulliScores, "bernoulli_scores"},
    {ValueEstimator::kBernoulliScoresGroup, "bernoulli_scores_group"},
}};
static_assert(static_cast<int>(ValueEstimator::kShared) ==
              static_cast<int>(kernels::ValueEstimator::kShared));

constexpr std::array<std::pair<memory::ValueFetch, std::string_view>, 3> kFetches = {{
    {memory::ValueFetch::kAuto, "auto"},
    {memory::ValueFetch::kRows, "rows"},
    {memory::ValueFetch::kWhole, "whole"},
}};

template <class Table, class Value>
std::string_view NameIn(const Table& table, Value value) {
  for (const auto& [named, name] : table) {
    if (named == value) return name;
  }
  return "unknown";
}

}  // namespace

std::string_view NameOf(ValueEstimator estimator) { return NameIn(kEstimators, estimator); }
std::string_view NameOf(memory::ValueFetch fetch) { return NameIn(kFetches, fetch); }

std::optional<ValueEstimator> ValueEstimatorNamed(std::string_view name) {
  for (const auto& [estimator, known] : kEstimators) {
    if (known == name) return estimator;
  }
  return std::nullopt;
}

std::optional<memory::ValueFetch> ValueFetchNamed(std::string_view name) {
  for (const auto& [fetch, known] : kFetches) {
    if (known == name) return fetch;
  }
  return std::nullopt;
}

namespace {

// Of the estimators kernels/cuda has some, budgets of rows where they need no search.
absl::Status CheckDeviceDraws(const ValueSettings& values) {
  constexpr std::array kServed = {ValueEstimator::kProportional, ValueEstimator::kFlash,
                                  ValueEstimator::kShared};
  if (std::find(kServed.begin(), kServed.end(), values.estimator) == kServed.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention.values.estimator: expected proportional, flash or shared with device: cuda, "
        "found ",
        std::string(NameOf(values.estimator)), "; device: cpu serves it"));
  }
  if (values.budget == kernels::ValueBudget::kRows && values.estimator != ValueEstimator::kShared) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention.values.budget: expected draws with device: cuda and "
                     "attention.values.estimator: ",
                     std::string(NameOf(values.estimator)), ", found rows; device: cpu serves it"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ValueSampling> ResolveValues(const ValueSettings& settings, int num_layers,
                                            ResidencyMode residency, bool on_device) {
  ValueSampling values{settings};
  if (values.max_samples < 1 || values.max_samples > kernels::kMaxValueSamples) {
    return absl::InvalidArgumentError(absl::StrCat("attention.values.max_samples: expected 1 to ",
                                                   kernels::kMaxValueSamples, ", found ",
                                                   values.max_samples));
  }
  if (values.samples.size() == 1) values.samples.resize(num_layers, values.samples[0]);
  if (static_cast<int>(values.samples.size()) != num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention.values.samples: expected 1 number or one for each of the model's ",
                     num_layers, " layers, found ", settings.samples.size()));
  }
  for (const int samples : values.samples) {
    if (samples >= 1 && samples <= values.max_samples) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("attention.values.samples: expected 1 to ", values.max_samples,
                     " (attention.values.max_samples), found ", samples));
  }
  if (!values.offered()) return values;
  if (on_device) AUGUR_RETURN_IF_ERROR(CheckDeviceDraws(values));
  // A sampled query reads all values, which a tier that moves keys alone does not have.
  if (values.samples_queries() && residency != ResidencyMode::kDevice) {
    return absl::InvalidArgumentError(
        absl::StrCat("attention.values.estimator: expected one that draws values with residency: ",
                     NameOf(residency), ", found ", std::string(NameOf(values.estimator)),
                     ", which draws features of queries and reads all values"));
  }
  if (values.samples_queries() && values.budget == kernels::ValueBudget::kRows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "attention.values.budget: expected draws with attention.values.estimator: ",
        std::string(NameOf(values.estimator)), ", which reads no rows of values, found rows"));
  }
  return values;
}

std::optional<std::vector<int>> ParseSamples(std::string_view text) {
  std::vector<int> samples;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    int value = 0;
    if (!absl::SimpleAtoi(part, &value) || value < 1) return std::nullopt;
    samples.push_back(value);
  }
  return samples;
}

std::string FormatSamples(const std::vector<int>& samples) { return absl::StrJoin(samples, ","); }

}  // namespace augur::engine
