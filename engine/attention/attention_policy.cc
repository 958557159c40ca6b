#include "engine/attention/attention_policy.h"

#include <array>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace augur::engine {
namespace {

constexpr std::array<std::pair<AttentionPolicy, std::string_view>, 4> kNames = {{
    {AttentionPolicy::kDense, "dense"},
    {AttentionPolicy::kSparse, "sparse"},
    {AttentionPolicy::kInfinigen, "infinigen"},
    {AttentionPolicy::kForecast, "forecast"},
}};

}  // namespace

std::string_view NameOf(AttentionPolicy policy) {
  for (const auto& [named, name] : kNames) {
    if (named == policy) return name;
  }
  return "unknown";
}

std::optional<AttentionPolicy> PolicyNamed(std::string_view name) {
  for (const auto& [policy, known] : kNames) {
    if (known == name) return policy;
  }
  return std::nullopt;
}

std::string AttentionChoice::Fingerprint() const {
  const std::string_view prefill_name = NameOf(prefill), decode_name = NameOf(decode);
  return absl::StrCat(std::string(prefill_name), "/", std::string(decode_name), "/", budget.top_k,
                      "/", budget.init, "/", budget.local, "/", dense_len);
}

AttentionPolicy PolicyAt(const AttentionChoice& choice, int position, int prompt_tokens) {
  const bool in_prompt = position < prompt_tokens;
  const int length = in_prompt ? prompt_tokens : position + 1;
  if (length < choice.dense_len) return AttentionPolicy::kDense;
  if (!in_prompt) return choice.decode;
  return choice.prefill == AttentionPolicy::kInfinigen ? AttentionPolicy::kSparse : choice.prefill;
}

int NextPolicyChange(const AttentionChoice& choice, int position, int prompt_tokens) {
  const AttentionPolicy now = PolicyAt(choice, position, prompt_tokens);
  // It can change at the end of the prompt and where the length reaches dense_len.
  int next = std::numeric_limits<int>::max();
  for (const int at : {prompt_tokens, choice.dense_len - 1}) {
    if (at > position && at < next && PolicyAt(choice, at, prompt_tokens) != now) next = at;
  }
  return next;
}

}  // namespace augur::engine
