#include "engine/json/json_document.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace augur::engine {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxShownBytes = 60;

struct FileCloser {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t max_bytes) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  // Asked before opening: opening a pipe waits for its writer.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected a regular file"));
  }
  const std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be opened: ", std::strerror(errno)));
  }
  // Of the size that it says, so that no growing string is copied; what it holds decides.
  const uintmax_t said = std::filesystem::file_size(path, error);
  std::string text;
  if (!error) text.reserve(std::min<uintmax_t>(said, static_cast<uintmax_t>(max_bytes)) + 1);
  char buffer[1 << 16];
  while (const size_t got = std::fread(buffer, 1, sizeof(buffer), file.get())) {
    text.append(buffer, got);
    if (text.size() > static_cast<size_t>(max_bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": expected at most ", max_bytes, " bytes, found more"));
    }
  }
  if (std::ferror(file.get()) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cannot be read: ", std::strerror(errno)));
  }
  return text;
}

}  // namespace

// What nlohmann's parser calls with each value.
class JsonDocument::Builder {
 public:
  explicit Builder(JsonDocument* document) : document_(document) {}
  const std::string& error() const { return error_; }

  bool null() { return Add(Kind::kNull, 0, 0); }
  bool boolean(bool value) { return Add(Kind::kBool, 0, value ? 1 : 0); }
  bool number_integer(int64_t value) {
    return Add(Kind::kInteger, 0, static_cast<uint64_t>(value));
  }
  bool number_unsigned(uint64_t value) {
    if (value > static_cast<uint64_t>(INT64_MAX)) {
      return number_float(static_cast<double>(value), std::string());
    }
    return Add(Kind::kInteger, 0, value);
  }
  bool number_float(double value, const std::string&) {
    return Add(Kind::kFloat, 0, std::bit_cast<uint64_t>(value));
  }
  bool string(const std::string& value) {
    const size_t begin = document_->strings_.size();
    document_->strings_.append(value);
    return Add(Kind::kString, static_cast<uint32_t>(value.size()), begin);
  }
  bool binary(const std::vector<uint8_t>&) { return false; }  // not in JSON text
  bool start_array(size_t) { return Open(Kind::kArray); }
  bool start_object(size_t) { return Open(Kind::kObject); }
  bool end_array() {
    Close();
    return true;
  }
  bool end_object() {
    const uint32_t object = open_.back();
    Close();
    return NamesDiffer(object);
  }
  bool key(const std::string& name) {
    is_key_ = true;
    return string(name);
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) {
    error_ = absl::StrCat("not valid JSON at byte ", position);
    return false;
  }

 private:
  bool Add(Kind kind, uint32_t size, uint64_t payload) {
    if (!open_.empty() && !is_key_) ++document_->nodes_[open_.back()].size;
    is_key_ = false;
    document_->nodes_.push_back({kind, size, payload});
    return true;
  }

  bool Open(Kind kind) {
    if (open_.size() == kMaxDepth) {
      error_ = absl::StrCat("nested deeper than ", kMaxDepth, " levels");
      return false;
    }
    const uint32_t index = static_cast<uint32_t>(document_->nodes_.size());
    Add(kind, 0, 0);
    open_.push_back(index);
    return true;
  }

  void Close() {
    document_->nodes_[open_.back()].payload = document_->nodes_.size();
    open_.pop_back();
  }

  bool NamesDiffer(uint32_t object) {
    struct Name {
      size_t hash;
      std::string_view text;
    };
    std::vector<Name> names;
    const JsonNode node(document_, object);
    names.reserve(node.size());
    for (const auto& [name, value] : node) {
      names.push_back({std::hash<std::string_view>()(name), name});
    }
    std::sort(names.begin(), names.end(), [](const Name& a, const Name& b) {
      return a.hash != b.hash ? a.hash < b.hash : a.text < b.text;
    });
    const auto twice = std::adjacent_find(
        names.begin(), names.end(), [](const Name& a, const Name& b) { return a.text == b.text; });
    if (twice == names.end()) return true;
    error_ = absl::StrCat("expected each key once, found twice: ", ShownText(twice->text));
    return false;
  }

  JsonDocument* document_;
  std::vector<uint32_t> open_;  // containers around the next value
  bool is_key_ = false;
  std::string error_;
};

