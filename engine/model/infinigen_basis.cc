#include "engine/model/infinigen_basis.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/checkpoint.h"
#include "kernels/random_weight.h"
#include "memory/base/status_macros.h"

namespace augur::engine {

absl::Status CheckInfinigenShape(const ModelConfig& config) {
  if (config.has_eviction_heads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "infinigen is not offered for family ", config.family,
        ", whose choice of blocks has a second stage that partial keys know nothing of"));
  }
  if (config.has_head_norms) {
    return absl::InvalidArgumentError(absl::StrCat(
        "infinigen is not offered for family ", config.family,
        ", whose queries are normed head by head, which its approximation of them leaves out"));
  }
  if (config.head_dim % 8 == 0 && config.num_layers >= 2) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("infinigen needs a model of at least 2 layers whose head_dim is a multiple of 8 "
                   "(a quarter of it is scored), found ",
                   config.num_layers, " layers of head_dim ", config.head_dim));
}

absl::StatusOr<InfinigenBasis> LoadInfinigenBasis(const std::string& path,
                                                  const ModelConfig& config) {
  if (absl::Status status = CheckInfinigenShape(config); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("infinigen_basis: ", status.message()));
  }
  AUGUR_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> file, Checkpoint::OpenFile(path));
  InfinigenBasis basis;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    const std::string name = absl::StrCat("layers.", layer, ".basis");
    AUGUR_ASSIGN_OR_RETURN(
        const TensorData tensor,
        file->Read(name, {config.num_kv_heads, config.head_dim, config.head_dim}));
    if (tensor.dtype != kernels::DType::kF32) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", name, ": expected float32, found ",
                                                     kernels::NameOf(tensor.dtype)));
    }
    std::vector<float> values(tensor.bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", name, ": expected finite numbers, found others"));
    }
    basis.layers.push_back(std::move(values));
  }
  return basis;
}

absl::StatusOr<InfinigenBasis> RandomInfinigenBasis(const ModelConfig& config, uint64_t seed) {
  AUGUR_RETURN_IF_ERROR(CheckInfinigenShape(config));
  InfinigenBasis basis;
  const size_t count = size_t(config.kv_width()) * config.head_dim;
  const float scale = std::sqrt(3.0f / static_cast<float>(config.head_dim));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    std::vector<float>& values = basis.layers.emplace_back(count);
    for (size_t i = 0; i < count; ++i) {
      values[i] = scale * kernels::RandomWeight(seed + layer, i);
    }
  }
  return basis;
}

}  // namespace augur::engine
