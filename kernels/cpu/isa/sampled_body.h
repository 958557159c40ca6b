// Sampled attention's inner loops (ops/sampled_attention.h): scores of whole tiles, integer
// weights, and the gathering of drawn rows. Integers are added in any order; every float sum is one
// chain in the order of rows.
#pragma once

#include "kernels/cpu/isa/convert_body.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/isa/score_tile.h"
#include "kernels/cpu/isa/vector.h"

namespace augur::kernels::AUGUR_ISA {
namespace {

constexpr float kWeightScale = 1073741824.0f;  // kTileWeightScale of kernels/value_weights.h

// Every score is the chain of attention_body.h: q k over head_dim, ascending, and then the bias.
void ScoreEntries(const SampledScoreSpan& span) {
  const int padded = PaddedHeadDim(span.head_dim);
  float* keys = span.scratch;
  float* widened = keys + size_t(kKeys) * padded;
  float* queries = widened + size_t(kKeys) * padded;
  const float factor = span.scale * kLog2E;
  for (int c = 0; c < span.heads * span.head_dim; ++c) queries[c] = span.q[c] * factor;
  for (int entry = span.begin; entry < span.end; ++entry) {
    const int left = span.position - span.blocks[entry] * kKeys + 1;
    const int visible = left < kKeys ? left : kKeys;
    const std::byte* page = span.keys[entry];
    const std::byte* next = entry + 1 < span.end ? span.keys[entry + 1] : page;
    TransposeKeys(span.dtype, page, visible, span.head_dim, widened, keys, {page, next});
    const float* bias = span.biases == nullptr ? nullptr : span.biases[entry];
    for (int head = 0; head < span.heads; ++head) {
      float* scores = span.scores + head * span.scores_stride + size_t(entry) * kKeys;
      Scores<1>(queries + size_t(head) * span.head_dim, span.head_dim, keys, scores);
      for (int v = 0; v < kKeys; v += kLanes) {
        Floats s = Load(scores + v);
        if (bias != nullptr) s = Fma(Load(bias + v), Splat(kLog2E), s);
        Store(scores + v, Iota() + v < visible ? s : Splat(kMinusInfinity));
      }
    }
  }
}

// The largest of 64 scores; NaN where one is.
float TileMax(const float* scores) {
  Floats largest = Load(scores);
  Ints bad = largest != largest;
  for (int v = kLanes; v < kKeys; v += kLanes) {
    const Floats s = Load(scores + v);
    bad |= s != s;
    largest = Max(largest, s);
  }
  for (int i = 0; i < kLanes; ++i) {
    if (bad[i] != 0) return __builtin_nanf("");
  }
  return MaxLanes(largest);
}

// weights[n] = round(2^30 2^(scores[n] - max)); gives their sum.
uint64_t TileWeights(const float* scores, float max, uint32_t* weights) {
  for (int v = 0; v < kKeys; v += kLanes) {
    const Floats scaled = Exp2(Load(scores + v) - max) * kWeightScale;
    const Ints whole = __builtin_convertvector(scaled + 0.5f, Ints);
    memcpy(weights + v, &whole, sizeof(whole));
  }
  uint64_t sum = 0;
  for (int n = 0; n < kKeys; ++n) sum += weights[n];
  return sum;
}

// rates[n] = 2^(the largest over the heads of scores[n] - its log_norm), at most 2.
void SharedRates(const float* scores, size_t stride, const float* log_norms, int heads,
                 float* rates) {
  for (int v = 0; v < kKeys; v += kLanes) {
    Floats most = Load(scores + v) - log_norms[0];
    for (int head = 1; head < heads; ++head) {
      most = Max(most, Load(scores + head * stride + v) - log_norms[head]);
    }
    Store(rates + v, Exp2(most > 1.0f ? Splat(1.0f) : most));
  }
}

template <class Element>
void GatherElementRows(const ValueGather& gather, const Element* values) {
  for (int i = 0; i < gather.count; ++i) {
    const Element* row = values + size_t(gather.tokens[i]) * gather.head_dim;
    const float* weights = gather.weights + size_t(i) * gather.heads;
    for (int c = 0; c < gather.head_dim; c += kLanes) {
      const Floats value = LoadWide(row + c);
      for (int head = 0; head < gather.heads; ++head) {
        float* sum = gather.sums + size_t(head) * gather.sums_stride + c;
        if (weights[head] != 0.0f) Store(sum, Fma(value, Splat(weights[head]), Load(sum)));
      }
    }
  }
}

// sums[head] += weights[i][head] * values[tokens[i]], i ascending.
void GatherValues(const ValueGather& gather) {
  if (gather.head_dim % kLanes != 0) {
    // Rows that are no whole vectors are widened to ones that are.
    const size_t row_bytes = PageHalfBytes(gather.dtype, gather.head_dim) / kPageTokens;
    alignas(64) float wide[kMaxHeadDim] = {};
    for (int i = 0; i < gather.count; ++i) {
      WidenRow(gather.dtype, gather.values + gather.tokens[i] * row_bytes, wide, gather.head_dim);
      for (int head = 0; head < gather.heads; ++head) {
        const float weight = gather.weights[size_t(i) * gather.heads + head];
        float* sum = gather.sums + size_t(head) * gather.sums_stride;
        for (int c = 0; weight != 0.0f && c < gather.head_dim; c += kLanes) {
          Store(sum + c, Fma(Load(wide + c), Splat(weight), Load(sum + c)));
        }
      }
    }
    return;
  }
  switch (gather.dtype) {
    case DType::kF32:
      return GatherElementRows(gather, reinterpret_cast<const float*>(gather.values));
    case DType::kBF16:
      return GatherElementRows(gather, reinterpret_cast<const BF16*>(gather.values));
    case DType::kF16:
      return GatherElementRows(gather, reinterpret_cast<const F16*>(gather.values));
  }
}

// sum += each of `count` rows of a page half, in order.
void AddValueRows(DType dtype, const void* rows, int count, int head_dim, float* sum) {
  alignas(64) float wide[kMaxHeadDim] = {};
  const std::byte* row = static_cast<const std::byte*>(rows);
  const size_t row_bytes = PageHalfBytes(dtype, head_dim) / kPageTokens;
  for (int i = 0; i < count; ++i) {
    WidenRow(dtype, row + i * row_bytes, wide, head_dim);
    for (int c = 0; c < head_dim; ++c) sum[c] += wide[c];
  }
}

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
