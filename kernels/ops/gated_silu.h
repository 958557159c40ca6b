#pragma once
#include "kernels/dtype.h"

namespace augur::kernels {

// out[r, i] = silu(gate_up[r, i]) * gate_up[r, width + i], silu(x) = x / (1 + exp(-x)).
struct GatedSiluParams {
  const void* gate_up = nullptr;  // [rows, 2 * width] of dtype: gate, then up
  void* out = nullptr;            // [rows, width] of dtype
  int rows = 0;
  int width = 0;
  DType dtype = DType::kF32;  // the CPU's: kF32
};

}  // namespace augur::kernels
