// kShared in one pass over the keys: rows are drawn and their values added while a page's scores
// are in registers, under predicted normalisers; the exact ones are known when all keys have
// passed.
//
// What a run of entries adds up is relative to a reference of its own and each head, so nothing
// depends on how well the normalisers were predicted but the number of rows.
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/check.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/fp8_row.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampled_call.h"
#include "kernels/cuda/sampled_pages.h"
#include "kernels/cuda/sampled_state.h"
#include "kernels/cuda/warp_math.h"
#include "kernels/philox.h"
#include "kernels/value_weights.h"

namespace augur::kernels {
namespace {

// Of a CTA: as many as leave a thread registers for the sums of 16 heads beside a page's scores. 12
// took as long where few rows are drawn, and longer where many are (README.md).
constexpr int kStreamWarps = 8;
constexpr int kThreads = kStreamWarps * 32;
constexpr int kRowsAhead = 8;  // that a warp asks for at once
// Rows that a warp has drawn and not yet added; a few pages' of a run that draws as many as it
// should.
constexpr int kPendingRows = 16;

// Sums of 2^(score - largest) over a page, for heads g and g + 8; 0 where nothing is seen.
template <int kHalves>
__device__ inline void SumPowers(const PageScores& scores, const PageMaxima& maxima,
                                 float (&sums)[kHalves]) {
#pragma unroll
  for (int row = 0; row < kHalves; ++row) {
    const float largest = maxima.of[row] > -INFINITY ? maxima.of[row] : 0.0f;
    float two[2] = {};
#pragma unroll
    for (int i = 0; i < 16; ++i) two[i % 2] += FastExp2(scores.of[row][i] - largest);
    float sum = two[0] + two[1];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sums[row] = sum + __shfl_xor_sync(~0u, sum, 2);
  }
}

// Rows of V, or sums of V, that wait to be added: row k to each head h's sums under
// factors[k][h] 2^bases[k][h].
struct PendingRows {
  float bases[kPendingRows][kTileRows];
  float factors[kPendingRows][kTileRows];
  const std::byte* halves[kPendingRows];  // that have the row
  int tokens[kPendingRows];               // whose row it is; -1: a sum, at halves
};

template <int kHeadDim>
struct WarpMemory {
  KeyStages<kHeadDim, kStreamWarps> stages;
  PendingRows pending;
  PageNote notes[kNotedPages];
};

// This lane's columns of a row.
template <class T, int kPerLane>
__device__ inline void LoadRow(const SampledAttentionParams& params, const std::byte* half,
                               int token, float (&row)[kPerLane]) {
  const int column = threadIdx.x % 32 * kPerLane;
  if (token < 0) {
    LoadFloats(reinterpret_cast<const float*>(half) + column, row);
    return;
  }
  if (params.fp8.begin != params.fp8.end && params.fp8.holds(half)) {
    LoadFp8(reinterpret_cast<const uint8_t*>(half), kPerLane * 32, token, column, row);
#pragma unroll
    for (float& value : row) value = ToFloat(FromFloat<T>(value));
    return;
  }
  LoadFloats(reinterpret_cast<const T*>(half) + token * kPerLane * 32 + column, row);
}

// A row to heads' sums.
template <int kCount, int kPerLane>
__device__ inline void AddRow(const float* factors, const float (&row)[kPerLane],
                              float (&sums)[kCount][kPerLane]) {
#pragma unroll
  for (int h = 0; h < kCount; h += 4) {
    const float4 four = *reinterpret_cast<const float4*>(factors + h);
    const float each[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int c = 0; c < kPerLane; ++c) sums[h + i][c] = fmaf(row[c], each[i], sums[h + i][c]);
    }
  }
}

// `count` rows to a run's sums in memory, where something is already if `was_added`, relative to
// `reference` of head lane % 16; gives the reference that they are relative to now: the largest
// base so far.
template <class T, int kHeadDim, int kHeads>
__device__ inline float AddPending(const SampledCall& call, size_t chunk, PendingRows& pending,
                                   int count, bool was_added, float reference) {
  constexpr int kPerLane = kHeadDim / 32;
  const int lane = threadIdx.x % 32, head = lane % kTileRows, group = call.group();
  __syncwarp();
  float largest = reference;
  for (int k = 0; k < count; ++k) largest = fmaxf(largest, pending.bases[k][head]);
  const float factor = was_added && reference > -INFINITY ? FastExp2(reference - largest) : 0.0f;
  for (int k = 0; k < count; ++k) {
    const float base = pending.bases[k][head];
    const float power = base > -INFINITY ? FastExp2(base - largest) : 0.0f;
    if (lane < kTileRows) pending.factors[k][head] *= power;
  }
  __syncwarp();
  float* const to = call.chunk_sums + chunk * group * kHeadDim + lane * kPerLane;
  float sums[kHeads][kPerLane] = {};
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float of_head = __shfl_sync(~0u, factor, h);
    if (h >= group || of_head == 0.0f) continue;
    LoadFloats(to + h * kHeadDim, sums[h]);
#pragma unroll
    for (float& sum : sums[h]) sum *= of_head;
  }
  for (int first = 0; first < count; first += kRowsAhead) {
    float rows[kRowsAhead][kPerLane];
#pragma unroll
    for (int k = 0; k < kRowsAhead; ++k) {
      if (first + k >= count) break;
      LoadRow<T, kPerLane>(call.attention, pending.halves[first + k], pending.tokens[first + k],
                           rows[k]);
    }
#pragma unroll
    for (int k = 0; k < kRowsAhead; ++k) {
      if (first + k >= count) break;
      AddRow(pending.factors[first + k], rows[k], sums);
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    if (h < group) StoreFloats(sums[h], to + h * kHeadDim);
  }
  __syncwarp();
  return largest;
}

// What a warp adds up over a run.
template <class T, int kHeadDim, int kHeads>
class RunSums {
 public:
  RateSums rates;  // this lane's
  PowerSum norm;   // of head lane % 16
  uint32_t rows;

