#include "engine/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/tokenizer/utf8.h"

namespace augur::engine {
namespace {

constexpr size_t kMaxContentBytes = 1024;
constexpr size_t kMaxGrowth = 4;

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

void AddedTokens::Finder::Build(const std::vector<AddedToken>& tokens, bool normalized) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i].normalized == normalized) order_.push_back(static_cast<uint32_t>(i));
  }
  // Of equal contents the first token stands first.
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) {
    const int order = tokens[a].content.compare(tokens[b].content);
    return order != 0 ? order < 0 : a < b;
  });
  for (const uint32_t token : order_) ++begins_[static_cast<uint8_t>(tokens[token].content[0]) + 1];
  for (size_t byte = 0; byte < 256; ++byte) begins_[byte + 1] += begins_[byte];
}

int64_t AddedTokens::Finder::LongestAt(const std::vector<AddedToken>& tokens, std::string_view text,
                                       size_t at, size_t* length) const {
  const size_t first = static_cast<uint8_t>(text[at]);
  auto begin = order_.begin() + begins_[first];
  auto end = order_.begin() + begins_[first + 1];
  int64_t longest = -1;
  // All tokens of [begin, end) begin with the `matched` bytes at `at`.
  for (size_t matched = 1; begin != end; ++matched) {
    if (tokens[*begin].content.size() == matched) {
      longest = *begin;
      *length = matched;
      while (begin != end && tokens[*begin].content.size() == matched) ++begin;
    }
    if (at + matched == text.size()) break;
    const uint8_t next = static_cast<uint8_t>(text[at + matched]);
    const auto byte_of = [&](uint32_t token) {
      return static_cast<uint8_t>(tokens[token].content[matched]);
    };
    begin = std::lower_bound(begin, end, next,
                             [&](uint32_t token, uint8_t byte) { return byte_of(token) < byte; });
    end = std::upper_bound(begin, end, next,
                           [&](uint8_t byte, uint32_t token) { return byte < byte_of(token); });
  }
  return longest;
}

absl::StatusOr<AddedTokens> AddedTokens::Create(std::vector<AddedToken> tokens,
                                                const Normalizer& normalizer) {
  size_t written_bytes = 0;
  size_t sought_bytes = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    AddedToken& token = tokens[i];
    written_bytes += token.content.size();
    if (token.normalized) token.content = normalizer.Apply(token.content);
    sought_bytes += token.content.size();
    const std::string where = absl::StrCat("added_tokens[", i, "].content: expected ");
    if (token.content.empty() || token.content.size() > kMaxContentBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, "1 to ", kMaxContentBytes, " bytes, found ", token.content.size()));
    }
    if (sought_bytes > kMaxGrowth * written_bytes + kMaxContentBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, "tokens that the normalizer lengthens at most ", kMaxGrowth,
                       " times, found ", sought_bytes, " bytes of ", written_bytes));
    }
  }
  return AddedTokens(std::move(tokens), Regex::CompileOwn(kWordCharacter));
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, Regex word_character)
    : tokens_(std::move(tokens)), word_character_(std::move(word_character)) {
  raw_.Build(tokens_, /*normalized=*/false);
  normalized_.Build(tokens_, /*normalized=*/true);
}

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
    const int64_t found = finder.LongestAt(tokens_, text, at, &length);
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
