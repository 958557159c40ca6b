// Sampled attention's second kernel: of each query head the masses of its tiles on one scale, their
// running sum, and what each tile is expected to be drawn. A few bytes a tile.
#include <cmath>
#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampled_call.h"
#include "kernels/cuda/sampled_state.h"
#include "kernels/philox.h"
#include "kernels/value_weights.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kThreadTiles = 8;
constexpr int kPassTiles = kThreads * kThreadTiles;  // 128K tokens: one pass

struct DrawMemory {
  float largest[kWarps];
  uint64_t sums[kWarps];
};

// Whatever the order of comparing; NaN where one is.
__device__ inline float LargestOfCta(float largest, DrawMemory& shared) {
  const auto larger = [](float a, float b) { return a != a || a > b ? a : b; };
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    largest = larger(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  if (threadIdx.x % 32 == 0) shared.largest[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int warp = 0; warp < kWarps; ++warp) largest = larger(largest, shared.largest[warp]);
  return largest;
}

// Sum of the threads' before this one; *total: of all. Twice in a row needs no barrier between.
__device__ inline uint64_t SumBefore(uint64_t own, DrawMemory& shared, uint64_t* total) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint64_t sum = own;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t other = __shfl_up_sync(~0u, sum, distance);
    if (lane >= distance) sum += other;
  }
  __syncthreads();  // the sums of the last call have been read
  if (lane == 31) shared.sums[warp] = sum;
  __syncthreads();
  uint64_t before = 0, all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    if (w == warp) before = all;
    all += shared.sums[w];
  }
  *total = all;
  return before + sum - own;
}

// This thread's tiles of a pass.
struct ThreadTiles {
  float maxima[kThreadTiles];
  uint64_t sums[kThreadTiles];

  __device__ void Load(const SampledCall& call, size_t row, int first, int entries) {
#pragma unroll
    for (int i = 0; i < kThreadTiles; ++i) {
      const int entry = first + threadIdx.x * kThreadTiles + i;
      maxima[i] = entry < entries ? call.maxima[row * call.stride + entry] : -INFINITY;
      sums[i] = entry < entries ? call.sums[row * call.stride + entry] : 0;
    }
  }
  __device__ float Largest(float largest) const {
#pragma unroll
    for (int i = 0; i < kThreadTiles; ++i) {
      if (maxima[i] != maxima[i] || maxima[i] > largest) largest = maxima[i];
      if (largest != largest) break;
    }
    return largest;
  }
  // Masses beside tiles whose largest score is `top`; gives their sum.
  __device__ uint64_t Weigh(float top, uint64_t (&masses)[kThreadTiles]) const {
    uint64_t sum = 0;
#pragma unroll
    for (int i = 0; i < kThreadTiles; ++i) {
      masses[i] = maxima[i] > -INFINITY ? TileMass(sums[i], maxima[i] - top) : 0;
      sum += masses[i];
    }
    return sum;
  }
};

// What of S a tile gets, whose masses follow `before`. kFlash: its own mass.
__device__ inline void StoreShares(const SampledCall& call, const HeadDraw& head, size_t row,
                                   int first, int entries, uint64_t before,
                                   const uint64_t (&masses)[kThreadTiles]) {
  uint64_t* shares = call.shares + row * (call.stride + 1);
  const bool is_flash = call.attention.estimator == ValueEstimator::kFlash;
  const uint64_t expected = uint64_t(head.samples) << 32;
#pragma unroll
  for (int i = 0; i < kThreadTiles; ++i) {
    const int entry = first + threadIdx.x * kThreadTiles + i;
    if (entry >= entries) break;
    if (is_flash) {
      shares[entry] = head.is_nan ? 0 : masses[i];
      continue;
    }
    const bool is_empty = head.is_nan || head.whole == 0;
    shares[entry] = is_empty ? 0 : Boundary(before, head.whole, expected);
    before += masses[i];
    if (entry + 1 == entries) {
      shares[entries] = is_empty ? 0 : Boundary(before, head.whole, expected);
    }
  }
}

