#pragma once
#include <cstdint>

#include "kernels/dtype.h"

namespace augur::kernels {

// out[r, i] = x[s, i] / sqrt(mean_i(x[s, i]^2) + epsilon) * weight[i], with s = row_ids[r], or r
// where there are no row_ids. out may alias x when there are none.
struct RmsNormParams {
  const float* x = nullptr;          // [rows, hidden]; with row_ids [max(row_ids) + 1, hidden]
  const int32_t* row_ids = nullptr;  // [rows], may be null
  const float* weight = nullptr;     // [hidden]
  void* out = nullptr;               // [rows, hidden] of out_dtype
  int rows = 0;
  int hidden = 0;
  float epsilon = 1e-5f;
  DType out_dtype = DType::kF32;  // the CPU's: kF32
};

}  // namespace augur::kernels
