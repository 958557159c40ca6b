#pragma once
#include <cstdint>

#include "kernels/dtype.h"

namespace augur::kernels {

// to[i] = from[row_ids[i]], rounded to to_dtype.
struct GatherRowsParams {
  const void* from = nullptr;        // rows of from_dtype, from_stride elements apart
  const int32_t* row_ids = nullptr;  // [rows]
  void* to = nullptr;                // [rows, width] of to_dtype
  int64_t from_stride = 0;
  int rows = 0;
  int width = 0;
  DType from_dtype = DType::kF32;
  DType to_dtype = DType::kF32;
};

}  // namespace augur::kernels
