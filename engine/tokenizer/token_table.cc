#include "engine/tokenizer/token_table.h"

#include <functional>

#include "kernels/check.h"

namespace augur::engine {

void TokenTable::Reserve(size_t tokens, size_t bytes) {
  spans_.reserve(tokens);
  bytes_.reserve(bytes);
}

void TokenTable::Set(TokenId id, std::string_view text) {
  AUGUR_CHECK(id >= 0 && bytes_.size() + text.size() < kHole);
  const size_t at = static_cast<size_t>(id);
  if (at >= spans_.size()) spans_.resize(at + 1);
  spans_[at] = {static_cast<uint32_t>(bytes_.size()), static_cast<uint32_t>(text.size())};
  bytes_.append(text);
}

void TokenTable::BuildIndex() {
  size_t tokens = 0;
  for (const Span& span : spans_) tokens += span.size != kHole;
  size_t slots = 16;
  while (slots < 2 * tokens) slots *= 2;
  slots_.assign(slots, -1);
  for (size_t id = 0; id < spans_.size(); ++id) {
    if (spans_[id].size == kHole) continue;
    TokenId* slot = &slots_[Locate(Text(static_cast<TokenId>(id)))];
    if (*slot < 0) *slot = static_cast<TokenId>(id);
  }
}

std::string_view TokenTable::Text(TokenId id) const {
  if (!Has(id)) return {};
  const Span& span = spans_[static_cast<size_t>(id)];
  return std::string_view(bytes_).substr(span.begin, span.size);
}

// The slot of the string, or the free one where it would be.
size_t TokenTable::Locate(std::string_view text) const {
  size_t at = std::hash<std::string_view>()(text) & (slots_.size() - 1);
  while (slots_[at] >= 0 && Text(slots_[at]) != text) at = (at + 1) & (slots_.size() - 1);
  return at;
}

TokenId TokenTable::Find(std::string_view text) const {
  return slots_.empty() ? -1 : slots_[Locate(text)];
}

}  // namespace augur::engine
