// The tensors of a safetensors checkpoint: one model.safetensors, or shards under an index.
//
// Headers are checked whole at Open (bounds, shapes, dtypes, no overlap, no hole); data is read
// with pread on demand, so a file that is cut later is an error and not a fault. Thread: any one.
// Ownership: holds the files open. Failure: a one-line status naming file and tensor, with what was
// expected and found.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"

namespace augur::engine {

// A tensor's bytes as the file has them.
struct TensorData {
  kernels::DType dtype = kernels::DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};

class Checkpoint {
 public:
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& folder);
  // One safetensors file by itself.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenFile(const std::string& path);
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  bool Has(const std::string& name) const { return tensors_.contains(name); }
  // The tensor with exactly this shape.
  absl::StatusOr<TensorData> Read(const std::string& name, const std::vector<int64_t>& shape) const;

  int64_t num_elements() const { return num_elements_; }  // of all tensors
  int64_t num_bytes() const { return num_bytes_; }        // of all files

 private:
  struct File;
  struct Place {
    const File* file = nullptr;
    kernels::DType dtype = kernels::DType::kF32;
    std::vector<int64_t> shape;
    int64_t offset = 0;  // in the file
    int64_t bytes = 0;
  };

  Checkpoint();
  absl::Status AddFile(const std::string& path);
  absl::Status AddHeader(const File* file, const std::string& header, int64_t data_start);

  std::vector<std::unique_ptr<File>> files_;
  std::map<std::string, Place> tensors_;
  int64_t num_elements_ = 0;
  int64_t num_bytes_ = 0;
};

}  // namespace augur::engine
