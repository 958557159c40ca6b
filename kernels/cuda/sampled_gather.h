// Which rows of a chunk of a list are drawn, by which of its query heads and with which
// coefficient, and the sums of these rows of V. Device code of sampled_gather.cu and
// sampled_gather_shared.cu.
//
// A CTA takes a chunk in batches of entries. Of a batch it lists the (entry, head) pairs that draw
// anything, walks their tiles (a warp a pair) and lists the rows that some head draws. Each is read
// once, into shared memory, where a warp adds the rows of one or two heads: in ascending order, so
// nothing is left to put together.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/fp8_row.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampled_call.h"
#include "kernels/cuda/sampled_state.h"
#include "kernels/philox.h"
#include "kernels/value_weights.h"

namespace augur::kernels::sampled_gather {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kCtasAnSm = 4;
inline constexpr int kMaxGroup = 16;
inline constexpr int kWarpHeads = 2;      // heads warp and warp + kWarps
inline constexpr int kBatchEntries = 32;  // a lane each
inline constexpr int kBatchPairs = 64;    // at least one entry's
inline constexpr int kPairsAhead = 4;     // tiles that a warp asks for at once
inline constexpr int kStageBytes = 16 << 10;
static_assert(kBatchPairs >= kMaxGroup && kMaxGroup <= kWarpHeads * kWarps);

// How a head draws from a tile.
struct Pair {
  uint64_t begin;     // boundary before the tile, Q32
  uint64_t expected;  // Q32
  uint64_t whole;     // sum of the tile's weights
  double rate;        // expected / whole
  double weight;      // of one draw
  uint32_t offset;
  float largest;   // score of the tile
  uint16_t entry;  // of the batch
  uint16_t head;
};

struct GatherMemory {
  float coefficients[kBatchPairs][kBlockTokens];
  alignas(16) std::byte stage[kStageBytes];  // rows of V, one behind the other
  Pair pairs[kBatchPairs];
  float masses[kBatchPairs];                    // kShared: sum of a pair's coefficients
  uint16_t rows[kBatchEntries * kBlockTokens];  // drawn ones: 64 entry + token
  const std::byte* values[kBatchEntries];
  uint32_t heads[kBatchEntries];      // bit h: head h draws from the entry
  int first_pair[kBatchEntries + 1];  // of the entry
  uint32_t tokens[kBatchEntries][2];  // drawn ones: bit l of word p is token 2 l + p
  int first_row[kBatchEntries + 1];
  HeadDraw draws[kMaxGroup];
  uint32_t counts[kWarps][2];  // draws, rows
  RateSums rates[kWarps];      // kShared
  float log_norms[kMaxGroup];  // kShared: predicted
  int num_entries;             // of the batch
};

// A CTA's.
struct Chunk {
  const SampledSegment* segment;
  int list;
  int begin;  // entries [begin, end)
  int end;
};

__device__ inline Chunk ChunkOfCta(const SampledCall& call) {
  const int list = blockIdx.y, entries = call.DrawnEntries(list);
  const int begin = blockIdx.x * ChunkEntries(entries);
  return {&call.SegmentOf(list), list, begin, min(entries, begin + ChunkEntries(entries))};
}

// Over the lanes up to this one.
template <class Number>
__device__ inline Number SumUpTo(Number own) {
  Number sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Number other = __shfl_up_sync(~0u, sum, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) sum += other;
  }
  return sum;
}

// kFlash's share of a tile and the offset of its block.
__device__ inline void ShareFlash(const SampledCall& call, const Chunk& chunk, int head, int entry,
                                  uint64_t mass, const HeadDraw& draw, Pair* pair) {
  const SampledSegment& segment = *chunk.segment;
  pair->begin = 0;
  pair->expected = uint64_t(draw.samples) << 32;
  pair->weight = static_cast<double>(mass) / static_cast<double>(draw.whole) / draw.samples;
  if (call.attention.forced_offset >= 0) return;
  const int block =
      segment.blocks != nullptr ? segment.blocks[call.PlaceOf(segment, chunk.list, entry)] : entry;
  const AttentionDrawKey key{
      segment.seed, segment.choice_index, static_cast<uint32_t>(segment.position),
      static_cast<uint32_t>(call.attention.layer),
      static_cast<uint32_t>(call.KvHeadOf(chunk.list) * call.group() + head)};
  pair->offset =
      PhiloxAttention(PhiloxPurpose::kValueOffset, key, 1 + static_cast<uint32_t>(block)).words[0];
}

