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

absl::StatusOr<ResolvedAttention> ResolveAttention(const AttentionSettings& settings,
                                                   const std::optional<SparseConfig>& model) {
  const AttentionChoice built_in;
  const SparseConfig base =
      model.value_or(SparseConfig{.budget = built_in.budget, .dense_len = built_in.dense_len});
  // A model that was trained to select does so unless told otherwise.
  const AttentionPolicy policy = model ? AttentionPolicy::kSparse : AttentionPolicy::kDense;
  ResolvedAttention resolved;
  AttentionChoice& choice = resolved.choice;
  choice.prefill = settings.prefill.value_or(policy);
  choice.decode = settings.decode.value_or(policy);
  choice.budget = {.top_k = settings.top_k_blocks.value_or(base.budget.top_k),
                   .init = settings.init_blocks.value_or(base.budget.init),
                   .local = settings.local_blocks.value_or(base.budget.local)};
  choice.dense_len = settings.dense_len.value_or(base.dense_len);
  resolved.max_top_k = settings.max_top_k_blocks.value_or(choice.budget.top_k);
  resolved.spare_slots = settings.spare_slots.value_or(choice.budget.top_k);

  const int forced = choice.budget.init + choice.budget.local;
  if (choice.budget.top_k < forced) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k_blocks: expected at least init_blocks + local_blocks = ", forced,
                     ", found ", choice.budget.top_k));
  }
  if (resolved.max_top_k < choice.budget.top_k) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_top_k_blocks: expected at least top_k_blocks = ", choice.budget.top_k,
                     ", found ", resolved.max_top_k));
  }
  if (choice.prefill == AttentionPolicy::kInfinigen) {
    return absl::InvalidArgumentError(
        "prefill_policy: expected dense, sparse or forecast, found infinigen, which chooses for "
        "generated tokens only (its prompts are sparse)");
  }
  if (choice.decode == AttentionPolicy::kInfinigen && settings.infinigen_basis.empty()) {
    return absl::InvalidArgumentError(
        "decode_policy: infinigen needs infinigen_basis, a file that augur-infinigen-basis makes");
  }
  for (const auto& [key, chosen] :
       {std::pair{"prefill_policy", choice.prefill}, std::pair{"decode_policy", choice.decode}}) {
    if (chosen != AttentionPolicy::kForecast || !settings.forecast_heads.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        key, ": forecast needs forecast_heads, a file of trained heads (augur-train-forecast)"));
  }
  return resolved;
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
