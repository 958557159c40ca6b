#include "engine/training/training_state.h"

#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "engine/model/checkpoint.h"
#include "engine/model/safetensors_writer.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

constexpr const char* kSteps = "steps";
constexpr const char* kKinds[] = {"heads", "first_moments", "second_moments"};

std::string NameOf(const char* kind, size_t layer) { return absl::StrCat(kind, ".", layer); }

// The strings of the header; the tensors themselves are Checkpoint's to read.
absl::StatusOr<std::map<std::string, std::string>> ReadMetadata(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof length);
  constexpr uint64_t kMostBytes = 1 << 20;
  std::string text;
  if (file && length <= kMostBytes) {
    text.resize(length);
    file.read(text.data(), static_cast<std::streamsize>(length));
  }
  const auto header = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  std::map<std::string, std::string> metadata;
  if (file && header.is_object() && header.contains("__metadata__") &&
      header["__metadata__"].is_object()) {
    for (const auto& [key, value] : header["__metadata__"].items()) {
      if (value.is_string()) metadata[key] = value.get<std::string>();
    }
  }
  if (metadata.contains(kSteps)) return metadata;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": expected a state of augur-train-forecast, found something else"));
}

absl::Status ReadMatrices(const Checkpoint& file, const char* kind, const ModelConfig& config,
                          ForecastMatrices* matrices) {
  *matrices = ZeroMatrices(config);
  for (size_t layer = 0; layer < matrices->layers.size(); ++layer) {
    AUGUR_ASSIGN_OR_RETURN(const TensorData tensor,
                           file.Read(NameOf(kind, layer), {config.kv_width(), config.hidden_size}));
    if (tensor.dtype != kernels::DType::kF32) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", NameOf(kind, layer),
                                                     ": expected float32, found ",
                                                     kernels::NameOf(tensor.dtype)));
    }
    std::memcpy(matrices->layers[layer].data(), tensor.bytes.data(), tensor.bytes.size());
  }
  return absl::OkStatus();
}

absl::Status Differs(const std::string& path, const std::string& key, const std::string& found,
                     const std::string& expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": the run was started with ", key, " ", found,
                   "; to go on as it would have, expected the same, found ", expected));
}

}  // namespace

absl::Status WriteTrainingState(const std::string& path, const ModelConfig& config,
                                const TrainingState& state) {
  const ForecastMatrices* const of_kind[] = {&state.heads, &state.optimizer.first,
                                             &state.optimizer.second};
  std::vector<TensorToWrite> tensors;
  for (size_t kind = 0; kind < std::size(kKinds); ++kind) {
    for (size_t layer = 0; layer < of_kind[kind]->layers.size(); ++layer) {
      tensors.push_back({.name = NameOf(kKinds[kind], layer),
                         .shape = {config.kv_width(), config.hidden_size},
                         .values = of_kind[kind]->layers[layer]});
    }
  }
  std::map<std::string, std::string> metadata = state.settings;
  metadata[kSteps] = absl::StrCat(state.optimizer.steps);
  return WriteSafetensors(path, tensors, metadata);
}

absl::StatusOr<TrainingState> ReadTrainingState(
    const std::string& path, const ModelConfig& config,
    const std::map<std::string, std::string>& settings) {
  AUGUR_ASSIGN_OR_RETURN(const auto file, Checkpoint::OpenFile(path));
  AUGUR_ASSIGN_OR_RETURN(auto metadata, ReadMetadata(path));
  TrainingState state;
  if (!absl::SimpleAtoi(metadata[kSteps], &state.optimizer.steps) || state.optimizer.steps < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": steps: expected a number, found ", metadata[kSteps]));
  }
  metadata.emplace("device", "cpu");  // of runs that do not say
  for (const auto& [key, value] : settings) {
    if (metadata[key] != value) return Differs(path, key, metadata[key], value);
  }
  state.settings = settings;
  AUGUR_RETURN_IF_ERROR(ReadMatrices(*file, kKinds[0], config, &state.heads));
  AUGUR_RETURN_IF_ERROR(ReadMatrices(*file, kKinds[1], config, &state.optimizer.first));
  AUGUR_RETURN_IF_ERROR(ReadMatrices(*file, kKinds[2], config, &state.optimizer.second));
  return state;
}

absl::Status WriteForecastHeads(const std::string& path, const ModelConfig& config,
                                const ForecastMatrices& heads, kernels::DType dtype) {
  std::vector<TensorToWrite> tensors;
  for (size_t layer = 0; layer < heads.layers.size(); ++layer) {
    tensors.push_back({.name = layer == 0 ? "model.layers.0.self_attn.q_curr_proj.weight"
                                          : absl::StrCat("model.layers.", layer - 1,
                                                         ".self_attn.q_future_proj.weight"),
                       .shape = {config.kv_width(), config.hidden_size},
                       .values = heads.layers[layer],
                       .dtype = dtype});
  }
  return WriteSafetensors(path, tensors);
}

}  // namespace augur::engine
