// Reading and writing the values of configuration keys: integers, sizes with a unit, durations with
// a unit.
//
// Thread: plain functions.
// Failure: nothing; a text that is not such a value gives nullopt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace augur::server {

std::optional<int64_t> ParseInteger(const std::string& text);

// "268435456", "256MiB", "1.5 GiB"; units B, KiB, MiB, GiB, TiB. To whole bytes.
std::optional<int64_t> ParseBytes(const std::string& text);
// The largest unit that divides it, "64MiB".
std::string FormatBytes(int64_t bytes);

// "30s", "500ms", "2m", "1h"; "0" needs no unit. In nanoseconds.
std::optional<int64_t> ParseDuration(const std::string& text);
std::string FormatDuration(int64_t ns);

// "true" or "false", as YAML 1.2 spells them.
std::optional<bool> ParseBool(const std::string& text);

// Letters to add, drop or change to come from one text to the other.
int EditDistance(const std::string& a, const std::string& b);

}  // namespace augur::server
