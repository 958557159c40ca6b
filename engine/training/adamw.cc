#include "engine/training/adamw.h"

#include <algorithm>
#include <cmath>

namespace augur::engine {
namespace {

double NormOf(const ForecastMatrices& matrices) {
  double squares = 0;
  for (const auto& layer : matrices.layers) {
    for (const float value : layer) squares += double{value} * value;
  }
  return std::sqrt(squares);
}

// Of the learning rate, in the step that comes as number `step`, from 1.
double RateAt(const AdamWOptions& options, int64_t step) {
  double share = 1;
  if (step < options.warmup_steps) {
    share = static_cast<double>(step) / static_cast<double>(options.warmup_steps);
  }
  const int64_t left = options.total_steps - step + 1;  // this one with them
  if (options.cooldown_steps > 0 && left < options.cooldown_steps) {
    share *= static_cast<double>(std::max<int64_t>(left, 0)) /
             static_cast<double>(options.cooldown_steps);
  }
  return options.learning_rate * share;
}

}  // namespace

double StepAdamW(const AdamWOptions& options, const ForecastMatrices& gradients, AdamWState* state,
                 ForecastMatrices* weights) {
  const double norm = NormOf(gradients);
  const bool clips = options.clip_norm > 0 && norm > options.clip_norm;
  const auto factor = static_cast<float>(clips ? options.clip_norm / norm : 1.0);
  const auto step = static_cast<double>(++state->steps);
  const double rate = RateAt(options, state->steps);
  const auto decay = static_cast<float>(1 - rate * options.weight_decay);
  const double first_bias = 1 - std::pow(double{options.beta1}, step);
  const double second_bias = 1 - std::pow(double{options.beta2}, step);
  const auto pace = static_cast<float>(rate / first_bias);
  const auto spread = static_cast<float>(1 / std::sqrt(second_bias));
  for (size_t layer = 0; layer < weights->layers.size(); ++layer) {
    float* const w = weights->layers[layer].data();
    float* const m = state->first.layers[layer].data();
    float* const v = state->second.layers[layer].data();
    const float* const g = gradients.layers[layer].data();
    for (size_t i = 0; i < weights->layers[layer].size(); ++i) {
      const float gradient = g[i] * factor;
      m[i] += (1 - options.beta1) * (gradient - m[i]);
      v[i] += (1 - options.beta2) * (gradient * gradient - v[i]);
      w[i] = w[i] * decay - pace * m[i] / (std::sqrt(v[i]) * spread + options.epsilon);
    }
  }
  return norm;
}

}  // namespace augur::engine
