// What this ISA can do at best, for fma_peak.h.
#pragma once

#include "kernels/cpu/isa/vector.h"

namespace augur::kernels::AUGUR_ISA {
namespace {

// 12 chains: more than two ports times 4 cycles of latency need.
double FmaRounds(int64_t rounds) {
  constexpr int kChains = 12;
  Floats sums[kChains] = {};
  Floats factor = Splat(0.999f), term = Splat(0.001f);
  asm volatile("" : "+x"(factor), "+x"(term));
  // Twelve equal chains would be compiled into one: no value may be known.
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) asm volatile("" : "+x"(sums[i]));
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sums[i] = Fma(sums[i], factor, term);
  }
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) asm volatile("" : : "x"(sums[i]));
  return 2.0 * kLanes * kChains * static_cast<double>(rounds);
}

float ReadFloats(const float* data, size_t count) {
  Floats sums[kFoldVectors] = {};
  for (size_t i = 0; i + kFold <= count; i += kFold) {
#pragma GCC unroll 16
    for (int v = 0; v < kFoldVectors; ++v) sums[v] += Load(data + i + v * kLanes);
  }
  return FoldSum(sums);
}

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
