// safetensors: a header, a whole file, or an index beside one shard. What is accepted is checked
// once more, by another reader and the format's own words: ranges tile the data, each as long as
// shape and dtype say.
//
// The first byte of the input says what follows: 'h' four bytes of data size (little endian), then
// the text of a header; 'f' a file; 'i' the text of an index of the shards a.safetensors ("w", 2
// floats) and b.safetensors ("v", none).
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/checkpoint.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/memory_file.h"

namespace augur::tests {
namespace {

using engine::Checkpoint;
using nlohmann::json;

std::string FileOf(std::string_view header) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + std::string(header);
}

void RequireOneLine(const absl::Status& status) {
  FUZZ_REQUIRE(status.message().find('\n') == std::string_view::npos);
  FUZZ_REQUIRE(status.message().size() < 1000);
}

// What Checkpoint may have accepted.
void RequireRightHeader(std::string_view text, int64_t data_bytes, const Checkpoint& checkpoint) {
  const json header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  FUZZ_REQUIRE(header.is_object());
  std::vector<std::pair<int64_t, int64_t>> ranges;
  int64_t elements = 0;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string dtype = tensor.at("dtype");
    FUZZ_REQUIRE(dtype == "F32" || dtype == "F16" || dtype == "BF16");
    unsigned __int128 bytes = dtype == "F32" ? 4 : 2;
    const unsigned __int128 width = bytes;
    std::vector<int64_t> shape;
    for (const json& extent : tensor.at("shape")) {
      FUZZ_REQUIRE(extent.is_number_integer());
      shape.push_back(extent.get<int64_t>());
      FUZZ_REQUIRE(shape.back() >= 0);
      bytes *= static_cast<uint64_t>(shape.back());
      FUZZ_REQUIRE(bytes <= INT64_MAX);
    }
    const json& offsets = tensor.at("data_offsets");
    ranges.emplace_back(offsets.at(0).get<int64_t>(), offsets.at(1).get<int64_t>());
    FUZZ_REQUIRE(offsets.size() == 2 && ranges.back().first >= 0);
    FUZZ_REQUIRE(ranges.back().second - ranges.back().first == static_cast<int64_t>(bytes));
    elements += static_cast<int64_t>(bytes / width);
    const auto data = checkpoint.Read(name, shape);
    FUZZ_REQUIRE(data.ok() && data->bytes.size() == bytes);
    shape.push_back(1);
    FUZZ_REQUIRE(!checkpoint.Read(name, shape).ok());
  }
  std::sort(ranges.begin(), ranges.end());
  int64_t end = 0;
  for (const auto& range : ranges) {
    FUZZ_REQUIRE(range.first == end);
    end = range.second;
  }
  FUZZ_REQUIRE(end == data_bytes);
  FUZZ_REQUIRE(checkpoint.num_elements() == elements);
}

bool RunFile(std::string_view bytes, size_t size) {
  const MemoryFile file(bytes, size);
  const auto checkpoint = Checkpoint::OpenFile(file.path());
  if (!checkpoint.ok()) {
    RequireOneLine(checkpoint.status());
    return false;
  }
  uint64_t length = 0;
  FUZZ_REQUIRE(bytes.size() >= sizeof length);
  std::memcpy(&length, bytes.data(), sizeof length);
  FUZZ_REQUIRE(length <= bytes.size() - 8);
  const size_t whole = std::max(size, bytes.size());
  RequireRightHeader(bytes.substr(8, length), static_cast<int64_t>(whole - 8 - length),
                     **checkpoint);
  return true;
}

// A folder with the two shards, once a process.
const std::string& ShardFolder() {
  static const std::string folder = [] {
    std::string path = std::filesystem::temp_directory_path() / "augur-fuzz-XXXXXX";
    FUZZ_REQUIRE(mkdtemp(path.data()) != nullptr);
    std::ofstream(path + "/a.safetensors", std::ios::binary)
        << FileOf(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})") << "12345678";
    std::ofstream(path + "/b.safetensors", std::ios::binary)
        << FileOf(R"({"v":{"dtype":"F16","shape":[0],"data_offsets":[0,0]}})");
    return path;
  }();
  static const struct Remover {
    ~Remover() { std::filesystem::remove_all(ShardFolder()); }
  } remover;
  return folder;
}

bool RunIndex(std::string_view text) {
  const std::string index = ShardFolder() + "/model.safetensors.index.json";
  std::ofstream(index, std::ios::binary) << text;
  const auto checkpoint = Checkpoint::Open(ShardFolder());
  if (!checkpoint.ok()) {
    RequireOneLine(checkpoint.status());
    return false;
  }
  const json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  for (const auto& [name, shard] : document.at("weight_map").items()) {
    FUZZ_REQUIRE((name == "w" && shard == "a.safetensors") ||
                 (name == "v" && shard == "b.safetensors"));
    FUZZ_REQUIRE((*checkpoint)->Has(name));
  }
  return true;
}

}  // namespace

bool RunTarget(std::string_view input) {
  if (input.empty()) return false;
  const std::string_view rest = input.substr(1);
  if (input[0] == 'f') return RunFile(rest, 0);
  if (input[0] == 'i') return RunIndex(rest);
  if (input[0] != 'h' || rest.size() < 4) return false;
  uint32_t data_bytes = 0;
  std::memcpy(&data_bytes, rest.data(), 4);
  const std::string file = FileOf(rest.substr(4));
  return RunFile(file, file.size() + data_bytes % (1 << 20));
}

}  // namespace augur::tests