  __device__ RunSums(const SampledCall& call, PendingRows& pending)
      : call_(call), pending_(pending) {}

  __device__ void Begin(const PageRun& run) {
    rates = {};
    norm = {};
    rows = 0;
    count_ = 0;
    was_added_ = false;
    reference_ = -INFINITY;
    chunk_ = static_cast<uint32_t>(call_.ChunkOf(run.list, run.index));
  }

  __device__ int room() const { return kPendingRows - count_; }

  // Takes a row, as PendingRows has it; base and factor of head lane % 16.
  __device__ void Take(const std::byte* half, int token, float base, float factor) {
    const int lane = threadIdx.x % 32;
    if (lane < kTileRows) {
      pending_.bases[count_][lane] = base;
      pending_.factors[count_][lane] = factor;
    }
    if (lane == 0) {
      pending_.halves[count_] = half;
      pending_.tokens[count_] = token;
    }
    ++count_;
  }

  // The pending rows to the sums.
  __device__ void Add() {
    if (count_ == 0) return;
    reference_ =
        AddPending<T, kHeadDim, kHeads>(call_, chunk_, pending_, count_, was_added_, reference_);
    count_ = 0;
    was_added_ = true;
  }

  // What is known of the run goes to where the lists are merged.
  __device__ void End() {
    const int lane = threadIdx.x % 32, group = call_.group();
    if (lane < group) {
      call_.run_norms[size_t{chunk_} * group + lane] = {norm.top, norm.sum, reference_};
    }
    const RateSums all = WarpSum(rates);
    if (lane != 0) return;
    call_.chunk_rates[chunk_] = all;
    call_.chunk_counts[chunk_] = {rows * group, rows * group, rows};
  }

