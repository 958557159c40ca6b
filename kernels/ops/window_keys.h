#pragma once
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/ops/compress_keys.h"

namespace augur::kernels {

// Keys of one layer that Forecast training compares with: those of new tokens, and every window of
// them that a new token completes, as a mean in float32 of keys as `tokens` holds them.
struct WindowKeysParams {
  const float* k = nullptr;  // [rows, row_stride]: num_kv_heads heads after RoPE
  // Of dtype, [num_kv_heads][key_stride tokens][head_dim]: earlier tokens' keys are read where a
  // window holds them.
  void* tokens = nullptr;
  void* fine = nullptr;  // likewise; at t: (k_t + k_t+1) / 2
  // [num_kv_heads][key_stride / kWindowStride][head_dim]; at j + 1: the mean of 32 tokens from 16 j
  void* coarse = nullptr;
  int64_t key_stride = 0;  // tokens, a multiple of kWindowStride, more than the last position
  int row_stride = 0;
  int first_position = 0;  // of the rows
  int rows = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;  // kF32 on the CPU, kBF16 anywhere
};

}  // namespace augur::kernels
