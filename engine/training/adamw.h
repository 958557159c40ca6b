// AdamW (Loshchilov and Hutter 2019: decay beside the gradient) over the heads' matrices, with the
// gradient's global norm clipped first, as the published recipe trains them (SparDA Table 5).
//
// Thread: one. Ownership: owns the moments. Failure: none.
#pragma once

#include <cstdint>

#include "engine/training/forecast_matrices.h"

namespace augur::engine {

struct AdamWOptions {
  float learning_rate = 5e-4f;
  int64_t warmup_steps = 0;  // the rate rises evenly over so many
  // The rate falls evenly to nothing over the last so many of so many steps.
  int64_t cooldown_steps = 0;
  int64_t total_steps = 0;
  float beta1 = 0.9f;
  float beta2 = 0.95f;
  float epsilon = 1e-6f;
  float weight_decay = 0.01f;
  float clip_norm = 0.5f;  // 0: off
};

struct AdamWState {
  int64_t steps = 0;  // taken
  ForecastMatrices first;
  ForecastMatrices second;
};

// Takes one step; gives the gradient's norm before clipping.
double StepAdamW(const AdamWOptions& options, const ForecastMatrices& gradients, AdamWState* state,
                 ForecastMatrices* weights);

}  // namespace augur::engine
