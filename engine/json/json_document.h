// The one reader of JSON files (config.json, generation_config.json, the safetensors index and
// headers, tokenizer.json): nlohmann's parser says what is JSON, its values land in a flat table of
// 16 bytes a value. What somebody else wrote may be anything, so everything is bounded:
//   nesting          64 levels
//   memory           at most 13 times the text, the text itself included (hostile_files_test)
//   names            each once in an object: which of two counts, readers do not agree on
//
// Thread: immutable once parsed, any thread. Ownership: a JsonNode is a view; its document outlives
// it. Failure: one line that names the file, never an exception.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace augur::engine {

class JsonDocument;

// Text from a file as part of a message of one line: quotes and control characters escaped,
// shortened.
std::string ShownText(std::string_view text);

// A value, or nothing (an absent member).
class JsonNode {
 public:
  JsonNode() = default;
  JsonNode(const JsonDocument* document, uint32_t index) : document_(document), index_(index) {}

  bool absent() const { return document_ == nullptr; }
  bool is_null() const;
  bool is_bool() const;
  bool is_integer() const;  // and fits int64
  bool is_number() const;
  bool is_string() const;
  bool is_array() const;
  bool is_object() const;

  // Of the matching kind only (a CHECK).
  bool boolean() const;
  int64_t integer() const;
  double number() const;
  std::string_view string() const;

  // Elements of an array, members of an object; 0 of anything else.
  uint32_t size() const;

  // for (const auto& [name, value] : object), for (const auto& [index, value] : array): `name` is
  // empty in an array.
  struct Member;
  class Iterator;
  Iterator begin() const;
  Iterator end() const;

  // By a walk over what stands before it. Absent where it is not there.
  JsonNode Find(std::string_view name) const;
  JsonNode Element(uint32_t i) const;

  // For messages, shortened: the value, or what kind it is.
  std::string Shown() const;

 private:
  const JsonDocument* document_ = nullptr;
  uint32_t index_ = 0;
};

struct JsonNode::Member {
  std::string_view name;
  JsonNode value;
};

class JsonDocument {
 public:
  JsonDocument(JsonDocument&&) = default;
  JsonDocument& operator=(JsonDocument&&) = default;
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  JsonNode root() const { return JsonNode(this, 0); }

  // A whole regular file of at most max_bytes (below 4 GiB).
  static absl::StatusOr<JsonDocument> Read(const std::string& path, int64_t max_bytes);
  // Text that is in memory already; `name` stands for the file in messages.
  static absl::StatusOr<JsonDocument> Parse(const std::string& name, std::string_view text);

 private:
  friend class JsonNode;
  friend class JsonNode::Iterator;
  class Builder;
  enum class Kind : uint32_t { kNull, kBool, kInteger, kFloat, kString, kArray, kObject };
  struct Node {
    Kind kind = Kind::kNull;
    uint32_t size = 0;     // bytes of a string, elements of an array, members of an object
    uint64_t payload = 0;  // the bits of a number; where a string begins in strings_; for a
                           // container the index behind its last node
  };
  JsonDocument() = default;
  uint32_t Behind(uint32_t index) const;  // the node that follows the value at `index`

  std::deque<Node> nodes_;  // in the order of the text; a member is its name, then its value
  std::string strings_;
};

class JsonNode::Iterator {
 public:
  Iterator(const JsonDocument* document, uint32_t at, bool named)
      : document_(document), at_(at), named_(named) {}
  Member operator*() const;
  Iterator& operator++();
  bool operator!=(const Iterator& other) const { return at_ != other.at_; }

 private:
  const JsonDocument* document_;
  uint32_t at_;
  bool named_;
};

// Whether a folder has an entry of that name, be it a broken link: what is there and cannot be read
// is an error, not an absence.
bool HasEntry(const std::string& path);

}  // namespace augur::engine
