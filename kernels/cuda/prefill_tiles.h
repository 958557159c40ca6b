// How prefill attention cuts its rows into tiles and lays them out in shared memory: index
// functions without state, on the host and on the device.
//
// A segment's rows and the query heads of one kv head are packed into one list: packed row i is
// token i / group, head i % group of the group, so that K and V are read once for all heads. A tile
// is a run of packed rows of one segment.
#pragma once

#include <cstdint>

#include "kernels/kv_page.h"

#ifdef __CUDACC__
#define AUGUR_HOST_DEVICE __host__ __device__
#else
#define AUGUR_HOST_DEVICE
#endif

namespace augur::kernels {

AUGUR_HOST_DEVICE constexpr int PrefillTilesOf(int num_rows, int group, int tile_rows) {
  return (num_rows * group + tile_rows - 1) / tile_rows;
}

// Tiles of all segments, at most: each segment but for its last tile fills whole ones. What a
// launch can know, as the segments lie where the host cannot read them.
AUGUR_HOST_DEVICE constexpr int MaxPrefillTiles(int rows, int group, int num_segments,
                                                int tile_rows) {
  return PrefillTilesOf(rows, group, tile_rows) + num_segments;
}

// Positions of a run of packed rows [begin, end) of a segment, and what follows from them. Empty
// runs (end <= begin) have no pages.
struct PrefillSpan {
  int begin = 0;
  int end = 0;
  int first_position = 0;  // of the segment
  int group = 1;

  AUGUR_HOST_DEVICE constexpr int PositionOf(int packed_row) const {
    return first_position + packed_row / group;
  }
  // Pages that the last row reaches.
  AUGUR_HOST_DEVICE constexpr int NumPages() const {
    return end <= begin ? 0 : PositionOf(end - 1) / kBlockTokens + 1;
  }
  // Pages before this one are seen in whole by every row.
  AUGUR_HOST_DEVICE constexpr int FirstMaskedPage() const {
    return (PositionOf(begin) + 1) / kBlockTokens;
  }
};

// Shared memory as ldmatrix reads it: rows of head_dim 2-byte elements without padding, in chunks
// of 16 bytes, the chunks of a row permuted such that the same chunk of 8 consecutive rows (aligned
// to 8) lies in 8 different sixteenths of 128 bytes: all 32 banks, once each. Rows must alternate
// between the halves of 128 bytes by themselves, as 192 bytes (head_dim 96) do, so that it is
// enough when 4 chunks change places with each other.
template <int kHeadDim>
struct SwizzledRows {
  static_assert(kHeadDim % 64 == 32);
  static constexpr int kChunks = kHeadDim / 8;  // of a row
  static constexpr int kRowBytes = kHeadDim * 2;

  // Byte offset of a chunk.
  AUGUR_HOST_DEVICE static constexpr int OffsetOf(int row, int chunk) {
    return (row * kChunks + (chunk ^ row / 2 % 4)) * 16;
  }
  // From the address of chunk 0 or 1 of a row to the one `chunks` (even) further; rows 8 apart lie
  // 8 * kRowBytes apart. The first row must be aligned to 128 bytes.
  AUGUR_HOST_DEVICE static constexpr uint32_t Advance(uint32_t address, int chunks) {
    return (address ^ (chunks % 4 * 16)) + chunks / 4 * 4 * 16;
  }
};

// Warpgroup products take pages in pairs, from block 0 on: a softmax's update is one a pair.
inline constexpr int kPairTokens = 2 * kBlockTokens;

// Shared memory as warpgroup products read it, swizzled over 128 bytes: K or V of a pair (128 rows)
// or of one page (64) in columns of 64 elements (128 bytes a row), one column behind the other.
// Columns must be aligned to 1024 bytes.
template <int kRows>
inline constexpr int kSwizzledColumnBytes = kRows * 128;

// Byte offset of a chunk of 16 bytes.
template <int kRows>
AUGUR_HOST_DEVICE constexpr int SwizzledColumnOffset(int row, int chunk) {
  return chunk / 8 * kSwizzledColumnBytes<kRows> + row * 128 + (chunk % 8 ^ row % 8) * 16;
}

// Rows that choose their own blocks come in tiles of whole tokens, half of them for each of two
// warpgroups of 64 rows: this many tokens a warpgroup, so that a tile's tokens are bits of a word.
AUGUR_HOST_DEVICE constexpr int ChoosingTokens(int group) { return group < 4 ? 16 : 64 / group; }

}  // namespace augur::kernels
