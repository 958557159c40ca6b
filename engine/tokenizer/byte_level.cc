#include "engine/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "engine/tokenizer/utf8.h"

namespace augur::engine {
namespace {

constexpr char32_t kFirstMoved = 0x100;
constexpr char32_t kTableEnd = 0x144;  // 68 bytes are moved

struct ByteTable {
  std::array<std::string, 256> spelling;
  std::array<int, kTableEnd> byte_of;  // -1: none
};

bool StandsForItself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

ByteTable MakeByteTable() {
  ByteTable table;
  table.byte_of.fill(-1);
  char32_t next = kFirstMoved;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = StandsForItself(byte) ? static_cast<char32_t>(byte) : next++;
    AppendUtf8(c, &table.spelling[static_cast<size_t>(byte)]);
    table.byte_of[c] = byte;
  }
  return table;
}

const ByteTable& Table() {
  static const ByteTable table = MakeByteTable();
  return table;
}

}  // namespace

void AppendByteLevel(std::string_view bytes, std::string* out) {
  const ByteTable& table = Table();
  for (const char byte : bytes) out->append(table.spelling[static_cast<uint8_t>(byte)]);
}

std::string BytesOfByteLevel(std::string_view spelling) {
  const ByteTable& table = Table();
  std::string bytes;
  for (size_t at = 0; at < spelling.size();) {
    const Utf8Step step = StepUtf8(spelling.substr(at));
    if (step.kind != Utf8Step::Kind::kCharacter || step.code_point >= kTableEnd ||
        table.byte_of[step.code_point] < 0) {
      return std::string(spelling);
    }
    bytes.push_back(static_cast<char>(table.byte_of[step.code_point]));
    at += step.length;
  }
  return bytes;
}

}  // namespace augur::engine
