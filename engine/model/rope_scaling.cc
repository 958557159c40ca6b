#include "engine/model/rope_scaling.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <set>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

constexpr int64_t kMaxPositions = 1 << 24;

// Keys of the object, those of other types included: transformers ignores them, too. Any other key
// may mean something that was never seen.
const std::set<std::string_view>& KnownKeys() {
  static const std::set<std::string_view> keys = {
      "rope_type",        "type",
      "rope_theta",       "partial_rotary_factor",
      "factor",           "original_max_position_embeddings",
      "attention_factor", "beta_fast",
      "beta_slow",        "mscale",
      "mscale_all_dim",   "truncate",
      "short_factor",     "long_factor",
      "low_freq_factor",  "high_freq_factor",
      "finetuned"};
  return keys;
}

absl::StatusOr<double> Positive(const JsonFields& fields, const char* key,
                                std::optional<double> absent) {
  AUGUR_ASSIGN_OR_RETURN(const double value, fields.Number(key, absent));
  if (!(value > 0)) return fields.Error(key, "a number above 0");
  return value;
}

absl::StatusOr<std::vector<double>> Factors(const JsonFields& fields, const char* key,
                                            int head_dim) {
  const std::string expected = absl::StrCat("a list of ", head_dim / 2, " numbers above 0");
  const std::optional<JsonNode> list = fields.Find(key);
  const uint32_t count = head_dim / 2;
  if (!list || !list->is_array() || list->size() != count) return fields.Error(key, expected);
  std::vector<double> factors;
  for (const auto& [index, item] : *list) {
    if (!item.is_number() || !(item.number() > 0) || !std::isfinite(item.number())) {
      return fields.Error(key, expected);
    }
    factors.push_back(item.number());
  }
  return factors;
}

absl::StatusOr<RopeType> ReadType(const JsonFields& rope, RopeTypes types) {
  const char* key = rope.Has("rope_type") ? "rope_type" : "type";
  AUGUR_ASSIGN_OR_RETURN(const std::string name, rope.String(key, "default"));
  if (name == "default") return RopeType::kDefault;
  if (types == RopeTypes::kLongRope) {
    if (name == "longrope" || name == "su" || name == "yarn") return RopeType::kLongRope;
    return rope.Error(key, "default or longrope for this family");
  }
  if (name == "linear") return RopeType::kLinear;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "yarn") return RopeType::kYarn;
  if (name == "longrope") return RopeType::kLongRope;
  return rope.Error(key, "one of default, linear, llama3, yarn, longrope");
}

// 0.1 m ln(factor) + 1.
double YarnScale(double factor, double m) {
  return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0;
}

absl::Status ReadLlama3(const JsonFields& rope, RopeScaling* scaling) {
  AUGUR_ASSIGN_OR_RETURN(scaling->low_frequency_factor,
                         Positive(rope, "low_freq_factor", std::nullopt));
  AUGUR_ASSIGN_OR_RETURN(scaling->high_frequency_factor,
                         Positive(rope, "high_freq_factor", std::nullopt));
  if (scaling->high_frequency_factor > scaling->low_frequency_factor) return absl::OkStatus();
  return rope.Error("high_freq_factor", "more than low_freq_factor");
}

absl::Status ReadYarn(const JsonFields& rope, RopeScaling* scaling) {
  if (!(scaling->theta > 1)) return rope.Error("rope_theta", "a number above 1 with yarn");
  // 0 stands for the default, as in the reference.
  AUGUR_ASSIGN_OR_RETURN(const double fast, rope.Number("beta_fast", 0.0));
  AUGUR_ASSIGN_OR_RETURN(const double slow, rope.Number("beta_slow", 0.0));
  if (fast != 0) scaling->beta_fast = fast;
  if (slow != 0) scaling->beta_slow = slow;
  if (!(scaling->beta_slow > 0)) return rope.Error("beta_slow", "a number above 0");
  if (!(scaling->beta_fast >= scaling->beta_slow)) {
    return rope.Error("beta_fast", "at least beta_slow");
  }
  AUGUR_ASSIGN_OR_RETURN(scaling->truncate, rope.Bool("truncate", true));
  AUGUR_ASSIGN_OR_RETURN(const double m, rope.Number("mscale", 0.0));
  AUGUR_ASSIGN_OR_RETURN(const double all, rope.Number("mscale_all_dim", 0.0));
  const bool both = m != 0 && all != 0;
  const double inferred = both ? YarnScale(scaling->factor, m) / YarnScale(scaling->factor, all)
                               : YarnScale(scaling->factor, 1);
  AUGUR_ASSIGN_OR_RETURN(scaling->attention_factor, Positive(rope, "attention_factor", inferred));
  if (std::isfinite(scaling->attention_factor)) return absl::OkStatus();
  return rope.Error("mscale_all_dim", "a number that leaves a finite attention factor");
}

