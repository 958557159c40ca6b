#include "server/config_values.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace augur::server {
namespace {

struct Unit {
  const char* name;
  int64_t size;
};

// Descending, so that formatting finds the largest first.
constexpr std::array<Unit, 5> kByteUnits = {
    {{"TiB", int64_t{1} << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}};
constexpr std::array<Unit, 4> kTimeUnits = {
    {{"h", 3'600'000'000'000}, {"m", 60'000'000'000}, {"s", 1'000'000'000}, {"ms", 1'000'000}}};

// A number that is not negative and one of `units`; the product must be whole.
template <size_t n>
std::optional<int64_t> ParseWithUnit(const std::string& text, const std::array<Unit, n>& units) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || !(number >= 0)) return std::nullopt;
  std::string unit(stop, end);
  unit.erase(0, unit.find_first_not_of(' '));
  for (const Unit& candidate : units) {
    if (unit != candidate.name) continue;
    const double product = number * static_cast<double>(candidate.size);
    if (product > 9e18 || product != std::floor(product)) return std::nullopt;
    return static_cast<int64_t>(product);
  }
  return std::nullopt;
}

template <size_t n>
std::string FormatWithUnit(int64_t value, const std::array<Unit, n>& units) {
  for (const Unit& unit : units) {
    if (value != 0 && value % unit.size == 0) return absl::StrCat(value / unit.size, unit.name);
  }
  return absl::StrCat(value);
}

}  // namespace

std::optional<int64_t> ParseInteger(const std::string& text) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return std::nullopt;
  return value;
}

std::optional<int64_t> ParseBytes(const std::string& text) {
  if (const std::optional<int64_t> plain = ParseInteger(text)) return plain;
  return ParseWithUnit(text, kByteUnits);
}

std::string FormatBytes(int64_t bytes) { return FormatWithUnit(bytes, kByteUnits); }

std::optional<int64_t> ParseDuration(const std::string& text) {
  if (text == "0") return 0;
  return ParseWithUnit(text, kTimeUnits);
}

std::string FormatDuration(int64_t ns) { return FormatWithUnit(ns, kTimeUnits); }

std::optional<bool> ParseBool(const std::string& text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return std::nullopt;
}

int EditDistance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = std::exchange(row[0], static_cast<int>(i) + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const int change = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({change, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace augur::server
