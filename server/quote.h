// Text that came from outside, made fit for a log line or an error message: one line, printable,
// bounded.
//
// Thread: plain functions.
// Failure: none.
#pragma once

#include <string>
#include <string_view>

namespace augur::server {

// `text` in double quotes with quotes, backslashes and control characters escaped; bytes that are
// not ASCII are written as \xNN. What is longer than `limit` bytes is cut and marked with "...".
std::string Quoted(std::string_view text, size_t limit = 128);

// `text` with control characters replaced by spaces.
std::string OneLine(std::string_view text);

}  // namespace augur::server
