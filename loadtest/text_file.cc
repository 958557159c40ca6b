#include "loadtest/text_file.h"

#include <cstdint>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"

namespace augur::loadtest {

absl::StatusOr<std::string> ReadTextFile(std::string_view flag, const std::string& path,
                                         size_t most_bytes) {
  const auto refuse = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(flag), ": ", path, " ", why));
  };
  std::ifstream file(path, std::ios::binary);
  std::vector<char> piece(1 << 16);
  std::string text;
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    text.append(piece.data(), static_cast<size_t>(file.gcount()));
    if (text.size() > most_bytes) {
      return refuse(absl::StrCat("has more than ", most_bytes, " bytes"));
    }
  }
  if (!file.is_open() || file.bad()) return refuse("cannot be read");
  return text;
}

bool IsUtf8(std::string_view text) {
  size_t at = 0;
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0};
  };
  while (at < text.size()) {
    const uint8_t lead = byte(at);
    const size_t size = lead < 0x80 ? 1 : lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (size == 0 || lead > 0xf4) return false;
    for (size_t i = 1; i < size; ++i) {
      if ((byte(at + i) & 0xc0) != 0x80) return false;
    }
    const uint8_t second = byte(at + 1);
    if ((lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
        (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f)) {
      return false;
    }
    at += size;
  }
  return true;
}

}  // namespace augur::loadtest
