// How long prompts and completions are.
//
//   N or fixed:N          always N
//   uniform:LOW,HIGH      every whole number from LOW to HIGH alike
//   normal:MEAN,SD        rounded
//   lognormal:MEAN,SD     of the lengths themselves, not of their logarithms; rounded
//   file:PATH             one of the numbers in the file, each as likely as any other
//
// A length outside the limits that Draw is given is drawn anew, 100 times at most, and is then the
// nearer limit: so the tails are cut off, and do not pile up at the limits.
//
// Thread: plain functions. Ownership: values. Units: tokens, or what the flag says. Failure:
// InvalidArgument naming the flag.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/seeded_draw.h"

namespace augur::loadtest {

struct LengthDistribution {
  enum class Kind { kFixed, kUniform, kNormal, kLognormal, kList };
  Kind kind = Kind::kFixed;
  double first = 1;   // N, LOW or MEAN
  double second = 0;  // HIGH or SD
  std::vector<double> list = {};
  std::string text = "1";  // as it was written
};

absl::StatusOr<LengthDistribution> ParseLengths(std::string_view flag, std::string_view text);

// Refused where it never gives a length within the limits (but of normal and lognormal, whose tails
// reach everywhere).
absl::Status CheckReachable(std::string_view flag, const LengthDistribution& lengths, int64_t low,
                            int64_t high);

// Not rounded: for times.
double DrawValue(const LengthDistribution& lengths, double low, double high, SeededDraw* draw);
int64_t DrawLength(const LengthDistribution& lengths, int64_t low, int64_t high, SeededDraw* draw);

}  // namespace augur::loadtest
