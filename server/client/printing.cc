#include "server/client/printing.h"

#include <cstdio>

namespace augur::client {

void PrintError(const std::string& line) {
  const std::string whole = "augur: " + line + "\n";
  std::fwrite(whole.data(), 1, whole.size(), stderr);
}

bool WriteOut(const std::string& text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() &&
         std::fflush(stdout) == 0;
}

std::string EscapeControls(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
      continue;
    }
    char escaped[8];
    std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
    out += escaped;
  }
  return out;
}

std::string WithThousands(uint64_t number) {
  std::string digits = std::to_string(number);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > 0; at -= 3) {
    digits.insert(static_cast<size_t>(at), ",");
  }
  return digits;
}

std::string FormatMilliseconds(double ms) {
  char text[48];
  if (ms < 10) {
    std::snprintf(text, sizeof text, "%.1f ms", ms);
  } else if (ms < 1000) {
    std::snprintf(text, sizeof text, "%.0f ms", ms);
  } else if (ms < 60'000) {
    std::snprintf(text, sizeof text, "%.1f s", ms / 1000);
  } else {
    const auto seconds = static_cast<int64_t>(ms / 1000);
    std::snprintf(text, sizeof text, "%lld min %02lld s", static_cast<long long>(seconds / 60),
                  static_cast<long long>(seconds % 60));
  }
  return text;
}

}  // namespace augur::client