// The pair of this lane's entry and `head`; false: the head draws nothing there.
__device__ inline bool FindPair(const SampledCall& call, const Chunk& chunk, int head, int entry,
                                const HeadDraw& draw, Pair* pair) {
  const size_t row = call.RowOf(chunk.list, head);
  const uint64_t* shares = call.shares + row * (call.stride + 1) + entry;
  const bool is_flash = call.attention.estimator == ValueEstimator::kFlash;
  const uint64_t begin = shares[0], end = is_flash ? 0 : shares[1];
  pair->largest = call.maxima[row * call.stride + entry];
  pair->whole = call.sums[row * call.stride + entry];
  pair->offset = draw.offset;
  pair->weight = draw.weight;
  if (is_flash) {
    if (begin == 0) return false;  // its mass
    ShareFlash(call, chunk, head, entry, begin, draw, pair);
  } else {
    if (SystematicCount(draw.offset, begin, end) == 0) return false;
    pair->begin = begin;
    pair->expected = end - begin;
  }
  pair->rate = static_cast<double>(pair->expected) / static_cast<double>(pair->whole);
  return true;
}

// Lists the pairs of as many entries from `first` on as there is room for.
template <class T>
__device__ inline void ListPairs(const SampledCall& call, const Chunk& chunk, int first,
                                 GatherMemory& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int entry = first + lane;
  const size_t half_bytes = size_t(kBlockTokens) * call.attention.head_dim * sizeof(T);
  Pair pairs[kWarpHeads];
  bool draws[kWarpHeads];
#pragma unroll
  for (int i = 0; i < kWarpHeads; ++i) {
    const int head = warp + i * kWarps;
    draws[i] = head < call.group() && entry < chunk.end &&
               FindPair(call, chunk, head, entry, shared.draws[head], &pairs[i]);
    pairs[i].entry = static_cast<uint16_t>(lane);
    pairs[i].head = static_cast<uint16_t>(head);
  }
  if (warp == 0) {
    shared.heads[lane] = shared.tokens[lane][0] = shared.tokens[lane][1] = 0;
    if (entry < chunk.end) {
      shared.values[lane] = call.ValuesOf(*chunk.segment, chunk.list, entry, half_bytes);
    }
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kWarpHeads; ++i) {
    if (draws[i]) atomicOr(&shared.heads[lane], 1u << pairs[i].head);
  }
  __syncthreads();
  if (warp == 0) {
    const int own = __popc(shared.heads[lane]);
    const int sum = SumUpTo(own);
    const unsigned fits = __ballot_sync(~0u, sum <= kBatchPairs && entry < chunk.end);
    const int taken = fits == ~0u ? 32 : __ffs(~fits) - 1;  // ascending sums: the first that fit
    shared.first_pair[lane] = sum - own;
    if (lane == 31) shared.first_pair[32] = sum;
    if (lane == 0) shared.num_entries = taken;
  }
  __syncthreads();
  if (lane >= shared.num_entries) return;
#pragma unroll
  for (int i = 0; i < kWarpHeads; ++i) {
    if (!draws[i]) continue;
    const unsigned before = shared.heads[lane] & ((1u << pairs[i].head) - 1);
    shared.pairs[shared.first_pair[lane] + __popc(before)] = pairs[i];
  }
}

