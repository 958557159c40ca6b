#include "engine/tokenizer/bpe_model.h"

#include <algorithm>
#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/tokenizer/utf8.h"

namespace augur::engine {
namespace {

uint64_t PairOf(TokenId left, TokenId right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

// Order of the heap: the lowest rank first, of equals the leftmost.
bool ComesLater(const BpeModel::Scratch::Candidate& a, const BpeModel::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

MergeTable::MergeTable(size_t merges) : shift_(60) {
  size_t slots = 16;
  while (slots < 2 * merges + 2) {
    slots *= 2;
    --shift_;
  }
  slots_.resize(slots);
}

size_t MergeTable::Locate(uint64_t pair) const {
  size_t at = static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> shift_);
  while (slots_[at].pair != kFree && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void MergeTable::Insert(TokenId left, TokenId right, Merge merge) {
  const uint64_t pair = PairOf(left, right);
  slots_[Locate(pair)] = {pair, merge};
}

MergeTable::Merge MergeTable::Find(TokenId left, TokenId right) const {
  return slots_[Locate(PairOf(left, right))].merge;
}

absl::StatusOr<BpeModel> BpeModel::Create(
    Vocabulary vocabulary, const std::vector<std::pair<std::string, std::string>>& merges,
    BpeOptions options) {
  MergeTable table(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const auto& [left, right] = merges[rank];
    const auto left_entry = vocabulary.find(left);
    const auto right_entry = vocabulary.find(right);
    const auto result = vocabulary.find(left + right);
    for (const auto& [entry, text] : {std::pair(left_entry, left), std::pair(right_entry, right),
                                      std::pair(result, left + right)}) {
      if (entry == vocabulary.end()) {
        return absl::InvalidArgumentError(absl::StrCat("model.merges[", rank,
                                                       "]: expected tokens of model.vocab"
                                                       ", found \"",
                                                       text, "\""));
      }
    }
    table.Insert(left_entry->second, right_entry->second,
                 {static_cast<int32_t>(rank), result->second});
  }
  if (!options.unknown_token.empty() && !vocabulary.contains(options.unknown_token)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.unk_token: expected a token of model.vocab, found \"", options.unknown_token, "\""));
  }
  return BpeModel(std::move(vocabulary), std::move(table), std::move(options));
}

BpeModel::BpeModel(Vocabulary vocabulary, MergeTable merges, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), merges_(std::move(merges)), options_(std::move(options)) {
  if (!options_.unknown_token.empty()) unknown_id_ = vocabulary_.at(options_.unknown_token);
  IndexSingleCharacters();
}

void BpeModel::IndexSingleCharacters() {
  std::string key;
  for (char32_t c = 0; c < short_characters_.size(); ++c) {
    key.clear();
    AppendUtf8(c, &key);
    const auto entry = vocabulary_.find(key);
    short_characters_[c] = entry == vocabulary_.end() ? -1 : entry->second;
  }
  for (size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(byte));
    const auto entry = vocabulary_.find(name);
    byte_tokens_[byte] = entry == vocabulary_.end() ? -1 : entry->second;
  }
}

TokenId BpeModel::FindCharacter(std::string_view character, char32_t code_point,
                                std::string* key) const {
  if (code_point < short_characters_.size()) return short_characters_[code_point];
  key->assign(character);
  const auto entry = vocabulary_.find(*key);
  return entry == vocabulary_.end() ? -1 : entry->second;
}

bool BpeModel::AppendByteTokens(std::string_view character, Scratch* scratch) const {
  for (const char byte : character) {
    if (byte_tokens_[static_cast<uint8_t>(byte)] < 0) return false;
  }
  for (const char byte : character) {
    scratch->symbols.push_back({byte_tokens_[static_cast<uint8_t>(byte)], 0, 0});
  }
  return true;
}

void BpeModel::SplitIntoSymbols(std::string_view piece, Scratch* scratch) const {
  scratch->symbols.clear();
  // An unknown token is held back until the next known character: byte tokens overtake it, as in
  // Hugging Face.
  bool unknown_pending = false;
  for (size_t at = 0; at < piece.size();) {
    const Utf8Step step = StepUtf8(piece.substr(at));
    const std::string_view character = piece.substr(at, step.length);
    at += step.length;
    const TokenId id = FindCharacter(character, step.code_point, &scratch->key);
    if (id >= 0) {
      if (unknown_pending) scratch->symbols.push_back({unknown_id_, 0, 0});
      unknown_pending = false;
      scratch->symbols.push_back({id, 0, 0});
      continue;
    }
    if (options_.byte_fallback && AppendByteTokens(character, scratch)) continue;
    if (unknown_id_ < 0) continue;
    if (unknown_pending && !options_.fuse_unknown) scratch->symbols.push_back({unknown_id_, 0, 0});
    unknown_pending = true;
  }
  if (unknown_pending) scratch->symbols.push_back({unknown_id_, 0, 0});
  const int64_t count = static_cast<int64_t>(scratch->symbols.size());
  for (int64_t i = 0; i < count; ++i) {
    scratch->symbols[static_cast<size_t>(i)].previous = i - 1;
    scratch->symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
}

// Puts the merge of the symbol at `at` with its right neighbour on the heap, if there is one.
void BpeModel::OfferMerge(int64_t at, Scratch* scratch) const {
  if (at < 0) return;
  const Scratch::Symbol& left = scratch->symbols[static_cast<size_t>(at)];
  if (left.next < 0) return;
  const MergeTable::Merge merge =
      merges_.Find(left.id, scratch->symbols[static_cast<size_t>(left.next)].id);
  if (merge.rank < 0) return;
  scratch->heap.push_back({merge.rank, merge.result, at});
  std::push_heap(scratch->heap.begin(), scratch->heap.end(), ComesLater);
}

void BpeModel::MergeSymbols(Scratch* scratch) const {
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  heap.clear();
  for (size_t i = 0; i < symbols.size(); ++i) OfferMerge(static_cast<int64_t>(i), scratch);
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), ComesLater);
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<size_t>(best.at)];
    if (left.id < 0 || left.next < 0) continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    // A neighbour may have changed since the merge was offered.
    if (merges_.Find(left.id, right.id).result != best.result) continue;
    left.id = best.result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.at;
    OfferMerge(left.previous, scratch);
    OfferMerge(best.at, scratch);
  }
}

void BpeModel::Encode(std::string_view piece, Scratch* scratch, std::vector<TokenId>* ids) const {
  if (piece.empty()) return;
  if (options_.ignore_merges) {
    scratch->key.assign(piece);
    const auto entry = vocabulary_.find(scratch->key);
    if (entry != vocabulary_.end()) {
      ids->push_back(entry->second);
      return;
    }
  }
  SplitIntoSymbols(piece, scratch);
  MergeSymbols(scratch);
  if (scratch->symbols.empty()) return;
  for (int64_t at = 0; at >= 0; at = scratch->symbols[static_cast<size_t>(at)].next) {
    ids->push_back(scratch->symbols[static_cast<size_t>(at)].id);
  }
}

}  // namespace augur::engine
