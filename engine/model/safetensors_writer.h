// Writes a safetensors file whole or not at all.
//
// Thread: any. Failure: one line with path and reason (a full disk, a folder that is not there);
// then nothing half-written is left, and a file of that name stays as it was.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/dtype.h"

namespace augur::engine {

struct TensorToWrite {
  std::string name;
  std::vector<int64_t> shape;
  std::span<const float> values;
  kernels::DType dtype = kernels::DType::kF32;  // rounded to
};

// metadata: strings for the header's __metadata__.
absl::Status WriteSafetensors(const std::string& path, std::span<const TensorToWrite> tensors,
                              const std::map<std::string, std::string>& metadata = {});

}  // namespace augur::engine
