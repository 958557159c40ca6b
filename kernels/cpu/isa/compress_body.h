// The mean of a window's keys: two ascending chains of 16, so that a half has the same bits in both
// windows that it belongs to.
#pragma once

#include "kernels/cpu/isa/convert_body.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/isa/vector.h"

namespace augur::kernels::AUGUR_ISA {
namespace {

constexpr int kHalfWindow = 16;  // kWindowStride

// sums[c] = the sum over 16 keys, ascending from 0. sums and key have room for kMaxHeadDim.
void SumKeys(DType dtype, const void* keys, float* key, float* sums, int head_dim) {
  const size_t key_bytes = size_t(head_dim) * (dtype == DType::kF32 ? 4 : 2);
  memset(sums, 0, sizeof(float) * PaddedHeadDim(head_dim));
  for (int i = 0; i < kHalfWindow; ++i) {
    WidenRow(dtype, static_cast<const char*>(keys) + i * key_bytes, key, head_dim);
    for (int c = 0; c < head_dim; c += kLanes) Store(sums + c, Load(sums + c) + Load(key + c));
  }
}

void CompressWindow(DType dtype, const void* first, const void* second, void* out, int head_dim) {
  // Whole vectors are added; what lies behind head_dim is never used.
  alignas(64) float key[kMaxHeadDim] = {};
  alignas(64) float first_sum[kMaxHeadDim], second_sum[kMaxHeadDim];
  SumKeys(dtype, first, key, first_sum, head_dim);
  SumKeys(dtype, second, key, second_sum, head_dim);
  for (int c = 0; c < head_dim; ++c) {
    first_sum[c] = (first_sum[c] + second_sum[c]) * (1.0f / 32.0f);
  }
  NarrowRow(dtype, first_sum, out, head_dim);
}

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
