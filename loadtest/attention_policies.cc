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

}  // namespace augur::loadtest