 private:
  const SampledCall& call_;
  PendingRows& pending_;
  uint32_t chunk_;
  float reference_;  // of head lane % 16; -inf: nothing was added to it
  int count_;
  bool was_added_;
};

// The largest over the heads of a score over its predicted normaliser, of tokens 2 lane and
// 2 lane + 1.
template <int kHalves>
__device__ inline float2 LargestRatios(const PageScores& scores,
                                       const float (&log_norms)[kHalves]) {
  const int lane = threadIdx.x % 32;
  float most[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    most[i] = scores.of[0][i] - log_norms[0];
    if constexpr (kHalves == 2) most[i] = fmaxf(most[i], scores.of[1][i] - log_norms[1]);
  }
  // Lanes 4 g + t of eight g have the same tokens: each keeps half of what it has left, thrice.
#pragma unroll
  for (int distance = 16, kept = 8; kept >= 2; distance /= 2, kept /= 2) {
    const bool is_upper = lane & distance;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (i >= kept) break;
      const float own = is_upper ? most[i + kept] : most[i];
      const float other = is_upper ? most[i] : most[i + kept];
      most[i] = fmaxf(own, __shfl_xor_sync(~0u, other, distance));
    }
  }
  // Lane 4 g + t has values 2 g and 2 g + 1, tokens 32 (g / 4) + 8 t + 2 (g % 4) and the next.
  const int from = (lane / 16 * 4 + lane % 4) * 4 + lane % 16 / 4;
  return make_float2(__shfl_sync(~0u, most[0], from), __shfl_sync(~0u, most[1], from));
}

// Rows of a page that are drawn: bit l of even (odd) is token 2 l (2 l + 1). This lane has the
// rates of its two.
struct PageDraws {
  unsigned even, odd;
  uint64_t rates[2];  // Q32
};

__device__ inline uint64_t BoundedRate(double wanted, RateSums& sums) {
  const uint64_t rate = wanted < kQ32 ? static_cast<uint64_t>(wanted) : kQ32One;
  sums.unbounded += wanted;
  if (rate == kQ32One) {
    ++sums.certain;
  } else {
    sums.bounded += rate;
  }
  return rate;
}

__device__ inline PageDraws DrawPage(float2 ratios, float lambda, uint32_t offset, RateSums& sums) {
  PageDraws draws{};
  draws.rates[0] = BoundedRate(
      double{lambda} * static_cast<double>(Exp2Weight(fminf(ratios.x, 1.0f))) * kQ32, sums);
  draws.rates[1] = BoundedRate(
      double{lambda} * static_cast<double>(Exp2Weight(fminf(ratios.y, 1.0f))) * kQ32, sums);
  // Most pages of a long list draw nothing: the sum of all rates, in units of 2^-24 and rounded
  // up, does not reach the next whole number.
  const uint32_t least = static_cast<uint32_t>((draws.rates[0] >> 8) + (draws.rates[1] >> 8)) + 2;
  if ((offset >> 8) + 1 + __reduce_add_sync(~0u, least) < 1u << 24) return draws;
  uint64_t end = draws.rates[0] + draws.rates[1];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, end, distance);
    if (static_cast<int>(threadIdx.x % 32) >= distance) end += other;
  }
  const uint64_t middle = end - draws.rates[1], begin = middle - draws.rates[0];
  draws.even = __ballot_sync(~0u, SystematicCount(offset, begin, middle) > 0);
  draws.odd = __ballot_sync(~0u, SystematicCount(offset, middle, end) > 0);
  return draws;
}

__device__ inline float InverseOf(uint64_t rate) { return 0x1p32f / static_cast<float>(rate); }

// Of token `token`: lane h and lane h + 16 get head h's.
template <int kHalves>
__device__ inline float ScoreByHead(const PageScores& scores, int token) {
  const int i = token / kHalfTokens * 8 + token % 8, t = token % kHalfTokens / 8;
  float of[kHalves];
#pragma unroll
  for (int row = 0; row < kHalves; ++row) {
    of[row] = scores.of[row][0];
#pragma unroll
    for (int at = 1; at < 16; ++at) of[row] = i == at ? scores.of[row][at] : of[row];
  }
  const int lane = threadIdx.x % 32, from = lane % 8 * 4 + t;
  const float low = __shfl_sync(~0u, of[0], from);
  if constexpr (kHalves == 1) return low;
  const float high = __shfl_sync(~0u, of[kHalves - 1], from);
  return lane / 8 % 2 == 0 ? low : high;
}

// How a warp draws from a list.
template <int kHalves>
struct ListRates {
  float lambda;
  float log_norms[kHalves];  // of heads g and g + 8, predicted

  __device__ void BeginList(const SampledCall& call, int list) {
    const float* state = call.StateOf(list);
    lambda = call.LambdaOf(list);
#pragma unroll
    for (int row = 0; row < kHalves; ++row) {
      const int head = threadIdx.x % 32 / 4 + 8 * row;
      log_norms[row] =
          head < call.group() ? state[2 + head] + call.anchors[call.RowOf(list, head)] : INFINITY;
    }
  }
};

