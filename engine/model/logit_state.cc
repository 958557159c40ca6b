#include "engine/model/logit_state.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

kernels::LogitRule RuleAt(const StepSegment& segment, int slot, int position) {
  const LogitRules& rules = *segment.rules;
  const int generated = position + 1 - segment.prompt_tokens;
  return {.slot = slot,
          .position = position,
          .repetition = rules.repetition_penalty,
          .frequency = rules.frequency_penalty,
          .presence = rules.presence_penalty,
          .has_bias = rules.has_bias() ? 1 : 0,
          .holds_ends = rules.holds_ends(generated) ? 1 : 0};
}

int LastPosition(const StepSegment& segment) {
  return segment.rows.first_position + segment.rows.num_rows - 1;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LogitState>> LogitState::Create(kernels::Backend* backend, int slots,
                                                               int vocab) {
  std::unique_ptr<LogitState> state(new LogitState(backend, slots, vocab));
  if (state->allocated()) return state;
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for biases and counts of tokens: ", int64_t{8} * slots * vocab,
                   " bytes (batch ", slots, ")"));
}

LogitState::LogitState(kernels::Backend* backend, int slots, int vocab)
    : backend_(backend),
      vocab_(vocab),
      bias_(backend, size_t(slots) * vocab),
      words_(backend, size_t(slots) * vocab),
      counted_(backend, slots) {
  for (Staging& staging : staging_) {
    staging.bias = static_cast<float*>(backend->AllocateHost(vocab * sizeof(float)));
    staging.words = static_cast<uint32_t*>(backend->AllocateHost(vocab * sizeof(uint32_t)));
    staging.counted = static_cast<int32_t*>(backend->AllocateHost(sizeof(int32_t)));
  }
  for (int slot = slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

LogitState::~LogitState() {
  for (const Staging& staging : staging_) {
    for (void* data : {static_cast<void*>(staging.bias), static_cast<void*>(staging.words),
                       static_cast<void*>(staging.counted)}) {
      if (data != nullptr) backend_->Free(data);
    }
  }
}

bool LogitState::allocated() const {
  return bias_.allocated() && words_.allocated() && counted_.allocated() &&
         std::all_of(staging_.begin(), staging_.end(), [](const Staging& staging) {
           return staging.bias != nullptr && staging.words != nullptr && staging.counted != nullptr;
         });
}

kernels::LogitRule LogitState::Prepare(const StepSegment& segment) {
  if (segment.rules == nullptr) return {};
  const auto [at, is_new] = slots_.try_emplace(segment.kv->id, -1);
  if (is_new) {
    AUGUR_CHECK(!free_slots_.empty());
    at->second = free_slots_.back();
    free_slots_.pop_back();
    Fill(at->second, segment);
  }
  return RuleAt(segment, at->second, LastPosition(segment));
}

kernels::LogitRule LogitState::Next(const StepSegment& segment) const {
  const int position = LastPosition(segment) + 1;
  if (segment.rules == nullptr || !segment.rules->ApplyAt(position + 1 - segment.prompt_tokens)) {
    return {};
  }
  return RuleAt(segment, slots_.at(segment.kv->id), position);
}

void LogitState::Remove(memory::SequenceId id) {
  const auto at = slots_.find(id);
  if (at == slots_.end()) return;
  free_slots_.push_back(at->second);
  slots_.erase(at);
}

void LogitState::Fill(int slot, const StepSegment& segment) {
  const LogitRules& rules = *segment.rules;
  const int known = LastPosition(segment) + 1;
  AUGUR_CHECK(static_cast<int>(segment.tokens.size()) >= known);
  Staging& staging = staging_[next_staging_++ % staging_.size()];
  backend_->Wait(staging.mark);
  std::fill_n(staging.words, vocab_, 0u);
  for (int i = 0; i < known; ++i) {
    uint32_t& word = staging.words[segment.tokens[i]];
    if (i < segment.prompt_tokens) {
      word |= kernels::kTokenInPrompt;
    } else {
      ++word;
    }
  }
  for (const TokenId id : rules.ending) staging.words[id] |= kernels::kTokenEnds;
  *staging.counted = known;
  const size_t first = size_t(slot) * vocab_;
  backend_->Copy(words_.data() + first, staging.words, vocab_ * sizeof(uint32_t));
  backend_->Copy(counted_.data() + slot, staging.counted, sizeof(int32_t));
  if (rules.has_bias()) {
    const float others = rules.allowed.empty() ? 0.0f : -std::numeric_limits<float>::infinity();
    std::fill_n(staging.bias, vocab_, others);
    for (const TokenId id : rules.allowed) staging.bias[id] = 0.0f;
    for (const auto& [id, bias] : rules.bias) staging.bias[id] += bias;
    backend_->Copy(bias_.data() + first, staging.bias, vocab_ * sizeof(float));
  }
  staging.mark = backend_->Mark();
}

}  // namespace augur::engine
