#pragma once
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/kv_page.h"
#include "kernels/ops/select_blocks.h"

namespace augur::kernels {

// For benches: puts a drawn choice in the place of the one that scores have made, so that how much
// a token shares with the one before it can be set. Forced blocks stay; each of the other
// top_k - init - local places keeps its block from one position to the next with probability
// `reuse`, and else takes a new one, all candidates alike. A place whose block another has already
// takes the next free one. Where top_k reaches the number of blocks all are chosen.
struct DriveChoiceParams {
  const SelectSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int max_rows = 1;  // of a segment, at most
  int num_kv_heads = 0;
  int32_t* blocks = nullptr;  // [rows][num_kv_heads][selection_stride], ascending
  int32_t* counts = nullptr;  // [rows][num_kv_heads]
  int selection_stride = 0;
  int layer = 0;
  float reuse = 0.0f;
};

inline constexpr int kMaxDrivenBlocks = 8192;  // of a sequence

// A finaliser of 64-bit words (splitmix64's).
AUGUR_HOST_DEVICE inline uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// The block of a place at `position`, before places that share one are told apart: drawn from the
// candidates that there were when it came, so that a new block of history takes nobody's place.
AUGUR_HOST_DEVICE inline int DrivenBlock(uint64_t place, int position, float reuse,
                                         const SelectionBudget& budget) {
  constexpr int kLongest = 256;  // steps that a block is kept, at most
  const auto mix = [place](int at, int what) {
    return MixBits(place * 0x9e3779b97f4a7c15ull + uint64_t(at) * 4 + what);
  };
  const uint32_t kept = static_cast<uint32_t>(reuse * 65536.0f);
  int since = position;
  while (since > 0 && position - since < kLongest && (mix(since, 0) & 0xffff) < kept) --since;
  const int candidates = since / kBlockTokens + 1 - budget.init - budget.local;
  return budget.init +
         static_cast<int>(mix(since, 1) % static_cast<uint32_t>(candidates > 0 ? candidates : 1));
}

}  // namespace augur::kernels