// Of this lane's page, `first` + lane.
__device__ inline void NoteValues(const SampledCall& call, const PageRun& run, int first,
                                  size_t half_bytes, PageNote& note) {
  const SampledAttentionParams& params = call.attention;
  const SampledSegment& segment = call.SegmentOf(run.list);
  const int entry = first + static_cast<int>(threadIdx.x % 32);
  if (entry >= run.end) return;
  const int64_t place = call.PlaceOf(segment, run.list, entry);
  note.values = call.ValuesOf(segment, run.list, entry, half_bytes);
  note.value_sums =
      segment.value_sums != nullptr ? segment.value_sums[params.sums_offset + place] : nullptr;
  note.rows = segment.entry_rows != nullptr
                  ? segment.entry_rows + call.PlaceOf(segment, run.list, entry)
                  : nullptr;
  note.offset = static_cast<uint32_t>(params.forced_offset);
  if (params.forced_offset >= 0) return;
  const int block = segment.blocks != nullptr ? segment.blocks[place] : entry;
  const AttentionDrawKey key{
      segment.seed, segment.choice_index, static_cast<uint32_t>(segment.position),
      static_cast<uint32_t>(params.layer), static_cast<uint32_t>(call.KvHeadOf(run.list))};
  note.offset =
      PhiloxAttention(PhiloxPurpose::kValueOffset, key, 1 + static_cast<uint32_t>(block)).words[0];
}

__device__ inline void PrefetchRow(const void* row, int bytes) {
  const int at = static_cast<int>(threadIdx.x % 32) * 32;
  if (at < bytes)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(static_cast<const char*>(row) + at));
}

template <class T, int kHeadDim, int kHeads>
class StreamWarp {
 public:
  __device__ StreamWarp(const SampledCall& call, WarpMemory<kHeadDim>& memory)
      : call_(call),
        notes_(memory.notes),
        stream_(call, memory.stages),
        sums_(call, memory.pending) {}

  // All runs that nobody else takes.
  __device__ void TakeRuns() {
    bool is_first = true;
    PageRun run;
    for (; stream_.NextRun(&run); is_first = false) {
      sums_.Begin(run);
      ReadNotes(run, run.begin);
      if (is_first) {
        LoadQueries<T, kHeadDim>(call_.HeadsOf(run.list), call_.group(), queries_);
      } else {
        ReadQueries(run.list);
        rates_.BeginList(call_, run.list);
      }
      for (int entry = run.begin; entry < run.end; ++entry) {
        const int at = (entry - run.begin) % kNotedPages;
        if (at == 0 && entry > run.begin) ReadNotes(run, entry);
        if (notes_[at].value_sums != nullptr) {
          PrefetchRow(notes_[at].value_sums, kHeadDim * sizeof(float));
        }
        PageScores scores;
        PageMaxima maxima;
        ScorePage<T, kHeadDim, kHalves>(call_.exponent_scale, notes_[at], queries_, stream_, scores,
                                        maxima);
        if (is_first && entry == run.begin) {
          AwaitPrevious();  // the anchors
          rates_.BeginList(call_, run.list);
        }
        TakePage(scores, maxima, entry + 1 == run.end, notes_[at]);
      }
      sums_.End();
    }
    if (is_first) AwaitPrevious();
  }

 private:
  static constexpr int kHalves = kHeads > 8 ? 2 : 1;
  static constexpr int kHalfBytes = kBlockTokens * kHeadDim * sizeof(T);

