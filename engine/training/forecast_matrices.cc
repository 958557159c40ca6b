#include "engine/training/forecast_matrices.h"

#include <cmath>

#include "kernels/random_weight.h"

namespace augur::engine {

ForecastMatrices RandomMatrices(const ModelConfig& config, uint64_t seed) {
  ForecastMatrices matrices = ZeroMatrices(config);
  const float bound = 1 / std::sqrt(static_cast<float>(config.hidden_size));
  for (size_t layer = 0; layer < matrices.layers.size(); ++layer) {
    std::vector<float>& values = matrices.layers[layer];
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = bound * kernels::RandomWeight(seed + (layer << 32), i);
    }
  }
  return matrices;
}

}  // namespace augur::engine
