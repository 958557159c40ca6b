// Typed reads of a JSON object from a file that somebody else wrote: every answer is a value or a
// status that names file, key, what was expected and what was found.
//
// Thread: any; no state but the parsed document. Failure: INVALID_ARGUMENT or NOT_FOUND, never an
// exception.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace augur::engine {

// Whether a folder has an entry of that name, be it a broken link: what is there and cannot be read
// is an error, not an absence.
bool HasEntry(const std::string& path);

// Reads and parses a whole regular file of at most max_bytes; objects and arrays may nest 64 deep.
absl::StatusOr<nlohmann::json> ReadJsonFile(const std::string& path, int64_t max_bytes);
// The same for text that is in memory already; `name` stands for the file in messages.
absl::StatusOr<nlohmann::json> ParseJson(const std::string& name, const std::string& text);

class JsonFields {
 public:
  // `object` outlives the reader; `file` and `prefix` ("" or "rope_scaling.") name it in messages.
  JsonFields(const nlohmann::json& object, std::string file, std::string prefix = "");

  // A key that is missing or null counts as absent.
  bool Has(const std::string& key) const;
  const nlohmann::json* Find(const std::string& key) const;

  // Where the key is absent: the default, or an error when there is none.
  absl::StatusOr<int64_t> Int(const std::string& key, std::optional<int64_t> absent, int64_t least,
                              int64_t most) const;
  absl::StatusOr<double> Number(const std::string& key, std::optional<double> absent) const;
  absl::StatusOr<bool> Bool(const std::string& key, bool absent) const;
  absl::StatusOr<std::string> String(const std::string& key,
                                     std::optional<std::string> absent) const;
  // One integer or a list of them; absent: empty.
  absl::StatusOr<std::vector<int64_t>> IntOrList(const std::string& key, int64_t least,
                                                 int64_t most) const;

  absl::Status Error(const std::string& key, const std::string& expected) const;

 private:
  const nlohmann::json& object_;
  std::string file_;
  std::string prefix_;
};

}  // namespace augur::engine
