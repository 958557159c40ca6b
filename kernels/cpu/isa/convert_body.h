// KV pages and other half-precision data to float and back, and a page's keys to [head_dim][64].
#pragma once

#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/isa/vector.h"
#include "kernels/dtype.h"

namespace augur::kernels::AUGUR_ISA {
namespace {

constexpr int kPageTokens = 64;  // kBlockTokens

AUGUR_INLINE size_t PageHalfBytes(DType dtype, int head_dim) {
  return size_t(kPageTokens) * head_dim * (dtype == DType::kF32 ? 4 : 2);
}

AUGUR_INLINE Floats WidenBF16(const uint16_t* from) {
#if AUGUR_ISA_LANES == 16
  return (Floats)((Words)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)) << 16);
#elif AUGUR_ISA_LANES == 8
  return (Floats)((Words)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)) << 16);
#else
  Words bits;
  for (int i = 0; i < kLanes; ++i) bits[i] = uint32_t{from[i]} << 16;
  return AsFloats(bits);
#endif
}

AUGUR_INLINE Floats WidenF16(const uint16_t* from) {
#if AUGUR_ISA_LANES == 16
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif AUGUR_ISA_LANES == 8
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#else
  Floats wide;
  for (int i = 0; i < kLanes; ++i) wide[i] = FloatFromF16(from[i]);
  return wide;
#endif
}

AUGUR_INLINE void NarrowF16(Floats value, uint16_t* to) {
#if AUGUR_ISA_LANES == 16
  _mm256_storeu_si256((__m256i*)to, _mm512_cvtps_ph((__m512)value, _MM_FROUND_TO_NEAREST_INT));
#elif AUGUR_ISA_LANES == 8
  _mm_storeu_si128((__m128i*)to, _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) to[i] = F16FromFloat(value[i]);
#endif
}

// As BF16FromFloat of dtype.h.
AUGUR_INLINE void NarrowBF16(Floats value, uint16_t* to) {
  const Words bits = AsWords(value);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const Words quiet = (bits >> 16) | 0x40u;
  const Words narrow = (bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded;
  for (int i = 0; i < kLanes; ++i) to[i] = static_cast<uint16_t>(narrow[i]);
}

// A tail of fewer than kLanes elements goes through a whole vector, so that every element is converted by
// the same instructions.
void WidenRow(DType from, const void* source, float* out, int count) {
  if (from == DType::kF32) {
    memcpy(out, source, sizeof(float) * count);
    return;
  }
  const uint16_t* half = static_cast<const uint16_t*>(source);
  const bool is_bf16 = from == DType::kBF16;
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Store(out + i, is_bf16 ? WidenBF16(half + i) : WidenF16(half + i));
  }
  if (i == count) return;
  uint16_t tail[kLanes] = {};
  float wide[kLanes];
  memcpy(tail, half + i, sizeof(uint16_t) * (count - i));
  Store(wide, is_bf16 ? WidenBF16(tail) : WidenF16(tail));
  memcpy(out + i, wide, sizeof(float) * (count - i));
}

void NarrowRow(DType to, const float* source, void* out, int count) {
  if (to == DType::kF32) {
    memcpy(out, source, sizeof(float) * count);
    return;
  }
  uint16_t* half = static_cast<uint16_t*>(out);
  const bool is_bf16 = to == DType::kBF16;
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    is_bf16 ? NarrowBF16(Load(source + i), half + i) : NarrowF16(Load(source + i), half + i);
  }
  if (i == count) return;
  float wide[kLanes] = {};
  uint16_t tail[kLanes];
  memcpy(wide, source + i, sizeof(float) * (count - i));
  is_bf16 ? NarrowBF16(Load(wide), tail) : NarrowF16(Load(wide), tail);
  memcpy(half + i, tail, sizeof(uint16_t) * (count - i));
}

// Lanes of 32 bits, keys in rows [64][row_words] -> columns. With kPairs a lane is two bf16, elements 2w
// (low) and 2w + 1, which come apart by shift and mask after the transposition, half the shuffles of floats.
template <bool kPairs>
void TransposeWords(const uint32_t* rows, int row_words, int written, float* keys) {
  for (int key = 0; key < kPageTokens; key += kLanes) {
    for (int chunk = 0; chunk < row_words; chunk += kLanes) {
      // The last chunk may overlap the one before it rather than be short.
      const int word = chunk + kLanes <= row_words ? chunk : row_words - kLanes;
      Words lanes[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        lanes[i] = key + i < written ? LoadWords(rows + size_t(key + i) * row_words + word) : Words{};
      }
      Transpose(lanes);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if constexpr (kPairs) {
          Store(keys + size_t(2 * (word + i)) * kPageTokens + key, AsFloats(lanes[i] << 16));
          Store(keys + size_t(2 * (word + i) + 1) * kPageTokens + key, AsFloats(lanes[i] & 0xffff0000u));
        } else {
          Store(keys + size_t(word + i) * kPageTokens + key, AsFloats(lanes[i]));
        }
      }
    }
  }
}

// The first `written` keys of a page -> keys [head_dim][64]; the others become 0 unread. `scratch` holds
// 64 x head_dim floats.
void TransposeKeys(DType dtype, const std::byte* page, int written, int head_dim, float* scratch,
                   float* keys) {
  if (dtype == DType::kBF16 && head_dim >= 2 * kLanes) {
    TransposeWords<true>(reinterpret_cast<const uint32_t*>(page), head_dim / 2, written, keys);
    return;
  }
  const float* rows = reinterpret_cast<const float*>(page);
  if (dtype != DType::kF32) {
    WidenRow(dtype, page, scratch, written * head_dim);
    rows = scratch;
  }
  if (head_dim >= kLanes) {
    TransposeWords<false>(reinterpret_cast<const uint32_t*>(rows), head_dim, written, keys);
    return;
  }
  for (int c = 0; c < head_dim; ++c) {
    for (int key = 0; key < kPageTokens; ++key) {
      keys[c * kPageTokens + key] = key < written ? rows[key * head_dim + c] : 0.0f;
    }
  }
}

// The first `written` values of a page as rows of PaddedHeadDim floats: the page itself or `scratch`.
const float* WidenValues(DType dtype, const std::byte* page, int written, int head_dim, float* scratch) {
  const int padded = PaddedHeadDim(head_dim);
  if (padded == head_dim) {
    if (dtype == DType::kF32) return reinterpret_cast<const float*>(page);
    WidenRow(dtype, page, scratch, written * head_dim);
    return scratch;
  }
  const size_t row_bytes = PageHalfBytes(dtype, head_dim) / kPageTokens;
  for (int key = 0; key < written; ++key) {
    float* row = scratch + size_t(key) * padded;
    WidenRow(dtype, page + key * row_bytes, row, head_dim);
    for (int c = head_dim; c < padded; ++c) row[c] = 0.0f;
  }
  return scratch;
}

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
