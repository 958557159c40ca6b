#pragma once
#include <cstdint>
#include <memory>

#include "kernels/dtype.h"
#include "kernels/ops/phase.h"

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
  // Instead of data: element i is RandomWeight(random_seed, i) times random_scale, rounded to
  // dtype, the same on every backend (random_weight.h). For checkpoints of a shape that has no
  // file.
  uint64_t random_seed = 0;
  float random_scale = 0.0f;
};

// y = x W^T (+ bias) (+ y when accumulate). Row r of y depends on row r of x alone: the same bits
// for any number of rows and threads.
struct LinearParams {
  const void* x = nullptr;  // [rows, in_features] of x_dtype, rows x_stride elements apart
  const PackedWeight* weight = nullptr;
  const float* bias = nullptr;  // [out_features], may be null
  void* y = nullptr;            // [rows, columns] of y_dtype, rows y_stride elements apart
  int rows = 0;
  // Rows of x and y that there are: a backend may compute more than `rows` of them, and overwrite
  // y there, where that is faster. 0: `rows`.
  int room_rows = 0;
  int x_stride = 0;
  int y_stride = 0;
  bool accumulate = false;  // y += instead of y =, for residual connections; kF32 only
  // Only the first so many outputs, with the bits that they have among all; 0: all of them.
  int columns = 0;
  Phase phase = Phase::kPrefill;
  // Pages are copied on another order meanwhile: a backend may leave a few processors to that. Bits
  // do not depend on it.
  bool beside_copies = false;
  DType x_dtype = DType::kF32;  // the weight's (Backend::ActivationDType); the CPU's: kF32
  DType y_dtype = DType::kF32;  // kF32 or x_dtype
};

}  // namespace augur::kernels
