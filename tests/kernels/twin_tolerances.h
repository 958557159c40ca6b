// How far a backend's result may be from the plain reference in double, by op and dtype of the
// result. Ops that are not here (Embedding, CompressKeys, MapPages, what RopeAppend writes to
// pages) are exact.
#pragma once

#include <cmath>

#include "kernels/dtype.h"

namespace augur::kernels {

struct TwinTolerance {
  double relative = 0.0;
  double absolute = 0.0;

  double At(double expected) const { return relative * std::abs(expected) + absolute; }
};

struct TwinTolerances {
  TwinTolerance f32, bf16, f16;

  constexpr const TwinTolerance& Of(DType dtype) const {
    return dtype == DType::kF32 ? f32 : dtype == DType::kBF16 ? bf16 : f16;
  }
};

// Half a unit in the last place of each 16-bit type, and of fp16's subnormals.
inline constexpr double kHalfUlpBF16 = 0x1p-8;
inline constexpr double kHalfUlpF16 = 0x1p-11;
inline constexpr double kHalfSubnormalF16 = 0x1p-25;

// A sum of squares in float32 in any order, and four roundings.
inline constexpr TwinTolerances kRmsNormTolerances{
    .f32 = {1e-6, 1e-12},
    .bf16 = {kHalfUlpBF16 + 2e-6, 1e-12},
    .f16 = {kHalfUlpF16 + 2e-6, kHalfSubnormalF16 + 1e-12}};

// float32: an exponential within two units and three roundings. 16 bits: the device's fast
// exponential and division, which may flush what is below 2^-119.
inline constexpr TwinTolerances kGatedSiluTolerances{
    .f32 = {1e-6, 1e-30},
    .bf16 = {kHalfUlpBF16 + 4e-6, 1e-30},
    .f16 = {kHalfUlpF16 + 4e-6, kHalfSubnormalF16 + 1e-12}};

// q and k in float32, of inputs near 1: two products and a sum, which may cancel.
inline constexpr TwinTolerance kRopeTolerance{0.0, 2e-6};

// Of inputs that were normed before (sum of squares in float32 in any order, weights up to 1): up to
// sqrt(head_dim) large.
inline constexpr TwinTolerance kNormedRopeTolerance{0.0, 2e-5};

// A block's product, of the sum of its magnitudes: q in two parts of 8 bits and more, sums in
// float32. A softmax's share is off by as much, of itself.
inline constexpr TwinTolerance kSelectTolerance{1e-5, 1e-12};

// Of probabilities and their sums by ascending id: each weight is an exponential in float32.
inline constexpr TwinTolerance kSamplingTolerance{0.0, 1e-5};

}  // namespace augur::kernels
