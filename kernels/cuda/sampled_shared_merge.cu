// The last kernel of kShared in one pass: the runs' sums under the exact normalisers, counts, and
// the next step's state.
#include <cmath>
#include <cstdint>

#include "kernels/cuda/decode_scores.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampled_call.h"
#include "kernels/cuda/sampled_state.h"
#include "kernels/cuda/warp_math.h"

namespace augur::kernels {
namespace {

constexpr int kMergeThreads = 256;
constexpr int kMergeWarps = kMergeThreads / 32;
static_assert(kMaxRunsOfList <= kMergeThreads, "a thread a run, and a lane a run in each warp");

struct MergeMemory {
  float tops[kMergeWarps];
  float sums[kMergeWarps];
  alignas(16) float strands[kMergeWarps][128];
  RateSums rates[kMergeWarps];
  int64_t counts[kMergeWarps];
  HeadDraw heads[kTileRows];
};

// Of a head: the runs' norms, thread w + 8 l of warp w has run w + 8 l.
struct HeadNorm {
  float top;  // NaN where a score is
  float sum;  // of 2^(scores - top)

  __device__ void Merge(const RunNorm& own, MergeMemory& shared) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    top = own.top;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      top = MaxOrNan(top, __shfl_xor_sync(~0u, top, distance));
    }
    if (lane == 0) shared.tops[warp] = top;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kMergeWarps; ++w) top = MaxOrNan(top, shared.tops[w]);
    sum = WarpSum(own.sum > 0.0f ? own.sum * FastExp2(own.top - top) : 0.0f);
    if (lane == 0) shared.sums[warp] = sum;
    __syncthreads();
    sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kMergeWarps; ++w) sum += shared.sums[w];
  }
  __device__ bool is_nan() const { return top != top || top == INFINITY; }
};

// Of a warp w: sums of V of runs w, w + 8 and so on, in order; lane l knows what is to know of run
// w + 8 l.
template <int kHeadDim>
struct Strand {
  static constexpr int kPerLane = kHeadDim / 32;

  float sums[kPerLane];
  float reference;  // -inf: there is nothing

  __device__ void Sum(const SampledCall& call, int list, int head, int num_runs, float own) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    reference = own;
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      reference = fmaxf(reference, __shfl_xor_sync(~0u, reference, distance));
    }
    const float factor = own > -INFINITY ? FastExp2(own - reference) : 0.0f;
#pragma unroll
    for (float& sum : sums) sum = 0.0f;
    constexpr int kAhead = 8;
    for (int base = 0; warp + base * kMergeWarps < num_runs; base += kAhead) {
      float runs[kAhead][kPerLane] = {}, factors[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        factors[i] = __shfl_sync(~0u, factor, (base + i) % 32);
        const int run = warp + (base + i) * kMergeWarps;
        if (run >= num_runs || factors[i] == 0.0f) continue;
        const size_t at = call.ChunkOf(list, run) * call.group() + head;
        LoadFloats(call.chunk_sums + at * kHeadDim + lane * kPerLane, runs[i]);
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
#pragma unroll
        for (int c = 0; c < kPerLane; ++c) sums[c] = fmaf(runs[i][c], factors[i], sums[c]);
      }
    }
  }
};

// out = the strands in order, under the exact normaliser.
template <int kHeadDim>
__device__ inline void MergeStrands(const SampledCall& call, int list, int head,
                                    Strand<kHeadDim>& strand, const HeadNorm& norm,
                                    MergeMemory& shared) {
  const float factor = strand.reference > -INFINITY ? FastExp2(strand.reference - norm.top) : 0.0f;
#pragma unroll
  for (float& sum : strand.sums) sum *= factor;
  StoreFloats(strand.sums, &shared.strands[threadIdx.x / 32][threadIdx.x % 32 * (kHeadDim / 32)]);
  __syncthreads();
  if (threadIdx.x >= kHeadDim) return;
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kMergeWarps; ++w) sum += shared.strands[w][threadIdx.x];
  if (norm.sum > 0.0f) sum /= norm.sum;
  if (norm.is_nan()) sum = NAN;
  const SampledAttentionParams& params = call.attention;
  const size_t out_row = size_t(call.SegmentOf(list).row) * params.num_q_heads +
                         call.KvHeadOf(list) * call.group() + head;
  StoreOut(params, out_row * kHeadDim + threadIdx.x, sum);
}

