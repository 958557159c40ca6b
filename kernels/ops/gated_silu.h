#pragma once

namespace augur::kernels {

// out[r, i] = silu(gate_up[r, i]) * gate_up[r, width + i], silu(x) = x / (1 + exp(-x)).
struct GatedSiluParams {
  const float* gate_up = nullptr;  // [rows, 2 * width]: gate, then up
  float* out = nullptr;            // [rows, width]
  int rows = 0;
  int width = 0;
};

}  // namespace augur::kernels
