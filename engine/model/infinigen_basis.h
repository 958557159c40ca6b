// InfiniGen's basis from a safetensors file that augur-infinigen-basis makes:
//   layers.{l}.basis   float32 [kv heads, head_dim, head_dim]
// an orthogonal matrix A for each layer and kv head, row-major: q . k = (q A) . (k A) for post-RoPE
// q and k, and few channels of q A carry most of the product (OSDI'24 Sec. 4.1; per kv head and
// after RoPE as SparDA's comparison has it, NOSA:infinigen_controllers.py).
//
// Thread: any. Failure: a one-line status naming file and tensor, what was expected and found. That
// A is orthogonal is the maker's promise; without it choices are poor and nothing else.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"

namespace augur::engine {

struct InfinigenBasis {
  std::vector<std::vector<float>> layers;  // [layers], each [kv heads][head_dim][head_dim]
};

// Whether partial keys of a quarter of the channels can be made and scored: head_dim must be a
// multiple of 8, since scored keys have an even size.
absl::Status CheckInfinigenShape(const ModelConfig& config);

absl::StatusOr<InfinigenBasis> LoadInfinigenBasis(const std::string& path,
                                                  const ModelConfig& config);

// Of the config's shape without a file, for benches: columns of about unit length, in no relation
// to any query.
absl::StatusOr<InfinigenBasis> RandomInfinigenBasis(const ModelConfig& config, uint64_t seed);

}  // namespace augur::engine
