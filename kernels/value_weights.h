// The integers behind sampled attention: what the CPU's and the GPU's kernels must compute alike so
// that an estimator stays unbiased and its draws do not depend on who computes which tile.
//
// A tile is a block of 64 tokens. Its weights are whole numbers, 2^30 for its largest score:
//
//   w_n = round(2^30 2^(s_n - m))     s: scores in powers of two, m: the tile's largest
//   L   = sum of w_n                  below 2^37; any order of adding
//   M   = 2^10 L 2^(m - m*)           the tile's mass beside tiles of largest score m*; below 2^47
//
// Everything that is drawn is an expected count in units of 2^-32 ("Q32") and a boundary between
// two rows: the count of the row between boundaries a and b at offset u is
// floor(u + b) - floor(u + a), whose mean over a uniform u is b - a exactly. Source: systematic
// sampling in count form, SANTA (arXiv 2605.01910) section 2.
//
// Thread: pure. Failure: none.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"

namespace augur::kernels {

inline constexpr float kTileWeightScale = 1073741824.0f;  // 2^30
inline constexpr double kTileMassScale = 1024.0;          // 2^10
inline constexpr double kQ32 = 4294967296.0;
inline constexpr uint64_t kQ32One = uint64_t{1} << 32;

// 2^x for x <= 1 and down to -126, 0 below: the polynomial of cpu/isa/vector.h, bit for bit.
// Without branches, so that a GPU's threads compute several at a time.
AUGUR_HOST_DEVICE inline float Exp2Weight(float x) {
  const float magic = 12582912.0f;
  const float within = x >= -126.0f ? x : -126.0f;
  const float shifted = within + magic;
  const float fraction = within - (shifted - magic);
  float power = fmaf(1.535336188319500e-4f, fraction, 1.339887440266574e-3f);
  power = fmaf(power, fraction, 9.618437357674640e-3f);
  power = fmaf(power, fraction, 5.550332471162809e-2f);
  power = fmaf(power, fraction, 2.402264791363012e-1f);
  power = fmaf(power, fraction, 6.931472028550421e-1f);
  power = fmaf(power, fraction, 1.0f);
  union {
    float value;
    uint32_t bits;
  } scaled = {power}, whole = {shifted};
  scaled.bits += whole.bits << 23;
  const float below = x < -126.0f ? 0.0f : x;  // or NaN
  return x >= -126.0f ? scaled.value : below;
}

// w of a score that lies `below` (<= 0) under its tile's largest.
AUGUR_HOST_DEVICE inline uint32_t TileWeight(float below) {
  return static_cast<uint32_t>(fmaf(Exp2Weight(below), kTileWeightScale, 0.5f));
}

// M of a tile of weight sum L whose largest score is `below` (<= 0) over the list's.
AUGUR_HOST_DEVICE inline uint64_t TileMass(uint64_t sum, float below) {
  return static_cast<uint64_t>(static_cast<double>(sum) * static_cast<double>(Exp2Weight(below)) *
                               kTileMassScale);
}

// The boundary behind `part` of `whole` where the whole is expected `expected` (Q32, below 2^52)
// times. Rises with `part`; the whole's is `expected` itself.
AUGUR_HOST_DEVICE inline uint64_t Boundary(uint64_t part, uint64_t whole, uint64_t expected) {
  return static_cast<uint64_t>(static_cast<double>(part) / static_cast<double>(whole) *
                               static_cast<double>(expected));
}

// How often the row between two boundaries is drawn at an offset of [0, 2^32).
AUGUR_HOST_DEVICE inline uint32_t SystematicCount(uint32_t offset, uint64_t begin, uint64_t end) {
  return static_cast<uint32_t>(((offset + end) >> 32) - ((offset + begin) >> 32));
}

}  // namespace augur::kernels
