#include "engine/model/forecast_heads.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

constexpr const char* kPrefixes[] = {"model.",
                                     "",
                                     "module.model.",
                                     "module.",
                                     "model_state_dict.model.",
                                     "model_state_dict.module.model."};

uint64_t Fold(uint64_t hash, const std::vector<std::byte>& bytes) {
  for (const std::byte byte : bytes) {  // FNV-1a: names a file, protects nothing
    hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

// A head that is not finite would choose blocks at random.
absl::StatusOr<TensorData> ReadHead(const Checkpoint& file, const std::string& path,
                                    const std::string& name, const std::vector<int64_t>& shape) {
  AUGUR_ASSIGN_OR_RETURN(TensorData head, file.Read(name, shape));
  const size_t bytes = kernels::BytesOf(head.dtype);
  for (size_t at = 0; at < head.bytes.size(); at += bytes) {
    uint32_t bits = 0;
    std::memcpy(&bits, head.bytes.data() + at, bytes);
    const uint32_t exponent = head.dtype == kernels::DType::kF32    ? 0x7f800000u
                              : head.dtype == kernels::DType::kBF16 ? 0x7f80u
                                                                    : 0x7c00u;
    if ((bits & exponent) == exponent) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor ", name,
                                                     ": expected finite numbers, found ",
                                                     "one that is not, at element ", at / bytes));
    }
  }
  return head;
}

}  // namespace

absl::StatusOr<ForecastHeads> LoadForecastHeads(const std::string& path,
                                                const ModelConfig& config) {
  if (config.num_layers < 2) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": Forecast heads need a model of at least 2 layers, found ", config.num_layers));
  }
  AUGUR_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> file, Checkpoint::OpenFile(path));
  const std::string current = "layers.0.self_attn.q_curr_proj.weight";
  const auto prefix = std::find_if(std::begin(kPrefixes), std::end(kPrefixes),
                                   [&](const char* tried) { return file->Has(tried + current); });
  if (prefix == std::end(kPrefixes)) {
    return absl::NotFoundError(
        absl::StrCat(path, ": expected the tensor model.", current, ", found none of that name"));
  }
  const std::vector<int64_t> shape = {config.kv_width(), config.hidden_size};
  ForecastHeads heads;
  AUGUR_ASSIGN_OR_RETURN(heads.current, ReadHead(*file, path, *prefix + current, shape));
  uint64_t hash = Fold(0xcbf29ce484222325u, heads.current.bytes);
  for (int layer = 0; layer + 1 < config.num_layers; ++layer) {
    AUGUR_ASSIGN_OR_RETURN(
        TensorData head,
        ReadHead(*file, path,
                 absl::StrCat(*prefix, "layers.", layer, ".self_attn.q_future_proj.weight"),
                 shape));
    hash = Fold(hash, head.bytes);
    heads.next.push_back(std::move(head));
  }
  heads.fingerprint = absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
  return heads;
}

}  // namespace augur::engine
