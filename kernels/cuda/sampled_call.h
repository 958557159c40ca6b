// One launch of sampled attention's kernels: some segments of a call, and what the kernels leave
// for each other in scratch. Device code of sampled_*.cu.
//
// A list is a (segment, kv head), list segment * num_kv_heads + kv_head; a row of scratch one of
// its query heads, list * group + head.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
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

// Keys are streamed in runs of a list's entries, by its length alone, too. With five entries at
// least, 24 sequences of 96 chosen blocks for each of two kv heads are as many runs as an H200 has
// warps for at once (a step of 10.0 ms, with four 10.3). 128 of a list keep all warps busy until
// the end (256 of 2,048 entries were slower: 104 us for 90), and beyond 16 entries they would save
// nothing more.
inline constexpr int kMaxRunsOfList = 256;

__host__ __device__ constexpr int EntriesOfRun(int entries) {
  int run = (entries + 127) / 128;
  if (run < 5) run = 5;
  if (run > 16) run = 16;
  const int fewest = (entries + kMaxRunsOfList - 1) / kMaxRunsOfList;
  return run < fewest ? fewest : run;
}
__host__ __device__ constexpr int RunsOfList(int entries) {
  return (entries + EntriesOfRun(entries) - 1) / EntriesOfRun(entries);
}
// Of any list of up to max_entries.
constexpr int MostRuns(int max_entries) {
  if (max_entries <= 128 * 5) return (max_entries + 4) / 5;
  if (max_entries <= 128 * 16) return 128;
  const int runs = (max_entries - 1) / 16 + 1;
  return runs < kMaxRunsOfList ? runs : kMaxRunsOfList;
}
static_assert(RunsOfList(0) == 0 && RunsOfList(6) == 2 && RunsOfList(513) == 103);
static_assert(EntriesOfRun(2048) == 16 && EntriesOfRun(1 << 20) == 4096);

// Lists of one launch.
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

  __device__ void Add(const RateSums& other) {
    unbounded += other.unbounded;
    bounded += other.bounded;
    certain += other.certain;
  }
};

// What kShared in one pass knows of a head over a run.
struct RunNorm {
  float top;        // the largest score; NaN where one is
  float sum;        // of 2^(scores - top)
  float reference;  // what the sums of V are multiples of the power of; -inf: zeros, not written
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
  int most_runs = 0;  // MostRuns(stride)
  // kShared in one pass. Query heads as the left side of products, [lists][head_dim / 16][32
  // lanes].
  uint4* queries = nullptr;
  float* anchors = nullptr;      // [rows] base-2 logarithms of the sums of 2^scores over the anchor
  RunNorm* run_norms = nullptr;  // [lists][most_chunks][group], most_chunks being most_runs
  int* runs_taken = nullptr;     // [1] beyond the warps' first ones; 0 before and after a call

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
  // Its query heads, [group][head_dim].
  __device__ const float* HeadsOf(int list) const {
    return attention.q + size_t(SegmentOf(list).row) * attention.q_stride +
           size_t(KvHeadOf(list)) * group() * attention.head_dim;
  }
  __device__ uint4* QueriesOf(int list, int step, int lane) const {
    return queries + (size_t(list) * (attention.head_dim / 16) + step) * 32 + lane;
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
  // Of an entry, 64; null: it has none.
  __device__ const float* BiasesOf(const SampledSegment& segment, int list, int entry) const {
    if (segment.biases == nullptr) return nullptr;
    return segment.biases[attention.biases_offset + PlaceOf(segment, list, entry)];
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
  __device__ float LambdaOf(int list) const {
    const float* state = StateOf(list);
    return state[0] == 0.0f ? static_cast<float>(SamplesOf(SegmentOf(list))) : state[1];
  }
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

// Element `index` of out.
__device__ inline void StoreOut(const SampledAttentionParams& params, size_t index, float value) {
  switch (params.out_dtype) {
    case DType::kF32:
      static_cast<float*>(params.out)[index] = value;
      return;
    case DType::kBF16:
      static_cast<__nv_bfloat16*>(params.out)[index] = __float2bfloat16_rn(value);
      return;
    case DType::kF16:
      static_cast<__half*>(params.out)[index] = __float2half_rn(value);
      return;
  }
}

// To one segment's counts, or to all of them; `to` may be null.
__device__ inline void AddCounts(const int64_t (&drawn)[3], SampledCounts* to) {
  if (to == nullptr) return;
  const auto add = [](int64_t* at, int64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(at), static_cast<unsigned long long>(value));
  };
  add(&to->draws, drawn[0]);
  add(&to->rows, drawn[1]);
  add(&to->distinct, drawn[2]);
}

// Whether a call's keys go by bulk copies to tensor cores: by its shape alone, so that a row's bits
// do not depend on its company. Scores that the caller keeps may be given instead of keys.
inline bool StreamsKeys(const SampledAttentionParams& params) {
  return params.scores == nullptr && params.dtype != DType::kF32 &&
         (params.head_dim == 64 || params.head_dim == 128);
}

// Their launches: sampled_shared.cu and sampled_shared_merge.cu serve kShared where keys are
// streamed, all else
// sampled_scores.cu, sampled_draws.cu, sampled_gather.cu and sampled_gather_shared.cu.
void PrepareSharedStream();
void LaunchSharedStream(const SampledCall& call, int num_sms, cudaStream_t stream);
void LaunchSharedMerge(const SampledCall& call, cudaStream_t stream);
void PrepareSampledScores();
void LaunchSampledScores(const SampledCall& call, int num_sms, cudaStream_t stream);
void LaunchSampledDraws(const SampledCall& call, cudaStream_t stream);
void LaunchSharedGather(const SampledCall& call, cudaStream_t stream);
void LaunchSampledGather(const SampledCall& call, cudaStream_t stream);

}  // namespace augur::kernels
