#include "engine/tokenizer/token_decoder.h"

#include <charconv>

#include "engine/tokenizer/byte_level.h"

namespace augur::engine {
namespace {

// "<0xE4>" is the byte E4.
bool IsByteToken(std::string_view spelling, char* byte) {
  if (spelling.size() != 6 || !spelling.starts_with("<0x") || spelling[5] != '>') return false;
  unsigned value = 0;
  const char* const end = spelling.data() + 5;
  const auto read = std::from_chars(spelling.data() + 3, end, value, 16);
  *byte = static_cast<char>(value);
  return read.ec == std::errc() && read.ptr == end;
}

}  // namespace

std::string TokenDecoder::BytesOf(std::string_view spelling, bool first) const {
  if (byte_level) return BytesOfByteLevel(spelling);
  std::string bytes(spelling);
  for (const auto& [pattern, content] : replacements) bytes = ReplaceAll(bytes, pattern, content);
  if (!metaspace.empty()) {
    bytes = ReplaceAll(bytes, metaspace, first && metaspace_drops ? "" : " ");
  }
  char byte = 0;
  if (byte_fallback && IsByteToken(bytes, &byte)) bytes.assign(1, byte);
  return bytes;
}

std::string ReplaceAll(std::string_view text, std::string_view pattern, std::string_view content) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0;;) {
    const size_t found = text.find(pattern, at);
    out.append(text.substr(at, found - at));
    if (found == std::string_view::npos) return out;
    out.append(content);
    at = found + pattern.size();
  }
}

}  // namespace augur::engine
