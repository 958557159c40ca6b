// What is asked of attention in one run of an evaluation, and its names, as on the command line:
// `dense` is ATTENTION_POLICY_DENSE, `dense/forecast` prompts under one policy and generated tokens
// under another.
//
// Thread: plain functions. Failure: InvalidArgument for a name that the API does not know.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "augur/v1/completions.pb.h"

namespace augur::loadtest {

std::string PolicyName(v1::AttentionPolicy policy);
absl::StatusOr<v1::AttentionPolicy> PolicyOf(std::string_view name);

struct AttentionVariant {
  v1::AttentionPolicy policy = v1::ATTENTION_POLICY_UNSPECIFIED;
  v1::AttentionPolicy prefill = v1::ATTENTION_POLICY_UNSPECIFIED;  // as `policy`
  std::optional<uint32_t> top_k_blocks = {};   // the daemon's choice; never with dense alone
  std::optional<uint32_t> value_samples = {};  // 0: exact values; unset: the daemon's choice

  auto operator<=>(const AttentionVariant&) const = default;
  bool is_dense() const {
    return policy == v1::ATTENTION_POLICY_DENSE &&
           (prefill == v1::ATTENTION_POLICY_UNSPECIFIED || prefill == policy);
  }
};

// "sparse", "dense/forecast", "sparse 16 blocks", "sparse exact", "sparse 16 blocks 128 samples".
std::string VariantName(const AttentionVariant& variant);

// Of "sparse" or "dense/forecast": policies alone.
absl::StatusOr<AttentionVariant> VariantOf(std::string_view name);

}  // namespace augur::loadtest
