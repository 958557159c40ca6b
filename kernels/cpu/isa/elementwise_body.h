// The row-wise ops: each output depends on its row alone, sums fold 64 lanes in the one order of
// FoldSum.
#pragma once

#include "kernels/cpu/isa/vector.h"

namespace augur::kernels::AUGUR_ISA {
namespace {

// Lane i sums the squares of elements i, i + 64, i + 128, ... as one chain of Fma.
void RmsNormRow(const float* x, const float* weight, float* out, int hidden, float epsilon) {
  Floats squares[kFoldVectors] = {};
  int i = 0;
  for (; i + kFold <= hidden; i += kFold) {
#pragma GCC unroll 16
    for (int v = 0; v < kFoldVectors; ++v) {
      const Floats value = Load(x + i + v * kLanes);
      squares[v] = Fma(value, value, squares[v]);
    }
  }
  if (i < hidden) {
    alignas(64) float tail[kFold] = {};
    memcpy(tail, x + i, sizeof(float) * (hidden - i));
#pragma GCC unroll 16
    for (int v = 0; v < kFoldVectors; ++v) {
      const Floats value = Load(tail + v * kLanes);
      squares[v] = Fma(value, value, squares[v]);
    }
  }
  const float mean = FoldSum(squares) / static_cast<float>(hidden);
  const float factor = 1.0f / __builtin_sqrtf(mean + epsilon);
  for (i = 0; i + kLanes <= hidden; i += kLanes) {
    Store(out + i, Load(x + i) * factor * Load(weight + i));
  }
  for (; i < hidden; ++i) out[i] = x[i] * factor * weight[i];
}

AUGUR_INLINE Floats SiluTimes(Floats gate, Floats up) { return gate / (Exp(-gate) + 1.0f) * up; }

void GatedSiluRow(const float* gate, const float* up, float* out, int width) {
  int i = 0;
  for (; i + kLanes <= width; i += kLanes) Store(out + i, SiluTimes(Load(gate + i), Load(up + i)));
  if (i == width) return;
  float gates[kLanes] = {}, ups[kLanes] = {}, products[kLanes];
  memcpy(gates, gate + i, sizeof(float) * (width - i));
  memcpy(ups, up + i, sizeof(float) * (width - i));
  Store(products, SiluTimes(Load(gates), Load(ups)));
  memcpy(out + i, products, sizeof(float) * (width - i));
}

// Products rounded before the sum, as the Hugging Face code does in float32.
void RotateHead(float* head, const float* cos, const float* sin, int half) {
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const Floats a = Load(head + i), b = Load(head + half + i);
    const Floats c = Load(cos + i), s = Load(sin + i);
    Store(head + i, a * c - b * s);
    Store(head + half + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = head[i], b = head[half + i];
    head[i] = a * cos[i] - b * sin[i];
    head[half + i] = b * cos[i] + a * sin[i];
  }
}

float MaxOrNan(const float* logits, int count) {
  Floats largest = Splat(-__builtin_inff());
  Ints is_nan = {};
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Floats value = Load(logits + i);
    is_nan |= value != value;
    largest = Max(value, largest);
  }
  float result = MaxLanes(largest);
  for (; i < count; ++i) {
    if (logits[i] != logits[i]) return logits[i];
    if (logits[i] > result) result = logits[i];
  }
  for (int lane = 0; lane < kLanes; ++lane) {
    if (is_nan[lane] != 0) return __builtin_nanf("");
  }
  return result;
}

void SoftmaxWeights(const float* logits, float max, float temperature, float* out, int count) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Store(out + i, Exp((Load(logits + i) - max) / temperature));
  }
  if (i == count) return;
  float tail[kLanes] = {};
  memcpy(tail, logits + i, sizeof(float) * (count - i));
  Store(tail, Exp((Load(tail) - max) / temperature));
  memcpy(out + i, tail, sizeof(float) * (count - i));
}

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