// Counts and the next state of a list; 16 threads a head.
__device__ inline void SettleList(const SampledCall& call, int list, int entries, int num_runs,
                                  MergeMemory& shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = call.group();
  RateSums rates{};
  int64_t rows = 0;
  if (threadIdx.x < num_runs) {
    rates = call.chunk_rates[call.ChunkOf(list, threadIdx.x)];
    rows = call.chunk_counts[call.ChunkOf(list, threadIdx.x)].distinct;
  }
  constexpr int kSlices = kMergeThreads / kTileRows;
  const int head = threadIdx.x / kSlices;
  PowerSum norm;
  for (int run = threadIdx.x % kSlices; head < group && run < num_runs; run += kSlices) {
    const RunNorm& of_run = call.run_norms[call.ChunkOf(list, run) * group + head];
    norm.Add(of_run.top, of_run.sum);
  }
#pragma unroll
  for (int distance = kSlices / 2; distance > 0; distance /= 2) {
    const float top = __shfl_xor_sync(~0u, norm.top, distance);
    norm.Add(top, __shfl_xor_sync(~0u, norm.sum, distance));
  }
  if (threadIdx.x % kSlices == 0 && head < group) {
    HeadDraw& draw = shared.heads[head];
    draw.is_nan = norm.top != norm.top || norm.top == INFINITY;
    draw.log_norm = norm.top + log2f(norm.sum);
    draw.log_anchor = call.anchors[call.RowOf(list, head)];
  }
  rates = WarpSum(rates);
  rows = WarpSum(rows);
  if (lane == 0) shared.rates[warp] = rates, shared.counts[warp] = rows;
  __syncthreads();
  const bool is_nan = __any_sync(~0u, lane < group && shared.heads[lane].is_nan);
  const SampledSegment& segment = call.SegmentOf(list);
  for (int entry = threadIdx.x; is_nan && segment.entry_rows != nullptr && entry < entries;
       entry += kMergeThreads) {
    segment.entry_rows[call.PlaceOf(segment, list, entry)] = 0;
  }
  if (warp != 0) return;
  for (int w = 1; w < kMergeWarps; ++w) {
    rates.Add(shared.rates[w]);
    rows += shared.counts[w];
  }
  WriteNextState(call, list, shared.heads, rates);
  if (lane != 0 || is_nan) return;
  const SampledAttentionParams& params = call.attention;
  const int64_t drawn[3] = {rows * group, rows * group, rows};
  AddCounts(drawn, params.counts == nullptr ? nullptr : params.counts + call.SegmentIndexOf(list));
  AddCounts(drawn, params.totals);
}

// A CTA a query head, and one for what the list's heads have in common.
template <int kHeadDim>
__global__ __launch_bounds__(kMergeThreads) void MergeSharedRuns(
    const __grid_constant__ SampledCall call) {
  __shared__ MergeMemory shared;
  WaitForPrevious();
  const int list = blockIdx.y, head = blockIdx.x;
  if (list == 0 && head == 0 && threadIdx.x == 0) *call.runs_taken = 0;
  const int entries = call.ScoredEntries(list);
  if (entries == 0) return;
  const int num_runs = RunsOfList(entries);
  if (head == call.group()) {
    SettleList(call, list, entries, num_runs, shared);
    return;
  }
  const int own_run = threadIdx.x / 32 + threadIdx.x % 32 * kMergeWarps;
  RunNorm own = {-INFINITY, 0.0f, -INFINITY};
  if (own_run < num_runs) {
    own = call.run_norms[call.ChunkOf(list, own_run) * call.group() + head];
  }
  Strand<kHeadDim> strand;
  strand.Sum(call, list, head, num_runs, own.reference);
  HeadNorm norm;
  norm.Merge(own, shared);
  MergeStrands<kHeadDim>(call, list, head, strand, norm, shared);
}

}  // namespace

void LaunchSharedMerge(const SampledCall& call, cudaStream_t stream) {
  const SampledAttentionParams& params = call.attention;
  const dim3 grid(params.num_q_heads / params.num_kv_heads + 1,
                  call.num_segments * params.num_kv_heads);
  LaunchKernel(stream, {grid, dim3(kMergeThreads)},
               params.head_dim == 64 ? MergeSharedRuns<64> : MergeSharedRuns<128>, call);
}

}  // namespace augur::kernels
