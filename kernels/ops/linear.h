#pragma once
#include <memory>

#include "kernels/dtype.h"

namespace augur::kernels {

// A weight matrix in the layout that one backend's Linear reads; made once at load by
// Backend::PackWeight. Immutable, may be read by several threads.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;
  virtual int out_features() const = 0;
  virtual int in_features() const = 0;
  virtual size_t bytes() const = 0;
};

// Row-major source of a PackedWeight: [out_features, in_features] of dtype, as checkpoints store
// it.
struct WeightSource {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int out_features = 0;
  int in_features = 0;
};

// y = x W^T (+ bias) (+ y when accumulate). Row r of y depends on row r of x alone: the same bits
// for any number of rows and threads.
struct LinearParams {
  const float* x = nullptr;  // [rows, in_features], rows x_stride apart
  const PackedWeight* weight = nullptr;
  const float* bias = nullptr;  // [out_features], may be null
  float* y = nullptr;           // [rows, columns], rows y_stride apart
  int rows = 0;
  int x_stride = 0;
  int y_stride = 0;
  bool accumulate = false;  // y += instead of y =, for residual connections
  // Only the first so many outputs, with the bits that they have among all; 0: all of them.
  int columns = 0;
};

}  // namespace augur::kernels
