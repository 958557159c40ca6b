// Some query rows times the 64 transposed keys of a tile: what attention and block selection share.
#pragma once

#include "kernels/cpu/isa/convert_body.h"
#include "kernels/cpu/isa/vector.h"

namespace augur::kernels::AUGUR_ISA {
namespace {

constexpr int kKeys = 64;  // kBlockTokens
constexpr int kKeyVectors = kKeys / kLanes;
constexpr float kLog2E = 1.44269504088896341f;
constexpr float kMinusInfinity = -__builtin_inff();
// 6 rows x 4 vectors = 24 sums (AVX-512), 6 x 2 = 12 (AVX2): per step 10 (8) loads for 24 (12) Fma.
// Generic as in linear_body.h.
constexpr int kQueryRows = kLanes >= 8 ? 6 : 2;
constexpr int kColumnVectors = kLanes == 16 ? 4 : kLanes == 8 ? 2 : 1;

// sums[r][c] += a[r][k] * b[k][c], k ascending.
template <int kRows, int kVectors, class Element>
AUGUR_INLINE void MultiplyAdd(const float* a, size_t a_stride, const Element* b, size_t b_stride,
                              int depth, Floats (&sums)[kRows][kVectors]) {
  for (int k = 0; k < depth; ++k) {
    Floats columns[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) columns[v] = LoadWide(b + v * kLanes);
    b += b_stride;
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const Floats weight = Splat(a[row * a_stride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sums[row][v] = Fma(columns[v], weight, sums[row][v]);
    }
  }
}

template <int kRows>
void Scores(const float* queries, int head_dim, const float* keys, float* scores) {
  for (int column = 0; column < kKeys; column += kColumnVectors * kLanes) {
    Floats sums[kRows][kColumnVectors] = {};
    MultiplyAdd<kRows, kColumnVectors>(queries, head_dim, keys + column, kKeys, head_dim, sums);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int v = 0; v < kColumnVectors; ++v) {
        Store(scores + row * kKeys + column + v * kLanes, sums[row][v]);
      }
    }
  }
}

// Scores of `rows` query rows, at most kMost, by the tile of just that height.
template <int kMost>
AUGUR_INLINE void ScoreRows(const float* queries, int rows, int head_dim, const float* keys,
                            float* scores) {
  if (rows == kMost) {
    Scores<kMost>(queries, head_dim, keys, scores);
  } else if constexpr (kMost > 1) {
    ScoreRows<kMost - 1>(queries, rows, head_dim, keys, scores);
  }
}

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