// Draws up to and with the row behind which `part` of the tile's weight lies: the whole part of
// offset + begin + Boundary(part, whole, expected). One multiplication gives that to within 4;
// where a whole number is nearer, the division decides.
__device__ inline uint64_t DrawsUpTo(const Pair& pair, uint64_t part) {
  constexpr uint32_t kNear = 16;
  const uint64_t from = pair.offset + pair.begin;
  uint64_t at = from + static_cast<uint64_t>(static_cast<double>(part) * pair.rate);
  if (static_cast<uint32_t>(at) + kNear < 2 * kNear) {
    at = from + Boundary(part, pair.whole, pair.expected);
  }
  return at >> 32;
}

// Coefficients of the tile's rows, two a lane.
__device__ inline void WalkTile(int at, float2 scores, GatherMemory& shared,
                                uint32_t (&counts)[2]) {
  const Pair& pair = shared.pairs[at];
  const int lane = threadIdx.x % 32;
  const uint32_t first = TileWeight(scores.x - pair.largest);
  const uint32_t second = TileWeight(scores.y - pair.largest);
  const uint64_t sum = SumUpTo(uint64_t{first} + second);
  const uint64_t end = DrawsUpTo(pair, sum), middle = DrawsUpTo(pair, sum - second);
  uint64_t begin = __shfl_up_sync(~0u, end, 1);
  if (lane == 0) begin = (pair.offset + pair.begin) >> 32;
  const uint32_t count0 = static_cast<uint32_t>(middle - begin);
  const uint32_t count1 = static_cast<uint32_t>(end - middle);
  const float2 coefficients = make_float2(static_cast<float>(count0 * pair.weight),
                                          static_cast<float>(count1 * pair.weight));
  *reinterpret_cast<float2*>(&shared.coefficients[at][2 * lane]) = coefficients;
  const unsigned even = __ballot_sync(~0u, count0 > 0), odd = __ballot_sync(~0u, count1 > 0);
  counts[0] += count0 + count1;
  if (lane != 0) return;
  counts[1] += __popc(even) + __popc(odd);
  if (even != 0) atomicOr(&shared.tokens[pair.entry][0], even);
  if (odd != 0) atomicOr(&shared.tokens[pair.entry][1], odd);
}

__device__ inline void WalkTiles(const SampledCall& call, const Chunk& chunk, int first,
                                 GatherMemory& shared, uint32_t (&counts)[2]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int num_pairs = shared.first_pair[shared.num_entries];
  for (int base = warp; base < num_pairs; base += kWarps * kPairsAhead) {
    float2 scores[kPairsAhead];
#pragma unroll
    for (int i = 0; i < kPairsAhead; ++i) {
      const int at = base + i * kWarps;
      if (at >= num_pairs) break;
      const Pair& pair = shared.pairs[at];
      scores[i] = *reinterpret_cast<const float2*>(
          call.ScoresOf(chunk.list, pair.head, first + pair.entry) + 2 * lane);
    }
#pragma unroll
    for (int i = 0; i < kPairsAhead; ++i) {
      const int at = base + i * kWarps;
      if (at >= num_pairs) break;
      WalkTile(at, scores[i], shared, counts);
    }
  }
}

// The drawn rows in ascending order; gives how many.
__device__ inline int ListRows(const SampledCall& call, const Chunk& chunk, int first,
                               GatherMemory& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (warp == 0) {
    const int own = lane < shared.num_entries
                        ? __popc(shared.tokens[lane][0]) + __popc(shared.tokens[lane][1])
                        : 0;
    const int sum = SumUpTo(own);
    shared.first_row[lane] = sum - own;
    if (lane == 31) shared.first_row[32] = sum;
    if (chunk.segment->entry_rows != nullptr && lane < shared.num_entries) {
      chunk.segment->entry_rows[call.PlaceOf(*chunk.segment, chunk.list, first + lane)] = own;
    }
  }
  __syncthreads();
  for (int entry = warp; entry < shared.num_entries; entry += kWarps) {
    const uint32_t even = shared.tokens[entry][0], odd = shared.tokens[entry][1];
    const uint32_t below = (1u << lane) - 1;
    int at = shared.first_row[entry] + __popc(even & below) + __popc(odd & below);
    const int row = entry * kBlockTokens + 2 * lane;
    if (even >> lane & 1) shared.rows[at++] = static_cast<uint16_t>(row);
    if (odd >> lane & 1) shared.rows[at] = static_cast<uint16_t>(row + 1);
  }
  __syncthreads();
  return shared.first_row[32];
}

