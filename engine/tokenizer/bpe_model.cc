#include "engine/tokenizer/bpe_model.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/json/json_document.h"
#include "engine/tokenizer/utf8.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

uint64_t PairOf(TokenId left, TokenId right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

}  // namespace

MergeTable::MergeTable() : slots_(16), shift_(60) {}

void MergeTable::Grow() {
  std::vector<Slot> old(slots_.size() * 2);
  old.swap(slots_);
  --shift_;
  for (const Slot& slot : old) {
    if (slot.pair != kFree) slots_[Locate(slot.pair)] = slot;
  }
}

size_t MergeTable::Locate(uint64_t pair) const {
  size_t at = static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> shift_);
  while (slots_[at].pair != kFree && slots_[at].pair != pair) at = (at + 1) & (slots_.size() - 1);
  return at;
}

void MergeTable::Insert(TokenId left, TokenId right, Merge merge) {
  const uint64_t pair = PairOf(left, right);
  if (slots_[Locate(pair)].pair == kFree && 2 * ++taken_ > slots_.size()) Grow();
  slots_[Locate(pair)] = {pair, merge};
}

MergeTable::Merge MergeTable::Find(TokenId left, TokenId right) const {
  return slots_[Locate(PairOf(left, right))].merge;
}

absl::StatusOr<BpeModel> BpeModel::Create(TokenTable vocabulary, BpeOptions options) {
  if (!options.unknown_token.empty() && vocabulary.Find(options.unknown_token) < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.unk_token: expected a token of model.vocab, found ",
                     ShownText(options.unknown_token)));
  }
  return BpeModel(std::move(vocabulary), std::move(options));
}

absl::Status BpeModel::AddMerge(std::string_view left, std::string_view right) {
  const std::string joined = absl::StrCat(std::string(left), std::string(right));
  const TokenId ids[] = {vocabulary_.Find(left), vocabulary_.Find(right), vocabulary_.Find(joined)};
  const std::string_view texts[] = {left, right, joined};
  for (size_t i = 0; i < 3; ++i) {
    if (ids[i] >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("expected tokens of model.vocab, found ", ShownText(texts[i])));
  }
  merges_.Insert(ids[0], ids[1], {static_cast<int32_t>(results_.size()), ids[2]});
  results_.push_back(ids[2]);
  return absl::OkStatus();
}

BpeModel::BpeModel(TokenTable vocabulary, BpeOptions options)
    : vocabulary_(std::move(vocabulary)), options_(std::move(options)) {
  if (!options_.unknown_token.empty()) unknown_id_ = vocabulary_.Find(options_.unknown_token);
  IndexSingleCharacters();
}

void BpeModel::IndexSingleCharacters() {
  std::string key;
  for (char32_t c = 0; c < short_characters_.size(); ++c) {
    key.clear();
    AppendUtf8(c, &key);
    short_characters_[c] = vocabulary_.Find(key);
  }
  for (size_t byte = 0; byte < byte_tokens_.size(); ++byte) {
    char name[8];
    std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(byte));
    byte_tokens_[byte] = vocabulary_.Find(name);
  }
}

TokenId BpeModel::FindCharacter(std::string_view character, char32_t code_point) const {
  if (code_point < short_characters_.size()) return short_characters_[code_point];
  return vocabulary_.Find(character);
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
    const TokenId id = FindCharacter(character, step.code_point);
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
  const int32_t count = static_cast<int32_t>(scratch->symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    scratch->symbols[static_cast<size_t>(i)].previous = i - 1;
    scratch->symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
}

bool BpeModel::FindMerge(int32_t at, const Scratch& scratch, uint64_t* offer) const {
  if (at < 0) return false;
  const Scratch::Symbol& left = scratch.symbols[static_cast<size_t>(at)];
  if (left.next < 0) return false;
  const MergeTable::Merge merge =
      merges_.Find(left.id, scratch.symbols[static_cast<size_t>(left.next)].id);
  *offer =
      (static_cast<uint64_t>(static_cast<uint32_t>(merge.rank)) << 32) | static_cast<uint32_t>(at);
  return merge.rank >= 0;
}

void BpeModel::OfferMerge(int32_t at, Scratch* scratch) const {
  uint64_t offer = 0;
  if (!FindMerge(at, *scratch, &offer)) return;
  scratch->heap.Push(offer);
}

void BpeModel::MergeSymbols(Scratch* scratch) const {
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  heap.Clear();
  uint64_t offer = 0;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (FindMerge(static_cast<int32_t>(i), *scratch, &offer)) heap.Append(offer);
  }
  heap.Order();
  while (!heap.empty()) {
    const int32_t at = static_cast<int32_t>(heap.least() & 0xFFFFFFFFu);
    const TokenId result = results_[heap.least() >> 32];
    heap.Pop();
    // Places come in the order of ranks: in a long piece each is another line of memory.
    for (const uint64_t next : heap.next()) {
      __builtin_prefetch(&symbols[static_cast<size_t>(next & 0xFFFFFFFFu)]);
    }
    Scratch::Symbol& left = symbols[static_cast<size_t>(at)];
    if (left.id < 0 || left.next < 0) continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    // A neighbour may have changed since the merge was offered.
    if (merges_.Find(left.id, right.id).result != result) continue;
    left.id = result;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = at;
    OfferMerge(left.previous, scratch);
    OfferMerge(at, scratch);
  }
}

void BpeModel::Encode(std::string_view piece, Scratch* scratch, std::vector<TokenId>* ids) const {
  if (piece.empty()) return;
  AUGUR_CHECK(piece.size() <= INT32_MAX);
  if (options_.ignore_merges) {
    if (const TokenId whole = vocabulary_.Find(piece); whole >= 0) {
      ids->push_back(whole);
      return;
    }
  }
  SplitIntoSymbols(piece, scratch);
  MergeSymbols(scratch);
  if (scratch->symbols.empty()) return;
  for (int32_t at = 0; at >= 0; at = scratch->symbols[static_cast<size_t>(at)].next) {
    ids->push_back(scratch->symbols[static_cast<size_t>(at)].id);
  }
}

}  // namespace augur::engine
