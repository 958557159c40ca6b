// Device code that both of selection's algorithms share: what a row sees and may choose from, and
// the choice itself, made by a team of warps from keys in shared memory: ordered integers of the
// blocks' scores. The rules are ops/select_blocks.h's.
#pragma once

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"
#include "kernels/ops/select_blocks.h"

namespace augur::kernels {

inline constexpr int kSelectMaxHeads = 16;
// Of a row, at most: 1M tokens. What a call takes for SelectBlocksParams::max_blocks where that
// says more.
inline constexpr int kSelectMaxBlocks = 16384;

struct SelectRow {
  int position;
  int blocks;
  int begin, end;                  // candidates, neither the first nor the last blocks
  int first_visible, end_visible;  // places
};

__device__ inline SelectRow SelectRowAt(const SelectBlocksParams& params,
                                        const SelectSegment& segment, int token) {
  SelectRow row;
  row.position = segment.rows.first_position + token;
  row.blocks = row.position / kBlockTokens + 1;
  row.begin = segment.budget.init;
  row.end = row.blocks - segment.budget.local;
  const bool is_windows = params.keys_per_block == kBlockWindows;
  row.first_visible = is_windows ? 1 : 0;
  row.end_visible = is_windows ? CompleteWindows(row.position) + 1 : row.position;
  return row;
}

// Places to score: a softmax is over all visible keys; products are pooled only, the last
// candidate's with the first window of the next block.
__device__ inline int EndScoredPlace(const SelectBlocksParams& params, const SelectRow& row) {
  if (params.rule == ScoreRule::kSoftmaxSum) return row.end_visible;
  const int end = row.end * params.keys_per_block;
  return params.keys_per_block == kBlockWindows ? end + 1 : end;
}

__device__ inline const std::byte* const* KeyPagesOf(const SelectBlocksParams& params,
                                                     const SelectSegment& segment, int kv_head) {
  return segment.key_pages + params.key_pages_offset + int64_t{kv_head} * segment.key_page_stride;
}

// Rises with the score; of no candidate's block 0, which is below every score's. NaN is minus
// infinity.
__device__ inline uint32_t ScoreKey(float score) {
  if (isnan(score)) score = -INFINITY;
  const uint32_t bits = __float_as_uint(score + 0.0f);  // -0 becomes 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

// A team of kWarps warps: the whole CTA, or each warp of it by itself.
template <int kWarps>
struct TeamScratch {
  uint2 sums[2][kWarps];
};

template <int kWarps>
__device__ inline int TeamThread() {
  return kWarps == 1 ? threadIdx.x % 32 : threadIdx.x;
}

template <int kWarps>
__device__ inline void TeamSync() {
  if constexpr (kWarps == 1) {
    __syncwarp();
  } else {
    __syncthreads();
  }
}

// Folds one value of each warp by `fold`, in the same order everywhere. Calls take `turn` 0 and 1
// alternately, so that one barrier each is enough.
template <int kWarps, class Fold>
__device__ inline uint2 FoldTeam(uint2 value, int turn, TeamScratch<kWarps>& scratch, Fold fold) {
  if constexpr (kWarps == 1) return value;
  if (threadIdx.x % 32 == 0) scratch.sums[turn][threadIdx.x / 32] = value;
  __syncthreads();
  uint2 result = scratch.sums[turn][0];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) result = fold(result, scratch.sums[turn][w]);
  return result;
}

// Which keys are chosen: those above `key`, and the first `ties` of those equal to it.
struct KeyCut {
  uint32_t key;
  int ties;
};

// The least and the greatest key of all candidates.
template <int kWarps>
__device__ uint2 KeyRange(const uint32_t* keys, int n, TeamScratch<kWarps>& scratch) {
  uint32_t least = ~0u, most = 0;
  for (int i = TeamThread<kWarps>() * 4; i < n; i += kWarps * 128) {
    const uint4 k = *reinterpret_cast<const uint4*>(keys + i);
    most = max(max(max(k.x, k.y), max(k.z, k.w)), most);
    // 0, which is no candidate's, becomes the largest number.
    least = min(min(min(k.x - 1, k.y - 1), min(k.z - 1, k.w - 1)), least);
  }
  const uint2 range =
      FoldTeam<kWarps>(uint2{__reduce_min_sync(~0u, least), __reduce_max_sync(~0u, most)}, 0,
                       scratch, [](uint2 a, uint2 b) {
                         return uint2{min(a.x, b.x), max(a.y, b.y)};
                       });
  return {range.x + 1, range.y};
}

// How many keys are at or above low + step, low + 2 step, low + 3 step.
template <int kWarps>
__device__ uint3 CountAbove(const uint32_t* keys, int n, uint32_t low, uint32_t step, int turn,
                            TeamScratch<kWarps>& scratch) {
  static_assert(kSelectMaxBlocks < 1 << 16);
  uint32_t one = 0, two = 0, three = 0;
  for (int i = TeamThread<kWarps>() * 4; i < n; i += kWarps * 128) {
    const uint4 four = *reinterpret_cast<const uint4*>(keys + i);
    const uint32_t k[] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      one += k[j] >= low + step ? 1 : 0;
      two += k[j] >= low + 2 * step ? 1 : 0;
      three += k[j] >= low + 3 * step ? 1 : 0;
    }
  }
  const uint2 counts = FoldTeam<kWarps>(
      uint2{__reduce_add_sync(~0u, one | two << 16), __reduce_add_sync(~0u, three)}, turn, scratch,
      [](uint2 a, uint2 b) {
        return uint2{a.x + b.x, a.y + b.y};
      });
  return {counts.x & 0xffff, counts.x >> 16, counts.y};
}

