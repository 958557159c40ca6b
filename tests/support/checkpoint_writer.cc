#include "tests/support/checkpoint_writer.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/dtype.h"

namespace augur::tests {

ScratchFolder::ScratchFolder() {
  std::string pattern = std::filesystem::temp_directory_path() / "augur-test-XXXXXX";
  AUGUR_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  AUGUR_CHECK(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteWhole(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  AUGUR_CHECK(file.good());
}

TensorMap ReadTensors(const std::string& safetensors_path) {
  const std::string bytes = ReadWhole(safetensors_path);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), 8);
  const nlohmann::json header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  TensorMap tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const auto offsets = entry.at("data_offsets").get<std::vector<uint64_t>>();
    tensors[name] = {.dtype = entry.at("dtype"),
                     .shape = entry.at("shape").get<std::vector<int64_t>>(),
                     .bytes = bytes.substr(8 + header_bytes + offsets[0], offsets[1] - offsets[0])};
  }
  return tensors;
}

TensorMap Convert(const TensorMap& tensors, const std::string& dtype) {
  TensorMap converted;
  for (const auto& [name, tensor] : tensors) {
    TensorFile result{.dtype = dtype, .shape = tensor.shape, .bytes = {}};
    const size_t width = tensor.dtype == "F32" ? 4 : 2;
    for (size_t at = 0; at < tensor.bytes.size(); at += width) {
      uint16_t half = 0;
      float value = 0;
      std::memcpy(width == 4 ? static_cast<void*>(&value) : &half, tensor.bytes.data() + at, width);
      if (tensor.dtype == "BF16") value = kernels::FloatFromBF16(half);
      if (tensor.dtype == "F16") value = kernels::FloatFromF16(half);
      if (dtype == "BF16") half = kernels::BF16FromFloat(value);
      if (dtype == "F16") half = kernels::F16FromFloat(value);
      if (dtype == "F32") {
        result.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
      } else {
        result.bytes.append(reinterpret_cast<const char*>(&half), sizeof half);
      }
    }
    converted[name] = std::move(result);
  }
  return converted;
}

void WriteTensors(const std::string& path, const TensorMap& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  WriteWhole(path, std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
}

void WriteShards(const std::string& folder, const TensorMap& tensors, int shards) {
  std::vector<TensorMap> parts(shards);
  nlohmann::json index;
  int next = 0;
  for (const auto& [name, tensor] : tensors) {
    const int shard = next++ % shards;
    parts[shard][name] = tensor;
    index["weight_map"][name] = absl::StrCat("model-", shard, ".safetensors");
  }
  for (int shard = 0; shard < shards; ++shard) {
    WriteTensors(absl::StrCat(folder, "/model-", shard, ".safetensors"), parts[shard]);
  }
  WriteWhole(folder + "/model.safetensors.index.json", index.dump());
}

}  // namespace augur::tests
