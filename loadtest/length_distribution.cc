#include "loadtest/length_distribution.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "loadtest/random_variates.h"
#include "loadtest/text_file.h"

namespace augur::loadtest {
namespace {

constexpr int kTries = 100;
constexpr double kMost = 1e9;
constexpr size_t kMostNumbers = 10'000'000;

using Kind = LengthDistribution::Kind;

absl::Status Refuse(std::string_view flag, std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(std::string(flag), ": \"", std::string(text), "\" ", std::string(why)));
}

absl::Status ReadNumbers(std::string_view flag, const std::string& path,
                         std::vector<double>* numbers) {
  absl::StatusOr<std::string> text = ReadTextFile(flag, path);
  if (!text.ok()) return text.status();
  std::istringstream words(*std::move(text));
  std::string word;
  while (words >> word) {
    double number = 0;
    if (!absl::SimpleAtod(word, &number) || !(number >= 0 && number <= kMost)) {
      return Refuse(flag, path, absl::StrCat("holds \"", word.substr(0, 40), "\", no length"));
    }
    numbers->push_back(number);
    if (numbers->size() > kMostNumbers) return Refuse(flag, path, "holds too many numbers");
  }
  if (numbers->empty()) return Refuse(flag, path, "holds no numbers");
  return absl::OkStatus();
}

bool ParseNumbers(const std::string& text, size_t wanted, LengthDistribution* lengths) {
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  double* const into[] = {&lengths->first, &lengths->second};
  if (parts.size() != wanted) return false;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!absl::SimpleAtod(parts[i], into[i]) || !(*into[i] >= 0 && *into[i] <= kMost)) return false;
  }
  return true;
}

double DrawOnce(const LengthDistribution& lengths, SeededDraw* draw) {
  switch (lengths.kind) {
    case Kind::kFixed:
      return lengths.first;
    case Kind::kUniform:
      return lengths.first + draw->Unit() * (lengths.second - lengths.first);
    case Kind::kNormal:
      return lengths.first + lengths.second * DrawNormal(draw);
    case Kind::kLognormal: {
      const double ratio = lengths.second / lengths.first;
      const double variance = std::log1p(ratio * ratio);
      return lengths.first * std::exp(std::sqrt(variance) * DrawNormal(draw) - variance / 2);
    }
    case Kind::kList:
      return lengths.list[draw->Below(lengths.list.size())];
  }
  return 0;
}

}  // namespace

absl::StatusOr<LengthDistribution> ParseLengths(std::string_view flag, std::string_view text) {
  LengthDistribution lengths;
  lengths.text = std::string(text);
  const size_t colon = text.find(':');
  const std::string kind(colon == text.npos ? "fixed" : text.substr(0, colon));
  const std::string rest(colon == text.npos ? text : text.substr(colon + 1));
  bool good = false;
  if (kind == "fixed") {
    lengths.kind = Kind::kFixed;
    good = ParseNumbers(rest, 1, &lengths);
  } else if (kind == "uniform") {
    lengths.kind = Kind::kUniform;
    good = ParseNumbers(rest, 2, &lengths) && lengths.first <= lengths.second;
  } else if (kind == "normal") {
    lengths.kind = Kind::kNormal;
    good = ParseNumbers(rest, 2, &lengths);
  } else if (kind == "lognormal") {
    lengths.kind = Kind::kLognormal;
    good = ParseNumbers(rest, 2, &lengths) && lengths.first > 0;
  } else if (kind == "file") {
    lengths.kind = Kind::kList;
    const absl::Status read = ReadNumbers(flag, rest, &lengths.list);
    if (!read.ok()) return read;
    good = true;
  }
  if (!good) {
    return Refuse(flag, text,
                  "is none of N, uniform:LOW,HIGH, normal:MEAN,SD, lognormal:MEAN,SD, file:PATH");
  }
  return lengths;
}

absl::Status CheckReachable(std::string_view flag, const LengthDistribution& lengths, int64_t low,
                            int64_t high) {
  double least = lengths.first, most = lengths.first;
  if (lengths.kind == Kind::kUniform) most = lengths.second;
  if (lengths.kind == Kind::kNormal || lengths.kind == Kind::kLognormal) return absl::OkStatus();
  if (lengths.kind == Kind::kList) {
    const auto [smallest, largest] = std::minmax_element(lengths.list.begin(), lengths.list.end());
    least = *smallest;
    most = *largest;
  }
  if (std::llround(most) >= low && std::llround(least) <= high) return absl::OkStatus();
  return Refuse(flag, lengths.text, absl::StrCat("has no length from ", low, " to ", high));
}

double DrawValue(const LengthDistribution& lengths, double low, double high, SeededDraw* draw) {
  double value = low;
  for (int i = 0; i < kTries; ++i) {
    value = DrawOnce(lengths, draw);
    if (value >= low && value <= high) return value;
  }
  return std::clamp(value, low, high);
}

int64_t DrawLength(const LengthDistribution& lengths, int64_t low, int64_t high, SeededDraw* draw) {
  if (lengths.kind == Kind::kUniform) {
    const auto first = static_cast<int64_t>(std::ceil(lengths.first));
    const auto last = std::max(first, static_cast<int64_t>(lengths.second));
    int64_t value = first;
    for (int i = 0; i < kTries; ++i) {
      value = first + static_cast<int64_t>(draw->Below(static_cast<uint64_t>(last - first + 1)));
      if (value >= low && value <= high) return value;
    }
    return std::clamp(value, low, high);
  }
  // Half a unit wider, so that both ends are as likely as they should be.
  const double value =
      DrawValue(lengths, static_cast<double>(low) - 0.5, static_cast<double>(high) + 0.49, draw);
  return std::clamp(static_cast<int64_t>(std::llround(value)), low, high);
}

}  // namespace augur::loadtest