// Columns of a lane: kPerLane neighbours where rows are exactly so long, else every 32nd.
template <int kPerLane, bool kWhole>
__device__ inline int ColumnOf(int i) {
  const int lane = threadIdx.x % 32;
  return kWhole ? lane * kPerLane + i : lane + 32 * i;
}

// Element `column` of a row, where halves may be fp8 ones.
template <class T>
__device__ inline T ReadValue(const SampledAttentionParams& params, const std::byte* half,
                              int token, int column) {
  const int head_dim = params.head_dim;
  if (!params.fp8.holds(half)) return reinterpret_cast<const T*>(half)[token * head_dim + column];
  float value[1];
  LoadFp8(reinterpret_cast<const uint8_t*>(half), head_dim, token, column, value);
  return FromFloat<T>(value[0]);
}

// Rows [first, first + count) of those listed, as T, into shared memory.
template <class T, bool kWhole>
__device__ inline void StageRows(const SampledAttentionParams& params, int first, int count,
                                 GatherMemory& shared) {
  const int head_dim = params.head_dim;
  T* stage = reinterpret_cast<T*>(shared.stage);
  if (!kWhole || params.fp8.begin != params.fp8.end) {
    for (int i = threadIdx.x; i < count * head_dim; i += kThreads) {
      const int row = shared.rows[first + i / head_dim];
      stage[i] =
          ReadValue<T>(params, shared.values[row / kBlockTokens], row % kBlockTokens, i % head_dim);
    }
    return;
  }
  // 16 bytes at a time, several asked for before the first is stored.
  constexpr int kAhead = 4;
  const int row_pieces = head_dim * static_cast<int>(sizeof(T)) / 16;
  const int pieces = count * row_pieces;
  uint4* to = reinterpret_cast<uint4*>(shared.stage);
  for (int base = threadIdx.x; base < pieces; base += kThreads * kAhead) {
    uint4 words[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int at = min(base + i * kThreads, pieces - 1);
      const int row = shared.rows[first + at / row_pieces];
      const auto* half = reinterpret_cast<const uint4*>(shared.values[row / kBlockTokens]);
      words[i] = half[row % kBlockTokens * row_pieces + at % row_pieces];
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (base + i * kThreads < pieces) to[base + i * kThreads] = words[i];
    }
  }
}

// The lane's columns of a row.
template <class T, int kPerLane, bool kWhole>
__device__ inline void LoadColumns(const T* row, int head_dim, float (&values)[kPerLane]) {
  if constexpr (kWhole) {
    LoadFloats(row + threadIdx.x % 32 * kPerLane, values);
  } else {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int column = ColumnOf<kPerLane, kWhole>(i);
      values[i] = column < head_dim ? ToFloat(row[column]) : 0.0f;
    }
  }
}

// Adds the staged rows that the warp's heads draw.
template <class T, int kPerLane, bool kWhole>
__device__ inline void AddStagedRows(const SampledCall& call, int first, int count,
                                     const GatherMemory& shared,
                                     float (&sums)[kWarpHeads][kPerLane]) {
  const int lane = threadIdx.x % 32, head_dim = call.attention.head_dim;
  const T* stage = reinterpret_cast<const T*>(shared.stage);
#pragma unroll
  for (int h = 0; h < kWarpHeads; ++h) {
    const int head = threadIdx.x / 32 + h * kWarps;
    if (head >= call.group()) break;
    for (int base = 0; base < count; base += 32) {
      float coefficient = 0.0f;  // of row `base + lane`
      if (base + lane < count) {
        const int row = shared.rows[first + base + lane], entry = row / kBlockTokens;
        const uint32_t heads = shared.heads[entry];
        if (heads >> head & 1) {
          const int pair = shared.first_pair[entry] + __popc(heads & ((1u << head) - 1));
          coefficient = shared.coefficients[pair][row % kBlockTokens];
        }
      }
      unsigned drawn = __ballot_sync(~0u, coefficient != 0.0f);
      while (drawn != 0) {
        const int at = __ffs(drawn) - 1;
        drawn &= drawn - 1;
        const float weight = __shfl_sync(~0u, coefficient, at);
        const T* row = stage + (base + at) * head_dim;
        float values[kPerLane];
        LoadColumns<T, kPerLane, kWhole>(row, head_dim, values);
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) sums[h][i] = fmaf(values[i], weight, sums[h][i]);
      }
    }
  }
}

