// Reading a JSON document with an error that names file, key, what was expected and what was found.
// The first error is kept and everything read after it is empty, so that a reader checks once, at
// its end. For long sections; json_fields.h answers with a status at every key.
//
// Thread: one owner. Ownership: views; document and errors outlive them.
// Failure: recorded in JsonErrors, never thrown.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "engine/json/json_document.h"

namespace augur::engine {

class JsonErrors {
 public:
  explicit JsonErrors(std::string file) : file_(std::move(file)) {}
  const absl::Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }
  // The file is wrong.
  void Invalid(const std::string& message);
  // The file may be right, and this reader does not do what it asks for.
  void Unsupported(const std::string& message);

 private:
  std::string file_;
  absl::Status status_;
};

class JsonValue {
 public:
  // An absent node: the key is not there.
  JsonValue(JsonNode node, std::string key, JsonErrors* errors);

  bool absent() const { return node_.absent(); }
  bool absent_or_null() const { return node_.absent() || node_.is_null(); }
  const std::string& key() const { return key_; }

  // Each records an error and returns an empty value where the value is of another kind.
  std::string String() const;
  bool Bool() const;
  bool BoolOr(bool otherwise) const;  // absent: otherwise
  int64_t Int(int64_t low, int64_t high) const;
  // A member of an object; absent members read as null.
  JsonValue operator[](const std::string& name) const;
  // For loops; an absent node, over which they do nothing, after recording an error.
  JsonNode Array() const;
  JsonNode Object() const;
  // The value of one turn of a loop over this array, with its name.
  JsonValue Element(size_t i, JsonNode element) const;

  // Members beyond these are unsupported.
  void AllowMembers(std::initializer_list<std::string_view> names) const;
  void Expected(std::string_view what) const;
  void Unsupported(std::string_view supported) const;

 private:
  JsonNode node_;
  std::string key_;
  JsonErrors* errors_;
};

}  // namespace augur::engine
