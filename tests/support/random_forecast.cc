#include "tests/support/random_forecast.h"

#include <cmath>
#include <random>

#include "tests/support/checkpoint_writer.h"

namespace augur::tests {

void WriteRandomForecast(const std::string& path, int num_layers, int kv_width, int hidden,
                         uint32_t seed) {
  std::mt19937 random(seed);
  const float bound = 1.0f / std::sqrt(static_cast<float>(hidden));
  const auto head = [&] {
    TensorFile tensor{.dtype = "F32", .shape = {kv_width, hidden}, .bytes = {}};
    for (int i = 0; i < kv_width * hidden; ++i) {
      const float value = bound * (static_cast<float>(random()) / 2147483648.0f - 1.0f);
      tensor.bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
    return tensor;
  };
  TensorMap tensors;
  tensors["model.layers.0.self_attn.q_curr_proj.weight"] = head();
  for (int layer = 0; layer + 1 < num_layers; ++layer) {
    tensors["model.layers." + std::to_string(layer) + ".self_attn.q_future_proj.weight"] = head();
  }
  WriteTensors(path, tensors);
}

}  // namespace augur::tests