  __device__ void ReadQueries(int list) {
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      const uint4 four = *call_.QueriesOf(list, step, threadIdx.x % 32);
      queries_[step][0] = four.x, queries_[step][1] = four.y;
      queries_[step][2] = four.z, queries_[step][3] = four.w;
    }
  }
  __device__ void ReadNotes(const PageRun& run, int first) {
    __syncwarp();
    PageNote& own = notes_[threadIdx.x % 32];
    NoteKeys(call_, run, first, own);
    NoteValues(call_, run, first, kHalfBytes, own);
    __syncwarp();
  }

  __device__ void TakePage(const PageScores& scores, const PageMaxima& maxima, bool is_last,
                           const PageNote& note) {
    PageDraws drawn = DrawPage(LargestRatios<kHalves>(scores, rates_.log_norms), rates_.lambda,
                               note.offset, sums_.rates);
    float powers[kHalves];
    SumPowers<kHalves>(scores, maxima, powers);
    const float largest = ByHead<kHalves>(maxima.of), sum = ByHead<kHalves>(powers);
    sums_.norm.Add(largest, sum);
    const int rows = __popc(drawn.even) + __popc(drawn.odd);
    if (note.rows != nullptr && threadIdx.x % 32 == 0) *note.rows = rows;
    sums_.rows += rows;
    const bool has_variate = note.value_sums != nullptr && note.visible > 0;
    if (rows == 0 && !has_variate && !is_last) return;
    const float inverse[2] = {InverseOf(drawn.rates[0]), InverseOf(drawn.rates[1])};
    float drawn_mass = 0.0f;
    for (int left = rows;;) {
      const int count = min(left, sums_.room());
      drawn_mass += TakeRows(scores, drawn, inverse, count, note.values, largest);
      left -= count;
      const bool has_all = left == 0 && sums_.room() >= has_variate;
      if (has_all && has_variate) {
        // The page's mass beyond what was drawn of it goes to the mean of its values.
        const float rest = (sum - drawn_mass) / note.visible;
        sums_.Take(reinterpret_cast<const std::byte*>(note.value_sums), -1, largest, rest);
      }
      if (has_all && !is_last) break;
      sums_.Add();
      if (has_all) break;
    }
  }

  // The first `count` of the rows that are left of a page's draws; gives their coefficients' sum
  // relative to `largest`, of head lane % 16.
  __device__ float TakeRows(const PageScores& scores, PageDraws& draws, const float (&inverse)[2],
                            int count, const std::byte* half, float largest) {
    float mass = 0.0f;
    for (int i = 0; i < count; ++i) {
      // The next token in order.
      const int pair = __ffs(draws.even | draws.odd) - 1, is_odd = (draws.even >> pair & 1) == 0;
      (is_odd ? draws.odd : draws.even) &= ~(1u << pair);
      const int token = 2 * pair + is_odd;
      const float of_head = ScoreByHead<kHalves>(scores, token);
      const float factor = __shfl_sync(~0u, is_odd ? inverse[1] : inverse[0], pair);
      mass += FastExp2(of_head - largest) * factor;
      if (!call_.attention.fp8.holds(half)) {
        PrefetchRow(half + token * kHeadDim * sizeof(T), kHeadDim * sizeof(T));
      }
      sums_.Take(half, token, of_head, factor);
    }
    return mass;
  }

  const SampledCall& call_;
  PageNote* const notes_;
  KeyStream<kHeadDim, kStreamWarps> stream_;
  RunSums<T, kHeadDim, kHeads> sums_;
  ListRates<kHalves> rates_;
  uint32_t queries_[kHeadDim / 16][4];
};

// Persistent, a CTA an SM.
template <class T, int kHeadDim, int kHeads>
__global__ __launch_bounds__(kThreads,
                             1) void StreamSharedKeys(const __grid_constant__ SampledCall call) {
  extern __shared__ __align__(128) std::byte shared_bytes[];
  LetNextStart();
  auto* const warps = reinterpret_cast<WarpMemory<kHeadDim>*>(shared_bytes);
  StreamWarp<T, kHeadDim, kHeads> warp(call, warps[threadIdx.x / 32]);
  warp.TakeRuns();
}

constexpr int kAnchorEntries = 1 + kAnchorLast;

