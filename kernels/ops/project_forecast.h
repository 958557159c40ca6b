#pragma once
#include <cstdint>

#include "kernels/dtype.h"

namespace augur::kernels {

// forecasts = RoPE(x head^T) with each row's own position (SparDA Eq. 3; the half-split convention
// of rope_append.h): what a Forecast head under training foretells.
struct ProjectForecastParams {
  const void* x = nullptr;             // [rows, hidden] of dtype
  const void* head = nullptr;          // [num_kv_heads * head_dim, hidden] of dtype
  const int32_t* positions = nullptr;  // [rows]
  const float* cos = nullptr;          // [most position + 1, head_dim / 2]
  const float* sin = nullptr;
  float* products = nullptr;  // [rows, num_kv_heads * head_dim]: scratch
  void* forecasts = nullptr;  // [rows, num_kv_heads * head_dim] of dtype
  int rows = 0;
  int hidden = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;  // kF32 on the CPU, kBF16 anywhere
};

// gradient += turned^T x, where turned is `derivatives` rotated back: what the loss changes by with
// ProjectForecast's head, summed over rows in one order.
struct AddForecastGradientParams {
  const float* derivatives = nullptr;  // [rows, num_kv_heads * head_dim], by rotated forecasts
  const void* x = nullptr;             // [rows, hidden] of dtype
  const int32_t* positions = nullptr;  // [rows]
  const float* cos = nullptr;          // as above
  const float* sin = nullptr;
  void* turned = nullptr;     // [rows, num_kv_heads * head_dim] of dtype: scratch
  float* gradient = nullptr;  // [num_kv_heads * head_dim, hidden]
  int rows = 0;
  int hidden = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;
};

}  // namespace augur::kernels
