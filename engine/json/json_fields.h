// Typed reads of a JSON object from a file that somebody else wrote: every answer is a value or a
// status that names file, key, what was expected and what was found.
//
// Thread: any; no state but the parsed document. Failure: INVALID_ARGUMENT or NOT_FOUND, never an
// exception.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/json/json_document.h"

namespace augur::engine {

// Reads and parses a file that holds one JSON object.
absl::StatusOr<JsonDocument> ReadJsonObject(const std::string& path, int64_t max_bytes);

class JsonFields {
 public:
  // The object's document outlives the reader; `file` and `prefix` ("" or "rope_scaling.") name it
  // in messages.
  JsonFields(const JsonDocument& document, std::string file);
  JsonFields(JsonNode object, std::string file, std::string prefix = "");

  // A key that is missing or null counts as absent.
  bool Has(const std::string& key) const;
  // Whether the key is there at all, be it null.
  bool Mentions(const std::string& key) const { return !object_.Find(key).absent(); }
  std::optional<JsonNode> Find(const std::string& key) const;

  // Where the key is absent: the default, or an error when there is none.
  absl::StatusOr<int64_t> Int(const std::string& key, std::optional<int64_t> absent, int64_t least,
                              int64_t most) const;
  absl::StatusOr<double> Number(const std::string& key, std::optional<double> absent) const;
  absl::StatusOr<bool> Bool(const std::string& key, bool absent) const;
  absl::StatusOr<std::string> String(const std::string& key,
                                     std::optional<std::string> absent) const;
  // One integer or a list of at most 1,024; absent: empty.
  absl::StatusOr<std::vector<int64_t>> IntOrList(const std::string& key, int64_t least,
                                                 int64_t most) const;

  absl::Status Error(const std::string& key, const std::string& expected) const;

 private:
  JsonNode object_;
  std::string file_;
  std::string prefix_;
};

}  // namespace augur::engine