absl::Status ReadLongRope(const JsonFields& rope, int head_dim, int max_positions,
                          RopeScaling* scaling) {
  AUGUR_ASSIGN_OR_RETURN(scaling->short_factors, Factors(rope, "short_factor", head_dim));
  AUGUR_ASSIGN_OR_RETURN(scaling->long_factors, Factors(rope, "long_factor", head_dim));
  const double original = scaling->original_context;
  AUGUR_ASSIGN_OR_RETURN(const double factor, Positive(rope, "factor", max_positions / original));
  if (factor > 1 && original < 2) {
    return rope.Error("original_max_position_embeddings", "at least 2");
  }
  const double inferred = factor <= 1 ? 1.0 : std::sqrt(1 + std::log(factor) / std::log(original));
  AUGUR_ASSIGN_OR_RETURN(scaling->attention_factor, Positive(rope, "attention_factor", inferred));
  return absl::OkStatus();
}

// From the config itself, where the family or the file has it there, else from the object.
absl::StatusOr<int> ReadOriginalContext(const JsonFields& fields, const JsonFields& rope,
                                        const ModelFamily& family, int max_positions) {
  constexpr const char* kKey = "original_max_position_embeddings";
  int64_t absent = max_positions;
  if (family.original_max_position_embeddings > 0) {
    absent = family.original_max_position_embeddings;
  } else if (!fields.Has(kKey)) {
    AUGUR_ASSIGN_OR_RETURN(absent, rope.Int(kKey, max_positions, 1, kMaxPositions));
  }
  AUGUR_ASSIGN_OR_RETURN(const int64_t original, fields.Int(kKey, absent, 1, kMaxPositions));
  return static_cast<int>(original);
}

absl::Status CheckKeys(const JsonFields& fields, const char* key, JsonNode object,
                       const JsonFields& rope) {
  for (const auto& [name, value] : object) {
    if (value.is_null() || KnownKeys().contains(name)) continue;
    return fields.Error(key, absl::StrCat("no member ", ShownText(name),
                                          ", because what it asks for is not supported"));
  }
  AUGUR_ASSIGN_OR_RETURN(const double rotary, rope.Number("partial_rotary_factor", 1.0));
  return rotary == 1.0 ? absl::OkStatus() : rope.Error("partial_rotary_factor", "1");
}

absl::Status ReadObject(const JsonFields& fields, const std::string& file, const char* key,
                        const ModelFamily& family, int head_dim, int max_positions,
                        RopeScaling* scaling) {
  const JsonNode object = *fields.Find(key);
  const JsonFields rope(object, file, absl::StrCat(key, "."));
  AUGUR_RETURN_IF_ERROR(CheckKeys(fields, key, object, rope));
  AUGUR_ASSIGN_OR_RETURN(scaling->theta, Positive(rope, "rope_theta", scaling->theta));
  AUGUR_ASSIGN_OR_RETURN(scaling->type, ReadType(rope, family.rope_types));
  if (scaling->type == RopeType::kDefault) return absl::OkStatus();
  if (scaling->type != RopeType::kLinear) {
    AUGUR_ASSIGN_OR_RETURN(scaling->original_context,
                           ReadOriginalContext(fields, rope, family, max_positions));
  }
  if (scaling->type == RopeType::kLongRope) {
    return ReadLongRope(rope, head_dim, max_positions, scaling);
  }
  // yarn alone may leave it to the ratio.
  std::optional<double> absent;
  if (scaling->type == RopeType::kYarn)
    absent = static_cast<double>(max_positions) / scaling->original_context;
  AUGUR_ASSIGN_OR_RETURN(scaling->factor, Positive(rope, "factor", absent));
  if (scaling->type == RopeType::kLlama3) return ReadLlama3(rope, scaling);
  if (scaling->type == RopeType::kYarn) return ReadYarn(rope, scaling);
  return absl::OkStatus();
}