// The cut that leaves `wanted` keys, at least one; there are more candidates. A round finds two
// bits of it, from the highest in which candidates differ, until just as many keys lie above.
template <int kWarps>
__device__ KeyCut FindKeyCut(const uint32_t* keys, int n, int wanted,
                             TeamScratch<kWarps>& scratch) {
  const uint2 range = KeyRange<kWarps>(keys, n, scratch);
  if (range.x == range.y) return {range.y, wanted};
  int shift = (31 - __clz(static_cast<int>(range.x ^ range.y))) & ~1;
  // The cut is in [low, low + (4 << shift)); `above`: keys behind that.
  uint32_t low = range.y & static_cast<uint32_t>(~((uint64_t{4} << shift) - 1));
  uint32_t above = 0;
  for (int round = 1;; ++round, shift -= 2) {
    const uint32_t step = 1u << shift, enough = wanted;
    const uint3 counts = CountAbove<kWarps>(keys, n, low, step, round % 2, scratch);
    uint32_t here = 0;
    if (counts.z >= enough) {
      here = counts.z;
      low += 3 * step;
    } else if (counts.y >= enough) {
      here = counts.y;
      above = counts.z;
      low += 2 * step;
    } else if (counts.x >= enough) {
      here = counts.x;
      above = counts.y;
      low += step;
    } else {
      above = counts.x;
    }
    if (here == enough) return {low, INT32_MAX};
    if (shift == 0) return {low, static_cast<int>(enough - above)};
  }
}

// Writes the chosen blocks, ascending.
template <int kWarps>
__device__ void WriteChosen(const uint32_t* keys, int n, const KeyCut& cut, int32_t* blocks,
                            TeamScratch<kWarps>& scratch) {
  const int lane = threadIdx.x % 32, warp = TeamThread<kWarps>() / 32;
  const int span = n / kWarps, first = warp * span;
  int above = 0, equal = 0;  // before this group of 32
  if constexpr (kWarps > 1) {
    __syncthreads();  // the scratch of the last count
    uint32_t larger = 0, same = 0;
    for (int i = first + lane; i < first + span; i += 32) {
      larger += keys[i] > cut.key ? 1 : 0;
      same += keys[i] == cut.key ? 1 : 0;
    }
    larger = __reduce_add_sync(~0u, larger);
    same = __reduce_add_sync(~0u, same);
    if (lane == 0) scratch.sums[0][warp] = {larger, same};
    __syncthreads();
    for (int w = 0; w < warp; ++w) {
      above += static_cast<int>(scratch.sums[0][w].x);
      equal += static_cast<int>(scratch.sums[0][w].y);
    }
  }
  const uint32_t lanes_before = (1u << lane) - 1;
  for (int i = first; i < first + span; i += 32) {
    const uint32_t key = keys[i + lane];
    const uint32_t larger = __ballot_sync(~0u, key > cut.key);
    const uint32_t same = __ballot_sync(~0u, key == cut.key);
    if ((larger | same) == 0) continue;
    const int same_before = equal + __popc(same & lanes_before);
    if (key > cut.key || (key == cut.key && same_before < cut.ties)) {
      blocks[above + __popc(larger & lanes_before) + min(same_before, cut.ties)] = i + lane;
    }
    above += __popc(larger);
    equal += __popc(same);
  }
}