absl::StatusOr<JsonDocument> JsonDocument::Parse(const std::string& name, std::string_view text) {
  AUGUR_CHECK(text.size() < UINT32_MAX);
  JsonDocument document;
  Builder builder(&document);
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &builder)) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", builder.error()));
  }
  return document;
}

absl::StatusOr<JsonDocument> JsonDocument::Read(const std::string& path, int64_t max_bytes) {
  absl::StatusOr<std::string> text = ReadFile(path, max_bytes);
  if (!text.ok()) return text.status();
  return Parse(path, *text);
}

uint32_t JsonDocument::Behind(uint32_t index) const {
  const Node& node = nodes_[index];
  const bool container = node.kind == Kind::kArray || node.kind == Kind::kObject;
  return container ? static_cast<uint32_t>(node.payload) : index + 1;
}

#define AUGUR_NODE_IS(kind_name) \
  (!absent() && document_->nodes_[index_].kind == JsonDocument::Kind::kind_name)

bool JsonNode::is_null() const { return AUGUR_NODE_IS(kNull); }
bool JsonNode::is_bool() const { return AUGUR_NODE_IS(kBool); }
bool JsonNode::is_integer() const { return AUGUR_NODE_IS(kInteger); }
bool JsonNode::is_number() const { return AUGUR_NODE_IS(kInteger) || AUGUR_NODE_IS(kFloat); }
bool JsonNode::is_string() const { return AUGUR_NODE_IS(kString); }
bool JsonNode::is_array() const { return AUGUR_NODE_IS(kArray); }
bool JsonNode::is_object() const { return AUGUR_NODE_IS(kObject); }

#undef AUGUR_NODE_IS

bool JsonNode::boolean() const {
  AUGUR_CHECK(is_bool());
  return document_->nodes_[index_].payload != 0;
}

int64_t JsonNode::integer() const {
  AUGUR_CHECK(is_integer());
  return static_cast<int64_t>(document_->nodes_[index_].payload);
}

double JsonNode::number() const {
  AUGUR_CHECK(is_number());
  if (is_integer()) return static_cast<double>(integer());
  return std::bit_cast<double>(document_->nodes_[index_].payload);
}

std::string_view JsonNode::string() const {
  AUGUR_CHECK(is_string());
  const JsonDocument::Node& node = document_->nodes_[index_];
  return std::string_view(document_->strings_).substr(node.payload, node.size);
}

uint32_t JsonNode::size() const {
  return is_array() || is_object() ? document_->nodes_[index_].size : 0;
}

JsonNode::Iterator JsonNode::begin() const { return Iterator(document_, index_ + 1, is_object()); }

JsonNode::Iterator JsonNode::end() const {
  const bool container = is_array() || is_object();
  return Iterator(document_, container ? document_->Behind(index_) : index_ + 1, is_object());
}

JsonNode::Member JsonNode::Iterator::operator*() const {
  if (!named_) return {"", JsonNode(document_, at_)};
  return {JsonNode(document_, at_).string(), JsonNode(document_, at_ + 1)};
}

JsonNode::Iterator& JsonNode::Iterator::operator++() {
  at_ = document_->Behind(named_ ? at_ + 1 : at_);
  return *this;
}

JsonNode JsonNode::Find(std::string_view name) const {
  if (!is_object()) return JsonNode();
  for (const auto& [key, value] : *this) {
    if (key == name) return value;
  }
  return JsonNode();
}

JsonNode JsonNode::Element(uint32_t i) const {
  if (!is_array() || i >= size()) return JsonNode();
  Iterator at = begin();
  while (i-- > 0) ++at;
  return (*at).value;
}

std::string ShownText(std::string_view text) {
  const bool whole = text.size() <= kMaxShownBytes;
  const std::string shown =
      nlohmann::json(text.substr(0, kMaxShownBytes))
          .dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::ignore);
  return whole ? shown : shown.substr(0, shown.size() - 1) + "...\"";
}

std::string JsonNode::Shown() const {
  if (absent()) return "nothing";
  if (is_object()) return absl::StrCat("an object of ", size(), " members");
  if (is_array()) return absl::StrCat("an array of ", size(), " elements");
  if (is_null()) return "null";
  if (is_bool()) return boolean() ? "true" : "false";
  if (is_integer()) return absl::StrCat(integer());
  if (is_number()) return nlohmann::json(number()).dump();
  return ShownText(string());
}

bool HasEntry(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_type type = std::filesystem::symlink_status(path, error).type();
  return type != std::filesystem::file_type::not_found;
}

}  // namespace augur::engine