// llama3: see RopeScaling.
double BlendByWavelength(const RopeScaling& rope, double frequency) {
  const double turns = rope.original_context * frequency / (2 * std::numbers::pi);
  const double low = rope.low_frequency_factor, high = rope.high_frequency_factor;
  if (turns < low) return frequency / rope.factor;
  if (turns > high) return frequency;
  const double kept = (turns - low) / (high - low);
  return (1 - kept) * frequency / rope.factor + kept * frequency;
}

// yarn: the dimension that makes so many turns within the original context.
double DimensionOfTurns(const RopeScaling& rope, int head_dim, double turns) {
  return head_dim * std::log(rope.original_context / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

void BlendByDimension(const RopeScaling& rope, int head_dim, std::vector<double>* frequencies) {
  double low = DimensionOfTurns(rope, head_dim, rope.beta_fast);
  double high = DimensionOfTurns(rope, head_dim, rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, head_dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies->size(); ++i) {
    const double divided = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    double& frequency = (*frequencies)[i];
    frequency = frequency / rope.factor * divided + frequency * (1 - divided);
  }
}

}  // namespace

int RopeScaling::short_context() const {
  const bool two = type == RopeType::kLongRope && short_factors != long_factors;
  return two ? original_context : INT_MAX;
}

std::string RopeScaling::Describe() const {
  return absl::StrCat("rope", static_cast<int>(type), "/", theta, "/", factor, "/",
                      original_context, "/", attention_factor, "/", low_frequency_factor, "/",
                      high_frequency_factor, "/", beta_fast, "/", beta_slow, "/", truncate, "/",
                      absl::StrJoin(short_factors, ","), "/", absl::StrJoin(long_factors, ","));
}

absl::StatusOr<RopeScaling> ReadRopeScaling(const JsonFields& fields, const std::string& file,
                                            const ModelFamily& family, int head_dim,
                                            int max_positions) {
  RopeScaling scaling;
  AUGUR_ASSIGN_OR_RETURN(scaling.theta, Positive(fields, "rope_theta", scaling.theta));
  AUGUR_ASSIGN_OR_RETURN(const double rotary, fields.Number("partial_rotary_factor", 1.0));
  if (rotary != 1.0) return fields.Error("partial_rotary_factor", "1");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const std::optional<JsonNode> object = fields.Find(key);
    if (!object) continue;
    if (!object->is_object()) return fields.Error(key, "an object");
    if (object->size() == 0) continue;
    AUGUR_RETURN_IF_ERROR(ReadObject(fields, file, key, family, head_dim, max_positions, &scaling));
    break;  // where a file has both the first one counts, as in transformers
  }
  return scaling;
}

std::vector<double> InverseFrequencies(const RopeScaling& rope, int head_dim, int variant) {
  std::vector<double> frequencies(head_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / head_dim);
  }
  const std::vector<double>& divisors = variant == 0 ? rope.short_factors : rope.long_factors;
  switch (rope.type) {
    case RopeType::kDefault:
      break;
    case RopeType::kLinear:
      for (double& frequency : frequencies) frequency /= rope.factor;
      break;
    case RopeType::kLlama3:
      for (double& frequency : frequencies) frequency = BlendByWavelength(rope, frequency);
      break;
    case RopeType::kYarn:
      BlendByDimension(rope, head_dim, &frequencies);
      break;
    case RopeType::kLongRope:
      for (size_t i = 0; i < frequencies.size(); ++i) frequencies[i] /= divisors[i];
      break;
  }
  return frequencies;
}

}  // namespace augur::engine
