#pragma once
#include <cstdint>

#include "kernels/dtype.h"

namespace augur::kernels {

// out[r] = scale * table[ids[r]]; a row of NaN where the id is outside of the table.
struct EmbeddingParams {
  const int32_t* ids = nullptr;  // [rows]
  const void* table = nullptr;   // [vocab, hidden] of table_dtype
  DType table_dtype = DType::kF32;
  float* out = nullptr;  // [rows, hidden]
  int rows = 0;
  int vocab = 0;
  int hidden = 0;
  float scale = 1.0f;
};

}  // namespace augur::kernels
