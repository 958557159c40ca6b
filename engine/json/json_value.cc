#include "engine/json/json_value.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace augur::engine {
namespace {

constexpr size_t kMaxMessageBytes = 600;

// Keys and patterns of a hostile file are part of what is said of it.
std::string OneShortLine(std::string message) {
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) c = '?';
  }
  if (message.size() <= kMaxMessageBytes) return message;
  size_t end = kMaxMessageBytes;
  while ((static_cast<unsigned char>(message[end]) & 0xC0) == 0x80) --end;
  message.resize(end);
  return message + "...";
}

}  // namespace

void JsonErrors::Invalid(const std::string& message) {
  if (status_.ok()) {
    status_ = absl::InvalidArgumentError(absl::StrCat(file_, ": ", OneShortLine(message)));
  }
}

void JsonErrors::Unsupported(const std::string& message) {
  if (status_.ok()) {
    status_ = absl::UnimplementedError(absl::StrCat(file_, ": ", OneShortLine(message)));
  }
}

JsonValue::JsonValue(JsonNode node, std::string key, JsonErrors* errors)
    : node_(node), key_(std::move(key)), errors_(errors) {}

void JsonValue::Expected(std::string_view what) const {
  errors_->Invalid(absl::StrCat(key_, ": expected ", std::string(what), ", found ", node_.Shown()));
}

void JsonValue::Unsupported(std::string_view supported) const {
  errors_->Unsupported(absl::StrCat(key_, ": unsupported value ", node_.Shown(),
                                    "; supported: ", std::string(supported)));
}

std::string JsonValue::String() const {
  if (node_.is_string()) return std::string(node_.string());
  Expected("a string");
  return "";
}

bool JsonValue::Bool() const {
  if (node_.is_bool()) return node_.boolean();
  Expected("true or false");
  return false;
}

bool JsonValue::BoolOr(bool otherwise) const { return absent() ? otherwise : Bool(); }

int64_t JsonValue::Int(int64_t low, int64_t high) const {
  if (node_.is_integer() && node_.integer() >= low && node_.integer() <= high) {
    return node_.integer();
  }
  Expected(absl::StrCat("an integer from ", low, " to ", high));
  return low;
}

JsonNode JsonValue::Array() const {
  if (node_.is_array()) return node_;
  Expected("an array");
  return JsonNode();
}

JsonNode JsonValue::Object() const {
  if (node_.is_object()) return node_;
  Expected("an object");
  return JsonNode();
}

JsonValue JsonValue::Element(size_t i, JsonNode element) const {
  return JsonValue(element, absl::StrCat(key_, "[", i, "]"), errors_);
}

JsonValue JsonValue::operator[](const std::string& name) const {
  return JsonValue(Object().Find(name), key_.empty() ? name : absl::StrCat(key_, ".", name),
                   errors_);
}

void JsonValue::AllowMembers(std::initializer_list<std::string_view> names) const {
  for (const auto& [name, value] : Object()) {
    if (std::find(names.begin(), names.end(), name) != names.end()) continue;
    return JsonValue(value, absl::StrCat(key_, key_.empty() ? "" : ".", std::string(name)), errors_)
        .Unsupported("no such key");
  }
}

}  // namespace augur::engine
