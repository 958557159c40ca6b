#include "engine/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/tokenizer/utf8.h"

namespace augur::engine {
namespace {

constexpr size_t kMaxContentBytes = 4096;

// Rust's \w: Alphabetic, marks, decimal digits, connectors and the two joiners.
constexpr std::string_view kWordCharacter = R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])";

// Where the last character of text[0, end) begins; end > 0.
size_t CharacterBefore(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

// Unicode's White_Space.
bool IsWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Where the white space that ends at `end` begins, not before `earliest`.
size_t SpaceBegin(std::string_view text, size_t end, size_t earliest) {
  while (end > earliest) {
    const size_t begin = CharacterBefore(text, end);
    if (!IsWhiteSpace(StepUtf8(text.substr(begin)).code_point)) break;
    end = begin;
  }
  return std::max(end, earliest);
}

// Where the white space that begins at `begin` ends.
size_t SpaceEnd(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Step step = StepUtf8(text.substr(begin));
    if (!IsWhiteSpace(step.code_point)) break;
    begin += step.length;
  }
  return begin;
}

bool Matches(const Regex& one_character, std::string_view character) {
  return !one_character.FindAll(character).spans.empty();
}

}  // namespace

AddedTokens::Finder::Finder() : nodes_(1, -1) {}

void AddedTokens::Finder::Add(std::string_view content, size_t token) {
  uint32_t node = 0;
  begins_[static_cast<uint8_t>(content[0])] = true;
  for (const char byte : content) {
    const uint64_t edge = (uint64_t{node} << 8) | static_cast<uint8_t>(byte);
    const auto [entry, added] = edges_.try_emplace(edge, static_cast<uint32_t>(nodes_.size()));
    if (added) nodes_.push_back(-1);
    node = entry->second;
  }
  if (nodes_[node] < 0) nodes_[node] = static_cast<int64_t>(token);
}

int64_t AddedTokens::Finder::LongestAt(std::string_view text, size_t at, size_t* length) const {
  if (!begins_[static_cast<uint8_t>(text[at])]) return -1;
  int64_t longest = -1;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    const auto edge = edges_.find((uint64_t{node} << 8) | static_cast<uint8_t>(text[i]));
    if (edge == edges_.end()) break;
    node = edge->second;
    if (nodes_[node] < 0) continue;
    longest = nodes_[node];
    *length = i + 1 - at;
  }
  return longest;
}

absl::StatusOr<AddedTokens> AddedTokens::Create(std::vector<AddedToken> tokens,
                                                const Normalizer& normalizer) {
  AddedTokens added(std::move(tokens), Regex::CompileOwn(kWordCharacter));
  for (size_t i = 0; i < added.tokens_.size(); ++i) {
    const AddedToken& token = added.tokens_[i];
    const std::string content = token.normalized ? normalizer.Apply(token.content) : token.content;
    if (content.empty() || content.size() > kMaxContentBytes) {
      return absl::InvalidArgumentError(absl::StrCat("added_tokens[", i,
                                                     "].content: expected 1 to ", kMaxContentBytes,
                                                     " bytes, found ", content.size()));
    }
    (token.normalized ? added.normalized_ : added.raw_).Add(content, i);
  }
  return added;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, Regex word_character)
    : tokens_(std::move(tokens)), word_character_(std::move(word_character)) {}

bool AddedTokens::StandsAlone(std::string_view text, TextSpan match) const {
  if (match.begin > 0) {
    const size_t begin = CharacterBefore(text, match.begin);
    if (Matches(word_character_, text.substr(begin, match.begin - begin))) return false;
  }
  if (match.end == text.size()) return true;
  return !Matches(word_character_, text.substr(match.end, StepUtf8(text.substr(match.end)).length));
}

std::vector<AddedTokenSplit> AddedTokens::Split(std::string_view text, Pass pass,
                                                bool parse_special) const {
  const Finder& finder = pass == Pass::kRawText ? raw_ : normalized_;
  std::vector<AddedTokenSplit> splits;
  size_t done = 0;
  for (size_t at = 0; at < text.size() && finder.any();) {
    size_t length = 0;
    const int64_t found = finder.LongestAt(text, at, &length);
    if (found < 0) {
      ++at;
      continue;
    }
    // What a match covers is not searched again, even where the match does not count (as in Hugging
    // Face).
    TextSpan match = {at, at + length};
    at += length;
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    if (token.special && !parse_special) continue;
    if (token.single_word && !StandsAlone(text, match)) continue;
    if (token.lstrip) match.begin = SpaceBegin(text, match.begin, done);
    if (token.rstrip) match.end = SpaceEnd(text, match.end);
    if (done < match.begin) splits.push_back({-1, {done, match.begin}});
    splits.push_back({token.id, match});
    done = match.end;
  }
  if (done < text.size()) splits.push_back({-1, {done, text.size()}});
  return splits;
}

}  // namespace augur::engine
