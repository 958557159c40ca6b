// UTF-8 as the tokenizer needs it: stepping through text, validity, and repair of broken bytes.
//
// Thread: plain functions. Failure: none; broken input is repaired, never refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace augur::engine {

// What stands at the front of some bytes.
struct Utf8Step {
  enum class Kind {
    kCharacter,   // a whole character of `length` bytes
    kInvalid,     // `length` bytes that no continuation can repair (a maximal subpart, Unicode 3.9)
    kIncomplete,  // all bytes there are, the beginning of a character
  };
  Kind kind;
  size_t length;
  char32_t code_point;  // kCharacter only
};

// `bytes` is not empty.
Utf8Step StepUtf8(std::string_view bytes);

bool IsValidUtf8(std::string_view bytes);

void AppendUtf8(char32_t code_point, std::string* out);

// Appends `bytes` to `out` with every maximal invalid part replaced by one U+FFFD, exactly as
// Rust's String::from_utf8_lossy, and returns how many bytes were used: all, or all but an
// incomplete character at the end (at most 3 bytes) where `more_may_follow`.
size_t AppendRepairedUtf8(std::string_view bytes, bool more_may_follow, std::string* out);

}  // namespace augur::engine
