#include "engine/tokenizer/json_value.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace augur::engine {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr int kMaxDepth = 64;
constexpr size_t kMaxShownBytes = 80;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  // Asked before opening: opening a pipe waits for its writer.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a regular file"));
  }
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot open: ", std::strerror(errno)));
  }
  std::string text;
  char buffer[1 << 16];
  while (const size_t got = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    text.append(buffer, got);
    if (text.size() > kMaxFileBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": expected at most ", kMaxFileBytes, " bytes, found more"));
    }
  }
  if (std::ferror(file.get()) != 0) {
    return absl::UnavailableError(absl::StrCat(path, ": cannot read: ", std::strerror(errno)));
  }
  return text;
}

// The deepest nesting of brackets outside strings.
int DepthOf(std::string_view json) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

}  // namespace

void JsonErrors::Invalid(const std::string& message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(file_, ": ", message));
}

void JsonErrors::Unsupported(const std::string& message) {
  if (status_.ok()) status_ = absl::UnimplementedError(absl::StrCat(file_, ": ", message));
}

JsonValue::JsonValue(const nlohmann::json* node, std::string key, JsonErrors* errors)
    : node_(node), key_(std::move(key)), errors_(errors) {}

bool JsonValue::absent_or_null() const { return node_ == nullptr || node_->is_null(); }

std::string JsonValue::Found() const {
  if (node_ == nullptr) return "nothing";
  if (node_->is_object()) return absl::StrCat("an object of ", node_->size(), " members");
  if (node_->is_array()) return absl::StrCat("an array of ", node_->size(), " elements");
  std::string text = node_->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kMaxShownBytes) text = text.substr(0, kMaxShownBytes) + "...";
  return text;
}

void JsonValue::Expected(std::string_view what) const {
  errors_->Invalid(absl::StrCat(key_, ": expected ", std::string(what), ", found ", Found()));
}

void JsonValue::Unsupported(std::string_view supported) const {
  errors_->Unsupported(
      absl::StrCat(key_, ": unsupported value ", Found(), "; supported: ", std::string(supported)));
}

std::string JsonValue::String() const {
  if (node_ != nullptr && node_->is_string()) return node_->get_ref<const std::string&>();
  Expected("a string");
  return "";
}

bool JsonValue::Bool() const {
  if (node_ != nullptr && node_->is_boolean()) return node_->get_ref<const bool&>();
  Expected("true or false");
  return false;
}

bool JsonValue::BoolOr(bool otherwise) const { return node_ == nullptr ? otherwise : Bool(); }

int64_t JsonValue::Int(int64_t low, int64_t high) const {
  if (node_ != nullptr && node_->is_number_integer()) {
    const bool too_big = node_->is_number_unsigned() && node_->get<uint64_t>() > INT64_MAX;
    const int64_t value = too_big ? INT64_MAX : node_->get<int64_t>();
    if (!too_big && value >= low && value <= high) return value;
  }
  Expected(absl::StrCat("an integer from ", low, " to ", high));
  return low;
}

const nlohmann::json* JsonValue::Array() const {
  if (node_ != nullptr && node_->is_array()) return node_;
  Expected("an array");
  return nullptr;
}

const nlohmann::json* JsonValue::Object() const {
  if (node_ != nullptr && node_->is_object()) return node_;
  Expected("an object");
  return nullptr;
}

size_t JsonValue::ArraySize() const {
  const nlohmann::json* array = Array();
  return array == nullptr ? 0 : array->size();
}

JsonValue JsonValue::Element(size_t i) const {
  const bool there = node_ != nullptr && node_->is_array() && i < node_->size();
  return JsonValue(there ? &(*node_)[i] : nullptr, absl::StrCat(key_, "[", i, "]"), errors_);
}

JsonValue JsonValue::operator[](const std::string& name) const {
  const nlohmann::json* member = nullptr;
  if (const nlohmann::json* object = Object()) {
    const auto found = object->find(name);
    if (found != object->end()) member = &*found;
  }
  return JsonValue(member, key_.empty() ? name : absl::StrCat(key_, ".", name), errors_);
}

void JsonValue::AllowMembers(std::initializer_list<std::string_view> names) const {
  const nlohmann::json* object = Object();
  if (object == nullptr) return;
  for (const auto& member : object->items()) {
    if (std::find(names.begin(), names.end(), member.key()) != names.end()) continue;
    JsonValue(&member.value(), absl::StrCat(key_, key_.empty() ? "" : ".", member.key()), errors_)
        .Unsupported("no such key");
  }
}

absl::StatusOr<std::unique_ptr<nlohmann::json>> ReadJsonFile(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return text.status();
  if (const int depth = DepthOf(*text); depth > kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected JSON nested at most ", kMaxDepth, " deep, found ", depth));
  }
  auto document = std::make_unique<nlohmann::json>(nlohmann::json::parse(*text, nullptr, false));
  if (document->is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected JSON, found something else"));
  }
  return document;
}

}  // namespace augur::engine
