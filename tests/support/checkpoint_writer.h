// Writes small Hugging Face folders for tests: a copy of a golden one, changed on the way.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace augur::tests {

struct TensorFile {
  std::string dtype;  // "F32", "BF16", "F16"
  std::vector<int64_t> shape;
  std::string bytes;
};

using TensorMap = std::map<std::string, TensorFile>;

// A folder of its own below the test's temporary directory, removed at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string ReadWhole(const std::string& path);
void WriteWhole(const std::string& path, const std::string& bytes);

TensorMap ReadTensors(const std::string& safetensors_path);
// Float32 tensors in another dtype, rounded to nearest; back to "F32" widens.
TensorMap Convert(const TensorMap& tensors, const std::string& dtype);
void WriteTensors(const std::string& path, const TensorMap& tensors);
// Spreads the tensors over `shards` files under an index.
void WriteShards(const std::string& folder, const TensorMap& tensors, int shards);

}  // namespace augur::tests