// A CTA a list, a warp an entry of its anchor, whose keys it reads in place. Leaves the list's
// queries in the form that products take them in.
template <class T, int kHeadDim>
__global__ __launch_bounds__(kAnchorEntries *
                             32) void SumAnchors(const __grid_constant__ SampledCall call) {
  __shared__ PowerSum entries_of[kAnchorEntries][kTileRows];
  WaitForPreviousFirst();
  const SampledAttentionParams& params = call.attention;
  const int list = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (params.counts != nullptr && threadIdx.x == 0 && call.KvHeadOf(list) == 0) {
    params.counts[call.SegmentIndexOf(list)] = {};
  }
  const int entries = call.ScoredEntries(list);
  if (entries == 0) return;
  const SampledSegment& segment = call.SegmentOf(list);
  const int last = max(1, entries - kAnchorLast), entry = warp == 0 ? 0 : last + warp - 1;
  if (lane < kTileRows) entries_of[warp][lane] = {};
  if (entry < entries) {
    uint32_t queries[kHeadDim / 16][4];
    LoadQueries<T, kHeadDim>(call.HeadsOf(list), call.group(), queries);
    for (int step = warp == 0 ? 0 : kHeadDim; step < kHeadDim / 16; ++step) {
      *call.QueriesOf(list, step, lane) =
          make_uint4(queries[step][0], queries[step][1], queries[step][2], queries[step][3]);
    }
    const std::byte* page = call.KeysOf(segment, list, entry);
    const int visible = call.VisibleKeys(segment, list, entry);
    const float* bias = call.BiasesOf(segment, list, entry);
    PageScores scores;
    PageMaxima maxima;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      ScoreHalf<T, kHeadDim>(page + half * KeyStages<kHeadDim, kStreamWarps>::kHalfBytes, half,
                             call.exponent_scale, queries, scores);
      FinishHalf<2>(bias, visible, half, scores, maxima);
    }
    float powers[2];
    SumPowers<2>(scores, maxima, powers);
    const float largest = ByHead<2>(maxima.of), sum = ByHead<2>(powers);
    if (lane < kTileRows) entries_of[warp][lane].Add(largest, sum);
  }
  __syncthreads();
  const int head = threadIdx.x;
  if (head >= call.group()) return;
  PowerSum anchor;
  for (int i = 0; i < kAnchorEntries; ++i) {
    anchor.Add(entries_of[i][head].top, entries_of[i][head].sum);
  }
  call.anchors[call.RowOf(list, head)] =
      anchor.sum > 0.0f ? anchor.top + log2f(anchor.sum) : kNoLogAnchor;
}

using Kernel = void (*)(SampledCall);

struct Kernels {
  Kernel anchors, stream;
  int stream_bytes;
};

template <class T, int kHeadDim>
Kernels KernelsOfGroup(int group) {
  Kernels kernels{SumAnchors<T, kHeadDim>, StreamSharedKeys<T, kHeadDim, 16>,
                  kStreamWarps * sizeof(WarpMemory<kHeadDim>)};
  if (group <= 8) kernels.stream = StreamSharedKeys<T, kHeadDim, 8>;
  if (group <= 4) kernels.stream = StreamSharedKeys<T, kHeadDim, 4>;
  return kernels;
}

template <class T>
Kernels KernelsOfDim(int head_dim, int group) {
  return head_dim == 64 ? KernelsOfGroup<T, 64>(group) : KernelsOfGroup<T, 128>(group);
}

Kernels KernelsOf(DType dtype, int head_dim, int group) {
  return dtype == DType::kF16 ? KernelsOfDim<__half>(head_dim, group)
                              : KernelsOfDim<__nv_bfloat16>(head_dim, group);
}

}  // namespace

void PrepareSharedStream() {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    for (const int head_dim : {64, 128}) {
      for (const int group : {4, 8, 16}) {
        const Kernels kernels = KernelsOf(dtype, head_dim, group);
        AUGUR_CUDA(cudaFuncSetAttribute(kernels.stream, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        kernels.stream_bytes));
      }
    }
  }
}

void LaunchSharedStream(const SampledCall& call, int num_sms, cudaStream_t stream) {
  const SampledAttentionParams& params = call.attention;
  const int group = params.num_q_heads / params.num_kv_heads;
  const int num_lists = call.num_segments * params.num_kv_heads;
  const Kernels kernels = KernelsOf(params.dtype, params.head_dim, group);
  LaunchKernel(stream, {dim3(num_lists), dim3(kAnchorEntries * 32)}, kernels.anchors, call);
  const auto grid = static_cast<unsigned>(std::min(num_lists * call.most_runs, num_sms));
  LaunchKernel(stream, {dim3(grid), dim3(kThreads), static_cast<size_t>(kernels.stream_bytes)},
               kernels.stream, call);
}

}  // namespace augur::kernels
