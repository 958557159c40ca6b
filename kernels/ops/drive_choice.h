#pragma once
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/kv_page.h"
#include "kernels/ops/select_blocks.h"

namespace augur::kernels {

// How far back tokens reach for blocks that the token before did not choose. A block's place in the
// stack: how many others were chosen more recently, of those that may be chosen; the blocks of the
// token before come first. Measured by `augur-bench reuse`.
struct StackLaw {
  static constexpr int kBins = 32;
  static constexpr int kBinsPerChoice = 4;
  // [i]: share, in 65,536, of places below (1 + (i + 1) / kBinsPerChoice) times as many as are
  // chosen. The rest lies deeper, anywhere.
  uint32_t ends[kBins] = {};
};

// What a bench lets tokens choose.
struct DrivenChoice {
  float reuse = -1.0f;  // below 0: what scores choose
  bool by_law = false;  // generated tokens alone; else all candidates alike
  StackLaw law = {};
};

// For benches: puts a drawn choice in the place of the one that scores have made, so that how much
// a token shares with the one before it can be set. Forced blocks stay; each of the other
// top_k - init - local places keeps its block from one position to the next with probability
// `reuse`, and else takes a new one: all candidates alike, or by a law of stack distances. A place
// whose block another has already takes the next free one. Where top_k reaches the number of blocks
// all are chosen.
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
  // By `law`, where there are stacks; then max_rows is 1. They outlive the call, each list's own:
  // [num_segments][num_kv_heads][2][stack_stride], one half for the token at an even position and
  // one for odd ones: position, number of blocks, then blocks, kStackHead + those there are at
  // most. What does not hold the position before (zeros, another sequence) begins anew.
  int32_t* stacks = nullptr;
  int stack_stride = 0;
  StackLaw law = {};
};

inline constexpr int kStackHead = 2;
inline constexpr int kMaxDrivenBlocks = 8192;  // of a sequence

// A finaliser of 64-bit words (splitmix64's).
AUGUR_HOST_DEVICE inline uint64_t MixBits(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// `place` names layer, list and place; `what` one of four draws at a position.
AUGUR_HOST_DEVICE inline uint64_t DrivenDraw(uint64_t place, int position, int what) {
  return MixBits(place * 0x9e3779b97f4a7c15ull + uint64_t(position) * 4 + what);
}

AUGUR_HOST_DEVICE inline uint64_t DrivenPlace(int layer, int item, int place) {
  return (uint64_t(layer) << 40) + (uint64_t(item) << 16) + place;
}

// The block of a place at `position`, before places that share one are told apart: drawn from the
// candidates that there were when it came, so that a new block of history takes nobody's place.
AUGUR_HOST_DEVICE inline int DrivenBlock(uint64_t place, int position, float reuse,
                                         const SelectionBudget& budget) {
  constexpr int kLongest = 256;  // steps that a block is kept, at most
  const uint32_t kept = static_cast<uint32_t>(reuse * 65536.0f);
  int since = position;
  while (since > 0 && position - since < kLongest && (DrivenDraw(place, since, 0) & 0xffff) < kept)
    --since;
  const int candidates = since / kBlockTokens + 1 - budget.init - budget.local;
  return budget.init + static_cast<int>(DrivenDraw(place, since, 1) %
                                        static_cast<uint32_t>(candidates > 0 ? candidates : 1));
}

// Whether the block at place `place` of the stack stays chosen.
AUGUR_HOST_DEVICE inline bool StaysChosen(uint64_t place, int position, float reuse) {
  return (DrivenDraw(place, position, 2) & 0xffff) < static_cast<uint32_t>(reuse * 65536.0f);
}

// Where in a stack of `candidates` what takes its place comes from, of which the first `chosen`
// were chosen by the token before; fewer than there are. Beyond a stack's end: any of the others.
AUGUR_HOST_DEVICE inline int LawDepth(const StackLaw& law, uint64_t place, int position, int chosen,
                                      int candidates) {
  const uint64_t draw = DrivenDraw(place, position, 3);
  int bin = 0;
  while (bin < StackLaw::kBins && (draw & 0xffff) >= law.ends[bin]) ++bin;
  int first = chosen + chosen * bin / StackLaw::kBinsPerChoice;
  int end = chosen + chosen * (bin + 1) / StackLaw::kBinsPerChoice;
  if (bin == StackLaw::kBins || end > candidates) end = candidates;
  if (end <= first) {
    first = chosen;
    end = candidates;
  }
  return first + static_cast<int>((draw >> 16 & 0xffff) * uint64_t(end - first) >> 16);
}

// The block at `depth` of a stack that begins anew: a permutation of all `candidates` (the factor
// is a prime above kMaxDrivenBlocks).
AUGUR_HOST_DEVICE inline int FirstStackBlock(uint64_t list, int depth, int candidates, int init) {
  const uint64_t shift = MixBits(list) % uint32_t(candidates);
  return init + static_cast<int>((shift + uint64_t(depth) * 104729) % uint32_t(candidates));
}

}  // namespace augur::kernels
