#include "engine/tokenizer/utf8.h"

namespace augur::engine {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What a lead byte asks for: the number of continuation bytes and the range of the first of them
// (the range rules out overlong forms, surrogates and everything above U+10FFFF).
struct Lead {
  int continuations;  // -1: no lead byte
  uint8_t first_low;
  uint8_t first_high;
};

Lead ReadLead(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {-1, 0, 0};
}

}  // namespace

Utf8Step StepUtf8(std::string_view bytes) {
  const uint8_t first = static_cast<uint8_t>(bytes[0]);
  if (first < 0x80) return {Utf8Step::Kind::kCharacter, 1, first};
  const Lead lead = ReadLead(first);
  if (lead.continuations < 0) return {Utf8Step::Kind::kInvalid, 1, 0};
  const size_t length = static_cast<size_t>(lead.continuations) + 1;
  char32_t code_point = first & (0x3Fu >> lead.continuations);
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Utf8Step::Kind::kIncomplete, i, 0};
    const uint8_t byte = static_cast<uint8_t>(bytes[i]);
    const uint8_t low = i == 1 ? lead.first_low : 0x80;
    const uint8_t high = i == 1 ? lead.first_high : 0xBF;
    if (byte < low || byte > high) return {Utf8Step::Kind::kInvalid, i, 0};
    code_point = (code_point << 6) | (byte & 0x3Fu);
  }
  return {Utf8Step::Kind::kCharacter, length, code_point};
}

bool IsValidUtf8(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = StepUtf8(bytes.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter) return false;
    at += step.length;
  }
  return true;
}

void AppendUtf8(char32_t code_point, std::string* out) {
  const uint32_t c = code_point;
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
    return;
  }
  if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | (c >> 6)));
  } else {
    if (c < 0x10000) {
      out->push_back(static_cast<char>(0xE0 | (c >> 12)));
    } else {
      out->push_back(static_cast<char>(0xF0 | (c >> 18)));
      out->push_back(static_cast<char>(0x80 | ((c >> 12) & 0x3F)));
    }
    out->push_back(static_cast<char>(0x80 | ((c >> 6) & 0x3F)));
  }
  out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
}

size_t AppendRepairedUtf8(std::string_view bytes, bool more_may_follow, std::string* out) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Utf8Step step = StepUtf8(bytes.substr(at));
    if (step.kind == Utf8Step::Kind::kCharacter) {
      out->append(bytes.substr(at, step.length));
    } else if (step.kind == Utf8Step::Kind::kIncomplete && more_may_follow) {
      break;
    } else {
      out->append(kReplacement);
    }
    at += step.length;
  }
  return at;
}

}  // namespace augur::engine
