// Small texts for people and for standard error.
//
// Thread: plain functions. Failure: WriteOut says false when standard output takes no more.
#pragma once

#include <cstdint>
#include <string>

namespace augur::client {

// "augur: <line>" on standard error.
void PrintError(const std::string& line);

// Writes to standard output and flushes, so that a stream shows as it comes.
bool WriteOut(const std::string& text);

// Control characters, line ends included, as \xNN: what a peer says stays on one line and moves no
// cursor.
std::string EscapeControls(const std::string& text);

// 1234567 -> "1,234,567".
std::string WithThousands(uint64_t number);

// Milliseconds as a person reads them: "0.8 ms", "42 ms", "3.1 s", "2 min 05 s".
std::string FormatMilliseconds(double ms);

}  // namespace augur::client
