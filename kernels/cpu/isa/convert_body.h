// KV pages and other half-precision data to float and back, and a page's keys to [head_dim][64].
#pragma once

#include <cstddef>
#include <cstdint>

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

// Elements of a page, told apart by type.
struct BF16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

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

AUGUR_INLINE Floats LoadWide(const float* from) { return Load(from); }
AUGUR_INLINE Floats LoadWide(const BF16* from) { return WidenBF16(&from->bits); }
AUGUR_INLINE Floats LoadWide(const F16* from) { return WidenF16(&from->bits); }

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

// A tail of fewer than kLanes elements goes through a whole vector, so that every element is
// converted by the same instructions.
template <DType kFrom>
AUGUR_INLINE void WidenHalves(const uint16_t* half, float* out, int count) {
  int i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Store(out + i, kFrom == DType::kBF16 ? WidenBF16(half + i) : WidenF16(half + i));
  }
  if (i == count) return;
  uint16_t tail[kLanes] = {};
  float wide[kLanes];
  memcpy(tail, half + i, sizeof(uint16_t) * (count - i));
  Store(wide, kFrom == DType::kBF16 ? WidenBF16(tail) : WidenF16(tail));
  memcpy(out + i, wide, sizeof(float) * (count - i));
}

void WidenRow(DType from, const void* source, float* out, int count) {
  const uint16_t* half = static_cast<const uint16_t*>(source);
  switch (from) {
    case DType::kF32:
      memcpy(out, source, sizeof(float) * count);
      return;
    case DType::kBF16:
      WidenHalves<DType::kBF16>(half, out, count);
      return;
    case DType::kF16:
      WidenHalves<DType::kF16>(half, out, count);
      return;
  }
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

// Two page halves that will be read after the one being transposed: asked for line by line
// meanwhile, or a decode step over a long context waits for memory in each block.
struct ReadAhead {
  const std::byte* first;
  const std::byte* second;
  int word_bytes = 4;  // there, for each word here: 2 when the words here are widened fp16
};

AUGUR_INLINE void Prefetch(const ReadAhead& ahead, size_t word) {
  __builtin_prefetch(ahead.first + word * ahead.word_bytes, 0, 2);
  __builtin_prefetch(ahead.second + word * ahead.word_bytes, 0, 2);
}

// Lanes of 32 bits, keys in rows [64][row_words] -> columns. With kPairs a lane is two bf16,
// elements 2w (low) and 2w + 1, which come apart by shift and mask after the transposition, half
// the shuffles of floats.
template <bool kPairs>
void TransposeWords(const uint32_t* rows, int row_words, int written, float* keys,
                    const ReadAhead& ahead) {
  for (int key = 0; key < kPageTokens; key += kLanes) {
    for (int chunk = 0; chunk < row_words; chunk += kLanes) {
      // The last chunk may overlap the one before it rather than be short.
      const int word = chunk + kLanes <= row_words ? chunk : row_words - kLanes;
      Words lanes[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        const size_t place = size_t(key + i) * row_words + word;
        lanes[i] = key + i < written ? LoadWords(rows + place) : Words{};
        Prefetch(ahead, place);
      }
      Transpose(lanes);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if constexpr (kPairs) {
          Store(keys + size_t(2 * (word + i)) * kPageTokens + key, AsFloats(lanes[i] << 16));
          Store(keys + size_t(2 * (word + i) + 1) * kPageTokens + key,
                AsFloats(lanes[i] & 0xffff0000u));
        } else {
          Store(keys + size_t(word + i) * kPageTokens + key, AsFloats(lanes[i]));
        }
      }
    }
  }
}

// The first `written` keys of a page -> keys [head_dim][64]; the others become 0 unread. `scratch`
// holds 64 x head_dim floats.
void TransposeKeys(DType dtype, const std::byte* page, int written, int head_dim, float* scratch,
                   float* keys, ReadAhead ahead) {
  if (dtype == DType::kBF16 && head_dim >= 2 * kLanes) {
    TransposeWords<true>(reinterpret_cast<const uint32_t*>(page), head_dim / 2, written, keys,
                         ahead);
    return;
  }
  const float* rows = reinterpret_cast<const float*>(page);
  if (dtype != DType::kF32) {
    WidenRow(dtype, page, scratch, written * head_dim);
    rows = scratch;
    ahead.word_bytes = 2;
  }
  if (head_dim >= kLanes) {
    TransposeWords<false>(reinterpret_cast<const uint32_t*>(rows), head_dim, written, keys, ahead);
    return;
  }
  for (int c = 0; c < head_dim; ++c) {
    for (int key = 0; key < kPageTokens; ++key) {
      keys[c * kPageTokens + key] = key < written ? rows[key * head_dim + c] : 0.0f;
    }
  }
}

// The first `written` values of a page -> rows of PaddedHeadDim floats.
void WidenValues(DType dtype, const std::byte* page, int written, int head_dim, float* out) {
  const int padded = PaddedHeadDim(head_dim);
  if (padded == head_dim) {
    WidenRow(dtype, page, out, written * head_dim);
    return;
  }
  const size_t row_bytes = PageHalfBytes(dtype, head_dim) / kPageTokens;
  for (int key = 0; key < written; ++key) {
    float* row = out + size_t(key) * padded;
    WidenRow(dtype, page + key * row_bytes, row, head_dim);
    for (int c = head_dim; c < padded; ++c) row[c] = 0.0f;
  }
}

}  // namespace
}  // namespace augur::kernels::AUGUR_ISA