// What a CTA does, with draw(first) for each batch: that lists what is drawn of entries from
// `first` on, as many as it leaves in shared.num_entries, and ends with a barrier. It is not called
// where a score is NaN.
template <class T, int kPerLane, bool kWhole, class Draw>
__device__ inline void GatherChunk(const SampledCall& call, const Chunk& chunk,
                                   GatherMemory& shared, uint32_t (&counts)[2],
                                   float (&sums)[kWarpHeads][kPerLane], const Draw& draw) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const SampledAttentionParams& params = call.attention;
  const int group = call.group(), head_dim = params.head_dim, list = chunk.list;
  if (threadIdx.x < group) shared.draws[lane] = call.heads[call.RowOf(list, lane)];
  __syncthreads();
  bool is_nan = false;
  for (int head = 0; head < group; ++head) is_nan |= shared.draws[head].is_nan;
  uint32_t distinct = 0;
  for (int entry = chunk.begin + threadIdx.x; entry < chunk.end && is_nan; entry += kThreads) {
    int32_t* rows = chunk.segment->entry_rows;
    if (rows != nullptr) rows[call.PlaceOf(*chunk.segment, list, entry)] = 0;
  }
  const int stage_rows = kStageBytes / (head_dim * static_cast<int>(sizeof(T)));
  for (int first = chunk.begin; first < chunk.end && !is_nan;) {
    draw(first);
    const int num_rows = ListRows(call, chunk, first, shared);
    for (int staged = 0; staged < num_rows; staged += stage_rows) {
      const int count = min(stage_rows, num_rows - staged);
      StageRows<T, kWhole>(params, staged, count, shared);
      __syncthreads();
      AddStagedRows<T, kPerLane, kWhole>(call, staged, count, shared, sums);
      __syncthreads();
    }
    distinct += num_rows;
    first += shared.num_entries;
    __syncthreads();
  }
  counts[0] = __reduce_add_sync(~0u, counts[0]);
  if (lane == 0) shared.counts[warp][0] = counts[0], shared.counts[warp][1] = counts[1];
  const size_t at = call.ChunkOf(list, blockIdx.x);
#pragma unroll
  for (int h = 0; h < kWarpHeads; ++h) {
    const int head = warp + h * kWarps;
    if (head >= group) break;
    float* to = call.chunk_sums + (at * group + head) * head_dim;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int column = ColumnOf<kPerLane, kWhole>(i);
      if (column < head_dim) to[column] = sums[h][i];
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  ChunkCounts drawn{0, 0, distinct};
  for (int w = 0; w < kWarps; ++w) {
    drawn.draws += shared.counts[w][0];
    drawn.rows += shared.counts[w][1];
  }
  call.chunk_counts[at] = drawn;
}

// body.template operator()<T, columns of a lane, whether these are whole rows of 16 bits>().
template <class Body>
void ForRowsOf(const SampledAttentionParams& params, Body&& body) {
  ForElementType(params.dtype, [&]<class T>() {
    if constexpr (sizeof(T) == 2) {
      if (params.head_dim == 64) return body.template operator()<T, 2, true>();
      if (params.head_dim == 128) return body.template operator()<T, 4, true>();
    }
    body.template operator()<T, 8, false>();
  });
}

}  // namespace augur::kernels::sampled_gather
