// GPT-2's table of bytes and characters: every byte has a printable character, so that a vocabulary
// of strings can spell any bytes. Printable Latin-1 stands for itself; the others are U+0100 and
// up, in order.
//
// Thread: immutable tables.
#pragma once

#include <string>
#include <string_view>

namespace augur::engine {

// Appends the character that stands for each byte.
void AppendByteLevel(std::string_view bytes, std::string* out);

// The bytes that a spelling stands for; a spelling with a character outside the table stands for
// itself, as in Hugging Face's decoder.
std::string BytesOfByteLevel(std::string_view spelling);

}  // namespace augur::engine
