// One launch of sampled attention's kernels: some segments of a call, and what the kernels leave
// for each other in scratch. Device code of sampled_*.cu.
//
// A list is a (segment, kv head), list segment * num_kv_heads + kv_head; a row of scratch one of
// its query heads, list * group + head.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/kv_page.h"
#include "kernels/ops/sampled_attention.h"

namespace augur::kernels {

// A list is drawn from in chunks of entries, by its length alone: sums of drawn rows are added up
// within a chunk first, then chunk after chunk.
inline constexpr int kMaxChunks = 64;
inline constexpr int kFewestChunkEntries = 4;

// Lists of one launch, whose lengths lie in shared memory.
inline constexpr int kMaxSampledLists = 2048;

__host__ __device__ constexpr int ChunkEntries(int entries) {
  const int wanted = (entries + kMaxChunks - 1) / kMaxChunks;
  return wanted < kFewestChunkEntries ? kFewestChunkEntries : wanted;
}
__host__ __device__ constexpr int NumChunks(int entries) {
  return (entries + ChunkEntries(entries) - 1) / ChunkEntries(entries);
}
// Of any list of up to max_entries.
constexpr int MostChunks(int max_entries) {
  const int fewest = (max_entries + kFewestChunkEntries - 1) / kFewestChunkEntries;
  return fewest < kMaxChunks ? fewest : kMaxChunks;
}

// A query head's softmax over its list, and how it draws.
struct HeadDraw {
  uint64_t whole;   // sum of the tiles' masses
  double weight;    // of one draw: 1 / S; kFlash: 1 / S_t
  uint32_t offset;  // kProportional's
  int samples;      // S; kFlash: S_t
  float top;        // the largest score
  bool is_nan;      // some score is: the group draws nothing
  // kShared: base-2 logarithms of the sums of 2^scores, over all entries and over the anchor's.
  float log_norm;
  float log_anchor;
};

// What was drawn of a chunk, for all heads of the list.
struct ChunkCounts {
  uint32_t draws;
  uint32_t rows;
  uint32_t distinct;
};

// What kShared's rates add up to, Q32.
struct RateSums {
  double unbounded;  // without their bound of 1
  uint64_t bounded;  // of those below 1
  uint32_t certain;  // how many are 1
};

struct SampledCall {
  SampledAttentionParams attention;
  int first_segment = 0;
  int num_segments = 0;
  int stride = 0;            // entries of a row of scratch, at most those of any list; even
  float exponent_scale = 0;  // turns q k into a power of two
  // In powers of two, [lists][entries][group][64]; where the caller keeps them,
  // [rows][entries][64].
  float* scores = nullptr;
  size_t list_scores = 0;  // floats from list to list, and so on
  size_t entry_scores = 0;
  size_t head_scores = 0;
  float* maxima = nullptr;   // [rows][stride] of each tile; NaN where a score is
  uint64_t* sums = nullptr;  // [rows][stride] L of each tile
  uint64_t* shares =
      nullptr;                // [rows][stride + 1] boundary before each tile, Q32; kFlash: its mass
  HeadDraw* heads = nullptr;  // [rows]
  float* chunk_sums = nullptr;          // [lists][most_chunks][group][head_dim]
  ChunkCounts* chunk_counts = nullptr;  // [lists][most_chunks]
  RateSums* chunk_rates = nullptr;      // [lists][most_chunks]; kShared
  int most_chunks = 0;

  __device__ int group() const { return attention.num_q_heads / attention.num_kv_heads; }
  __device__ int num_lists() const { return num_segments * attention.num_kv_heads; }
  __device__ int SegmentIndexOf(int list) const {
    return first_segment + list / attention.num_kv_heads;
  }
  __device__ const SampledSegment& SegmentOf(int list) const {
    return attention.segments[SegmentIndexOf(list)];
  }
  __device__ int KvHeadOf(int list) const { return list % attention.num_kv_heads; }
  __device__ size_t RowOf(int list, int head) const { return size_t(list) * group() + head; }
  __device__ float* ScoresOf(int list, int head, int entry) const {
    return scores + list * list_scores + entry * entry_scores + head * head_scores;
  }
  __device__ size_t ChunkOf(int list, int chunk) const {
    return size_t(list) * most_chunks + chunk;
  }
  // Of the lists of pages; the offsets of layers come on top.
  __device__ int64_t PlaceOf(const SampledSegment& segment, int list, int entry) const {
    return int64_t{KvHeadOf(list)} * segment.list_stride + entry;
  }

  // Entries that the call's lists hold; 0 for a segment that is left out.
  __device__ int ListedEntries(int list) const {
    const SampledSegment& segment = SegmentOf(list);
    if (segment.row < 0) return 0;
    const int entries = segment.counts != nullptr ? segment.counts[KvHeadOf(list)]
                                                  : segment.position / kBlockTokens + 1;
    // Longer than max_entries: no scratch.
    if (attention.first_entry + entries > stride || entries > segment.list_stride) __trap();
    return entries > 0 ? entries : 0;
  }
  // Entries whose keys are to be scored, or that are to be drawn from: all of them, but for lists
  // whose keys pass by in several calls.
  __device__ int ScoredEntries(int list) const {
    return SegmentOf(list).keys == nullptr ? 0 : ListedEntries(list);
  }
  __device__ int DrawnEntries(int list) const {
    if (attention.scores != nullptr && SegmentOf(list).values == nullptr) return 0;
    return ListedEntries(list);
  }
  // Keys that the row attends to, at most 64; none where that is not positive.
  __device__ int VisibleKeys(const SampledSegment& segment, int list, int entry) const {
    const int block = segment.blocks != nullptr ? segment.blocks[PlaceOf(segment, list, entry)]
                                                : attention.first_entry + entry;
    return min(kBlockTokens, segment.position - block * kBlockTokens + 1);
  }
  __device__ const std::byte* KeysOf(const SampledSegment& segment, int list, int entry) const {
    return segment.keys[attention.keys_offset + PlaceOf(segment, list, entry)];
  }
  __device__ const std::byte* ValuesOf(const SampledSegment& segment, int list, int entry,
                                       size_t half_bytes) const {
    const int64_t place = PlaceOf(segment, list, entry);
    if (segment.values != nullptr) return segment.values[attention.values_offset + place];
    return segment.keys[attention.keys_offset + place] + half_bytes;
  }
  // kShared's, [ValueStateFloats] of a list.
  __device__ const float* StateOf(int list) const {
    return SegmentOf(list).state + attention.state_offset +
           KvHeadOf(list) * ValueStateFloats(group());
  }
  __device__ float* NextStateOf(int list) const {
    const SampledSegment& segment = SegmentOf(list);
    float* next = segment.next_state != nullptr ? segment.next_state : segment.state;
    return next + attention.state_offset + KvHeadOf(list) * ValueStateFloats(group());
  }
  __device__ bool HasVariate(int list) const {
    return attention.estimator == ValueEstimator::kShared && SegmentOf(list).value_sums != nullptr;
  }
  __device__ int SamplesOf(const SampledSegment& segment) const {
    return segment.samples > 0 ? segment.samples : attention.samples;
  }
};

// Their launches; sampled_scores.cu, sampled_draws.cu, sampled_gather.cu.
void PrepareSampledScores();
void LaunchSampledScores(const SampledCall& call, int num_sms, cudaStream_t stream);
void LaunchSampledDraws(const SampledCall& call, cudaStream_t stream);
void LaunchSharedGather(const SampledCall& call, cudaStream_t stream);
void LaunchSampledGather(const SampledCall& call, cudaStream_t stream);

}  // namespace augur::kernels
