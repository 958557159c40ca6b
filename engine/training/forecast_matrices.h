// One matrix of a Forecast head's shape for each layer: weights, their gradients, or the
// optimizer's moments. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/model_config.h"

namespace augur::engine {

struct ForecastMatrices {
  // [layers], each [kv heads * head_dim, hidden]: the head that selects for layer l. The first is
  // q_curr_proj of layer 0, the one of layer l is q_future_proj of layer l - 1.
  std::vector<std::vector<float>> layers;
};

inline ForecastMatrices ZeroMatrices(const ModelConfig& config) {
  const size_t size = size_t(config.kv_width()) * config.hidden_size;
  return {std::vector<std::vector<float>>(config.num_layers, std::vector<float>(size))};
}

// U(-1 / sqrt(hidden), 1 / sqrt(hidden)), as the released training code begins.
ForecastMatrices RandomMatrices(const ModelConfig& config, uint64_t seed);

}  // namespace augur::engine