template <int kWarps>
__device__ void TakeBest(const uint32_t* keys, int n, int wanted, int32_t* blocks,
                         TeamScratch<kWarps>& scratch) {
  if (wanted == 0) return;
  WriteChosen<kWarps>(keys, n, FindKeyCut<kWarps>(keys, n, wanted, scratch), blocks, scratch);
}

// Keys of the pooled biases of the candidates, those that the query chose above all.
template <int kWarps>
__device__ void RankByBias(const float* const* pages, const SelectRow& row, const int32_t* chosen,
                           int num_chosen, uint32_t* keys) {
  constexpr int kPageWindows = kKeyPageBlocks * kBlockWindows;
  TeamSync<kWarps>();
  for (int b = row.begin + TeamThread<kWarps>(); b < row.end; b += kWarps * 32) {
    float largest = -INFINITY;
    for (int place = max(1, b * kBlockWindows); place <= (b + 1) * kBlockWindows; ++place) {
      largest = fmaxf(pages[place / kPageWindows][place % kPageWindows], largest);
    }
    keys[b] = ScoreKey(fminf(largest, FLT_MAX));
  }
  TeamSync<kWarps>();
  for (int i = TeamThread<kWarps>(); i < num_chosen; i += kWarps * 32) keys[chosen[i]] = ~0u;
  TeamSync<kWarps>();
}

// A row that takes all its blocks.
template <int kWarps>
__device__ void SelectAll(const SelectBlocksParams& params, const SelectRow& row, int64_t list) {
  int32_t* blocks = params.blocks + list * params.selection_stride;
  if (TeamThread<kWarps>() == 0) params.counts[list] = row.blocks;
  for (int b = TeamThread<kWarps>(); b < row.blocks; b += kWarps * 32) blocks[b] = b;
}

// Any other. keys [n]: of candidates, 0 elsewhere, in shared memory, written by the team and seen
// by all of it; used up. n is a multiple of 128 for each warp of the team.
template <int kWarps>
__device__ void SelectByKeys(const SelectBlocksParams& params, const SelectSegment& segment,
                             const SelectRow& row, int kv_head, int64_t list, uint32_t* keys, int n,
                             TeamScratch<kWarps>& scratch) {
  const SelectionBudget budget = segment.budget;
  int32_t* blocks = params.blocks + list * params.selection_stride;
  if (TeamThread<kWarps>() == 0) params.counts[list] = budget.top_k;
  for (int i = TeamThread<kWarps>(); i < budget.init; i += kWarps * 32) blocks[i] = i;
  for (int i = TeamThread<kWarps>(); i < budget.local; i += kWarps * 32) {
    blocks[budget.top_k - budget.local + i] = row.end + i;
  }
  int32_t* chosen = blocks + budget.init;
  const int free = budget.top_k - budget.init - budget.local;
  if (segment.eviction_pages != nullptr) {
    const int by_query = segment.query_top_k - budget.init - budget.local;
    TakeBest<kWarps>(keys, n, by_query, chosen, scratch);
    const float* const* pages = segment.eviction_pages + params.key_pages_offset +
                                int64_t{kv_head} * segment.key_page_stride;
    RankByBias<kWarps>(pages, row, chosen, by_query, keys);
  }
  TakeBest<kWarps>(keys, n, free, chosen, scratch);
}

}  // namespace augur::kernels
