#include "loadtest/arrival_process.h"

#include <algorithm>
#include <cmath>
#include <sstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "loadtest/random_variates.h"
#include "loadtest/seeded_draw.h"
#include "loadtest/text_file.h"
#include "nlohmann/json.hpp"

namespace augur::loadtest {
namespace {

// The time at which the integral of the rate reaches `area`.
double TimeOfArea(const ArrivalSpec& spec, double area) {
  const double span = spec.ramp_s;
  const double from = spec.ramp_from;
  const double to = spec.rate;
  if (spec.ramp == RampKind::kNone || span <= 0 || from == to) return area / to;
  if (spec.ramp == RampKind::kLinear) {
    const double ramp_area = (from + to) / 2 * span;
    if (area >= ramp_area) return span + (area - ramp_area) / to;
    // from t + slope t^2 / 2 = area, in the form that does not cancel.
    const double slope = (to - from) / span;
    return 2 * area / (from + std::sqrt(from * from + 2 * slope * area));
  }
  const double growth = std::log(to / from) / span;
  const double ramp_area = (to - from) / growth;
  if (area >= ramp_area) return span + (area - ramp_area) / to;
  return std::log1p(area * growth / from) / growth;
}

double DrawGap(const ArrivalSpec& spec, SeededDraw* draw) {
  switch (spec.kind) {
    case ArrivalKind::kPoisson:
      return DrawExponential(draw);
    case ArrivalKind::kGamma:
      return DrawGamma(spec.burstiness, draw) / spec.burstiness;
    case ArrivalKind::kConstant:
    case ArrivalKind::kTrace:
      return 1;
  }
  return 1;
}

absl::Status BadLine(int number, std::string_view line) {
  return absl::InvalidArgumentError(absl::StrCat("line ", number, " of the trace is no time: \"",
                                                 std::string(line.substr(0, 80)), "\""));
}

// False where there is one that is no number.
bool ReadLength(const nlohmann::json& entry, const char* key, std::optional<int64_t>* length) {
  const auto found = entry.find(key);
  if (found == entry.end() || found->is_null()) return true;
  if (!found->is_number()) return false;
  *length = static_cast<int64_t>(std::clamp(found->get<double>(), 0.0, 1e9));
  return true;
}

bool ParseEntry(const std::string& line, TraceEntry* entry) {
  if (line[0] != '{') return absl::SimpleAtod(line, &entry->at_s) && std::isfinite(entry->at_s);
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("timestamp") || !json["timestamp"].is_number()) {
    return false;
  }
  entry->at_s = json["timestamp"].get<double>() / 1000;
  return std::isfinite(entry->at_s) && ReadLength(json, "input_length", &entry->input_tokens) &&
         ReadLength(json, "output_length", &entry->output_tokens);
}

}  // namespace

absl::StatusOr<ArrivalKind> ArrivalKindOf(std::string_view name) {
  for (const ArrivalKind kind :
       {ArrivalKind::kPoisson, ArrivalKind::kGamma, ArrivalKind::kConstant, ArrivalKind::kTrace}) {
    if (name == ArrivalName(kind)) return kind;
  }
  return absl::InvalidArgumentError(absl::StrCat("--arrivals: \"", std::string(name),
                                                 "\" is none of poisson, gamma, constant, trace"));
}

const char* ArrivalName(ArrivalKind kind) {
  switch (kind) {
    case ArrivalKind::kPoisson:
      return "poisson";
    case ArrivalKind::kGamma:
      return "gamma";
    case ArrivalKind::kConstant:
      return "constant";
    case ArrivalKind::kTrace:
      return "trace";
  }
  return "";
}

absl::StatusOr<RampKind> RampKindOf(std::string_view name) {
  if (name == "none") return RampKind::kNone;
  if (name == "linear") return RampKind::kLinear;
  if (name == "exponential") return RampKind::kExponential;
  return absl::InvalidArgumentError(
      absl::StrCat("--ramp: \"", std::string(name), "\" is none of none, linear, exponential"));
}

absl::StatusOr<std::vector<TraceEntry>> ParseTrace(std::string_view text) {
  std::vector<TraceEntry> entries;
  std::istringstream lines{std::string(text)};
  std::string raw;
  for (int number = 1; std::getline(lines, raw); ++number) {
    const std::string line(absl::StripAsciiWhitespace(raw));
    if (line.empty() || line[0] == '#') continue;
    TraceEntry entry;
    if (!ParseEntry(line, &entry)) return BadLine(number, line);
    if (!entries.empty() && entry.at_s < entries.back().at_s) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", number, " of the trace is earlier than the one before"));
    }
    entries.push_back(entry);
    if (static_cast<int64_t>(entries.size()) > kMostRequests) {
      return absl::InvalidArgumentError(
          absl::StrCat("the trace has more than ", kMostRequests, " requests"));
    }
  }
  if (entries.empty()) return absl::InvalidArgumentError("the trace holds no times");
  const double first = entries[0].at_s;
  for (TraceEntry& entry : entries) entry.at_s -= first;
  return entries;
}

absl::StatusOr<std::vector<TraceEntry>> ReadTrace(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadTextFile("--trace", path);
  if (!text.ok()) return text.status();
  absl::StatusOr<std::vector<TraceEntry>> entries = ParseTrace(*text);
  if (!entries.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--trace: ", path, ": ", std::string(entries.status().message())));
  }
  return entries;
}

std::vector<double> PlanArrivals(const ArrivalSpec& spec, uint64_t seed) {
  SeededDraw draw(seed);
  std::vector<double> times;
  const int64_t most = spec.requests > 0 ? std::min(spec.requests, kMostRequests) : kMostRequests;
  // A constant rate begins at once, as its first gap would only be waiting.
  double area = spec.kind == ArrivalKind::kConstant ? 0 : DrawGap(spec, &draw);
  while (static_cast<int64_t>(times.size()) < most) {
    const double at = TimeOfArea(spec, area);
    if (spec.duration_s > 0 && at >= spec.duration_s) break;
    times.push_back(at);
    area += DrawGap(spec, &draw);
  }
  return times;
}

}  // namespace augur::loadtest