// But for the whole.
__device__ inline HeadDraw NewHead(const SampledCall& call, int list, int head, int entries) {
  const SampledAttentionParams& params = call.attention;
  const SampledSegment& segment = call.SegmentOf(list);
  HeadDraw draw{};
  draw.samples = call.SamplesOf(segment);
  if (draw.samples < 1 || draw.samples > kMaxValueSamples) __trap();
  if (params.estimator == ValueEstimator::kFlash) draw.samples = max(1, draw.samples / entries);
  draw.weight = 1.0 / draw.samples;
  const AttentionDrawKey key{segment.seed, segment.choice_index,
                             static_cast<uint32_t>(segment.position),
                             static_cast<uint32_t>(params.layer),
                             static_cast<uint32_t>(call.KvHeadOf(list) * call.group() + head)};
  draw.offset = params.forced_offset >= 0
                    ? static_cast<uint32_t>(params.forced_offset)
                    : PhiloxAttention(PhiloxPurpose::kValueOffset, key, 0).words[0];
  return draw;
}

// Of the first entry and the last kAnchorLast.
__device__ inline float LogAnchor(const SampledCall& call, size_t row, int entries) {
  const float* maxima = call.maxima + row * call.stride;
  const uint64_t* sums = call.sums + row * call.stride;
  const int last = max(1, entries - kAnchorLast);
  float top = maxima[0];
  for (int entry = last; entry < entries; ++entry) top = fmaxf(top, maxima[entry]);
  if (!(top > -INFINITY)) return kNoLogAnchor;
  uint64_t mass = TileMass(sums[0], maxima[0] - top);
  for (int entry = last; entry < entries; ++entry) {
    mass += TileMass(sums[entry], maxima[entry] - top);
  }
  return LogSum(top, mass);
}

__global__ __launch_bounds__(kThreads, 4) void ShareSampledDraws(const SampledCall call) {
  __shared__ DrawMemory shared;
  WaitForPrevious();
  const int list = blockIdx.y, head = blockIdx.x;
  const SampledAttentionParams& params = call.attention;
  if (params.counts != nullptr && threadIdx.x == 0 && head == 0 && call.KvHeadOf(list) == 0) {
    params.counts[call.SegmentIndexOf(list)] = {};
  }
  const int entries = call.DrawnEntries(list);
  if (entries == 0) return;
  const size_t row = call.RowOf(list, head);
  HeadDraw draw = NewHead(call, list, head, entries);
  ThreadTiles tiles;
  uint64_t masses[kThreadTiles];
  float largest = -INFINITY;
  for (int first = 0; first < entries; first += kPassTiles) {
    tiles.Load(call, row, first, entries);
    largest = tiles.Largest(largest);
  }
  draw.top = LargestOfCta(largest, shared);
  draw.is_nan = draw.top != draw.top || draw.top == INFINITY;
  const bool is_one_pass = entries <= kPassTiles;  // whose tiles are still at hand
  for (int first = 0; first < entries; first += kPassTiles) {
    if (!is_one_pass) tiles.Load(call, row, first, entries);
    uint64_t total;
    const uint64_t before = SumBefore(tiles.Weigh(draw.top, masses), shared, &total);
    draw.whole += total;
    if (is_one_pass) StoreShares(call, draw, row, 0, entries, before, masses);
  }
  uint64_t passed = 0;
  for (int first = 0; first < entries && !is_one_pass; first += kPassTiles) {
    tiles.Load(call, row, first, entries);
    uint64_t total;
    const uint64_t before = SumBefore(tiles.Weigh(draw.top, masses), shared, &total);
    StoreShares(call, draw, row, first, entries, passed + before, masses);
    passed += total;
  }
  if (threadIdx.x != 0) return;
  if (params.estimator == ValueEstimator::kShared && !draw.is_nan) {
    draw.log_norm = LogSum(draw.top, draw.whole);
    draw.log_anchor = LogAnchor(call, row, entries);
  }
  call.heads[row] = draw;
}

}  // namespace

void LaunchSampledDraws(const SampledCall& call, cudaStream_t stream) {
  const SampledAttentionParams& params = call.attention;
  const int group = params.num_q_heads / params.num_kv_heads;
  LaunchKernel(stream, {dim3(group, call.num_segments * params.num_kv_heads), dim3(kThreads)},
               ShareSampledDraws, call);
}

}  // namespace augur::kernels
