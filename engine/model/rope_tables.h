// Cosine and sine of every position that a model serves, in the backend's memory: a table for each
// RoPE variant (rope_scaling.h), one behind the other. The short variant's covers the lengths that
// it serves alone.
//
// Angles are products in double precision: float32 ones, as transformers has them, are off by 5e-5
// rad at position 700 already and by 100 times that at the end of a long context. The attention
// factor is in the tables, where it costs nothing.
//
// Thread: immutable after Create. Ownership: the memory; the backend outlives it. Failure: Create
// names bytes and knob.
#pragma once

#include <array>

#include "absl/status/statusor.h"
#include "engine/model/rope_scaling.h"
#include "kernels/backend.h"
#include "kernels/backend_array.h"

namespace augur::engine {

inline constexpr int kRopeVariants = 2;

// What ops need of the tables.
struct RopeAngles {
  const float* cos = nullptr;                  // [rows, head_dim / 2]
  const float* sin = nullptr;                  // likewise
  std::array<int, kRopeVariants> first = {};   // row of position 0 of a variant
  std::array<int, kRopeVariants> covers = {};  // positions of a variant
};

class RopeTables {
 public:
  static absl::StatusOr<RopeTables> Create(kernels::Backend* backend, const RopeScaling& rope,
                                           int head_dim, int max_context);

  const RopeAngles& angles() const { return angles_; }

 private:
  kernels::BackendArray<float> cos_;
  kernels::BackendArray<float> sin_;
  RopeAngles angles_;
};

}  // namespace augur::engine
