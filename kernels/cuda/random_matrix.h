// Matrices of RandomWeight (random_weight.h), made on the device.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/dtype.h"

namespace augur::kernels {

struct RandomMatrix {
  void* to = nullptr;  // [padded_rows, padded_columns] of dtype
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t padded_rows = 0;  // elements beyond [rows, columns] become 0
  int64_t padded_columns = 0;
  uint64_t seed = 0;
  float scale = 1.0f;
};

// Element i of [rows, columns] is RandomWeight(seed, i) times scale, rounded to dtype.
void FillRandom(const RandomMatrix& matrix, cudaStream_t stream);

}  // namespace augur::kernels
