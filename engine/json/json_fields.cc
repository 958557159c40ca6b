#include "engine/json/json_fields.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"

namespace augur::engine {
namespace {

constexpr uint32_t kMaxListed = 1024;

}  // namespace

absl::StatusOr<JsonDocument> ReadJsonObject(const std::string& path, int64_t max_bytes) {
  absl::StatusOr<JsonDocument> document = JsonDocument::Read(path, max_bytes);
  if (document.ok() && !document->root().is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a JSON object, found ", document->root().Shown()));
  }
  return document;
}

JsonFields::JsonFields(const JsonDocument& document, std::string file)
    : JsonFields(document.root(), std::move(file)) {}

JsonFields::JsonFields(JsonNode object, std::string file, std::string prefix)
    : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

std::optional<JsonNode> JsonFields::Find(const std::string& key) const {
  const JsonNode found = object_.Find(key);
  if (found.absent() || found.is_null()) return std::nullopt;
  return found;
}

bool JsonFields::Has(const std::string& key) const { return Find(key).has_value(); }

absl::Status JsonFields::Error(const std::string& key, const std::string& expected) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": key ", prefix_, key, ": expected ",
                                                 expected, ", found ",
                                                 Find(key).value_or(JsonNode()).Shown()));
}

absl::StatusOr<int64_t> JsonFields::Int(const std::string& key, std::optional<int64_t> absent,
                                        int64_t least, int64_t most) const {
  const std::optional<JsonNode> value = Find(key);
  if (!value && absent.has_value()) return *absent;
  if (!value || !value->is_integer() || value->integer() < least || value->integer() > most) {
    return Error(key, absl::StrCat("an integer from ", least, " to ", most));
  }
  return value->integer();
}

absl::StatusOr<double> JsonFields::Number(const std::string& key,
                                          std::optional<double> absent) const {
  const std::optional<JsonNode> value = Find(key);
  if (!value && absent.has_value()) return *absent;
  if (!value || !value->is_number()) return Error(key, "a number");
  const double number = value->number();
  if (!std::isfinite(number)) return Error(key, "a finite number");
  return number;
}

absl::StatusOr<bool> JsonFields::Bool(const std::string& key, bool absent) const {
  const std::optional<JsonNode> value = Find(key);
  if (!value) return absent;
  if (!value->is_bool()) return Error(key, "true or false");
  return value->boolean();
}

absl::StatusOr<std::string> JsonFields::String(const std::string& key,
                                               std::optional<std::string> absent) const {
  const std::optional<JsonNode> value = Find(key);
  if (!value && absent.has_value()) return *absent;
  if (!value || !value->is_string()) return Error(key, "a string");
  return std::string(value->string());
}

absl::StatusOr<std::vector<int64_t>> JsonFields::IntOrList(const std::string& key, int64_t least,
                                                           int64_t most) const {
  const std::optional<JsonNode> value = Find(key);
  std::vector<int64_t> numbers;
  if (!value) return numbers;
  const auto add = [&](JsonNode item) {
    if (!item.is_integer()) return false;
    numbers.push_back(item.integer());
    return numbers.back() >= least && numbers.back() <= most;
  };
  bool right = value->size() <= kMaxListed;
  if (right && value->is_array()) {
    for (const auto& [index, item] : *value) right = right && add(item);
  } else if (right) {
    right = add(*value);
  }
  if (right) return numbers;
  return Error(key, absl::StrCat("an integer from ", least, " to ", most, " or a list of at most ",
                                 kMaxListed));
}

}  // namespace augur::engine
