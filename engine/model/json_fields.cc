#include "engine/model/json_fields.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace augur::engine {
namespace {

constexpr int kMaxDepth = 64;

// Bounds nesting before the parser builds anything: a document of brackets costs memory and, when
// freed, stack.
bool NestsTooDeep(const std::string& text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxDepth) return true;
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return false;
}

std::string Shorten(const nlohmann::json* value) {
  if (value == nullptr) return "nothing";
  std::string text = value->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(const std::string& name, const std::string& text) {
  if (NestsTooDeep(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": nested deeper than ", kMaxDepth, " levels"));
  }
  nlohmann::json document = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded())
    return absl::InvalidArgumentError(absl::StrCat(name, ": not valid JSON"));
  return document;
}

bool HasEntry(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_type type = std::filesystem::symlink_status(path, error).type();
  return type != std::filesystem::file_type::not_found;
}

absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path, int64_t max_bytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  // Asked before opening: opening a pipe waits for its writer.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a regular file"));
  }
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
  const int64_t bytes = file.tellg();
  if (bytes < 0) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  if (bytes > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", bytes, " bytes, at most ", max_bytes, " are read"));
  }
  file.seekg(0);
  std::string text(static_cast<size_t>(bytes), '\0');
  if (!file.read(text.data(), bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read whole"));
  }
  absl::StatusOr<nlohmann::json> document = ParseJson(path, text);
  if (document.ok() && !document->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a JSON object, found ", std::string(document->type_name())));
  }
  return document;
}

JsonFields::JsonFields(const nlohmann::json& object, std::string file, std::string prefix)
    : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

const nlohmann::json* JsonFields::Find(const std::string& key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool JsonFields::Has(const std::string& key) const { return Find(key) != nullptr; }

absl::Status JsonFields::Error(const std::string& key, const std::string& expected) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": key ", prefix_, key, ": expected ",
                                                 expected, ", found ", Shorten(Find(key))));
}

absl::StatusOr<int64_t> JsonFields::Int(const std::string& key, std::optional<int64_t> absent,
                                        int64_t least, int64_t most) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr && absent.has_value()) return *absent;
  const std::string expected = absl::StrCat("an integer from ", least, " to ", most);
  if (value == nullptr || !value->is_number_integer()) return Error(key, expected);
  if (value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
    return Error(key, expected);
  }
  const int64_t number = value->get<int64_t>();
  if (number < least || number > most) return Error(key, expected);
  return number;
}

absl::StatusOr<double> JsonFields::Number(const std::string& key,
                                          std::optional<double> absent) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr && absent.has_value()) return *absent;
  if (value == nullptr || !value->is_number()) return Error(key, "a number");
  const double number = value->get<double>();
  if (!std::isfinite(number)) return Error(key, "a finite number");
  return number;
}

absl::StatusOr<bool> JsonFields::Bool(const std::string& key, bool absent) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) return Error(key, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> JsonFields::String(const std::string& key,
                                               std::optional<std::string> absent) const {
  const nlohmann::json* value = Find(key);
  if (value == nullptr && absent.has_value()) return *absent;
  if (value == nullptr || !value->is_string()) return Error(key, "a string");
  return value->get<std::string>();
}

absl::StatusOr<std::vector<int64_t>> JsonFields::IntOrList(const std::string& key, int64_t least,
                                                           int64_t most) const {
  const nlohmann::json* value = Find(key);
  std::vector<int64_t> numbers;
  if (value == nullptr) return numbers;
  const std::string expected =
      absl::StrCat("an integer from ", least, " to ", most, " or a list of them");
  const auto add = [&](const nlohmann::json& item) {
    if (!item.is_number_integer()) return false;
    const int64_t number = item.get<int64_t>();
    numbers.push_back(number);
    return number >= least && number <= most;
  };
  if (!value->is_array()) {
    if (!add(*value)) return Error(key, expected);
    return numbers;
  }
  for (const nlohmann::json& item : *value) {
    if (!add(item)) return Error(key, expected);
  }
  return numbers;
}

}  // namespace augur::engine
