#include "loadtest/attention_policies.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace augur::loadtest {

std::string PolicyName(v1::AttentionPolicy policy) {
  return absl::AsciiStrToLower(
      absl::StripPrefix(v1::AttentionPolicy_Name(policy), "ATTENTION_POLICY_"));
}

absl::StatusOr<v1::AttentionPolicy> PolicyOf(std::string_view name) {
  std::string known;
  for (int value = 1; value <= v1::AttentionPolicy_MAX; ++value) {
    if (!v1::AttentionPolicy_IsValid(value)) continue;
    const auto policy = static_cast<v1::AttentionPolicy>(value);
    if (PolicyName(policy) == name) return policy;
    absl::StrAppend(&known, known.empty() ? "" : ", ", PolicyName(policy));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--policies: \"", std::string(name), "\" is no policy; there are ", known));
}

std::string VariantName(const AttentionVariant& variant) {
  std::string name = PolicyName(variant.policy);
  if (variant.prefill != v1::ATTENTION_POLICY_UNSPECIFIED) {
    name = absl::StrCat(PolicyName(variant.prefill), "/", name);
  }
  if (variant.top_k_blocks) absl::StrAppend(&name, " ", *variant.top_k_blocks, " blocks");
  if (!variant.value_samples) return name;
  return *variant.value_samples == 0 ? absl::StrCat(name, " exact")
                                     : absl::StrCat(name, " ", *variant.value_samples, " samples");
}

absl::StatusOr<AttentionVariant> VariantOf(std::string_view name) {
  const size_t slash = name.find('/');
  AttentionVariant variant;
  const absl::StatusOr<v1::AttentionPolicy> policy =
      PolicyOf(slash == std::string_view::npos ? name : name.substr(slash + 1));
  if (!policy.ok()) return policy.status();
  variant.policy = *policy;
  if (slash == std::string_view::npos) return variant;
  const absl::StatusOr<v1::AttentionPolicy> prefill = PolicyOf(name.substr(0, slash));
  if (!prefill.ok()) return prefill.status();
  variant.prefill = *prefill;
  return variant;
}

}  // namespace augur::loadtest
