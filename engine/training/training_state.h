// Where a training run stands, as a file, and the file of heads that a daemon reads.
//
// Both are safetensors, written whole or not at all (engine/model/safetensors_writer.h). The state
// holds weights and moments in float32 and what the run was started with; a run that would not go
// on as an uninterrupted one is refused by name.
//
// Thread: any. Failure: one line with file and what was expected and found.
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "engine/training/adamw.h"
#include "engine/training/forecast_matrices.h"

namespace augur::engine {

struct TrainingState {
  ForecastMatrices heads;
  AdamWState optimizer;
  // What decides the run's further course: key, value. Compared at resumption.
  std::map<std::string, std::string> settings;
};

absl::Status WriteTrainingState(const std::string& path, const ModelConfig& config,
                                const TrainingState& state);
// settings: of the run that resumes; the first that differs from the file's is named.
absl::StatusOr<TrainingState> ReadTrainingState(const std::string& path, const ModelConfig& config,
                                                const std::map<std::string, std::string>& settings);

// The heads under their public names (engine/model/forecast_heads.h), rounded to `dtype`.
absl::Status WriteForecastHeads(const std::string& path, const ModelConfig& config,
                                const ForecastMatrices& heads, kernels::DType dtype);

}  // namespace augur::engine
