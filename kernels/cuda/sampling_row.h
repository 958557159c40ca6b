// Device code of sample_tokens.cu: one row of logits as one CTA of 16 warps sees it, and the two
// walks over it. A warp has a span of consecutive ids, and sums go through a warp's lanes, then
// through the warps, so their order follows from the vocabulary's size alone.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/cuda/element_vector.h"

namespace augur::kernels {

constexpr int kWarp = 32;
// 128 registers a thread: loads and exponentials of many logits at once. Two CTAs fit an SM, so
// that 256 rows are one wave.
constexpr int kSamplingWarps = 16;
constexpr int kSamplingThreads = kWarp * kSamplingWarps;
// Neighbours that a thread takes in FirstBeyond: a span of 128K logits is two rounds.
constexpr int kRun = 8;
// Below it 1 / temperature nears the end of float's range, and only a division is right.
constexpr float kSmallestReciprocal = 1e-30f;

struct WalkScratch {
  double warp_totals[kSamplingWarps];
  int found;
  int last;
};

__device__ inline int WarpIndex() { return threadIdx.x / kWarp; }
__device__ inline int LaneIndex() { return threadIdx.x % kWarp; }

// Rises with the logit, the same for both zeros. No NaN.
__device__ inline uint32_t OrderedKey(float logit) {
  const uint32_t bits = __float_as_uint(logit + 0.0f);  // -0 becomes 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}

__device__ inline float LogitOfKey(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

// A start of the row's tokens in falling order (ties by rising id): all up to this one.
struct Cut {
  uint32_t key = 0;
  int32_t id = INT32_MAX;

  __device__ bool Keeps(uint32_t other_key, int32_t other_id) const {
    return other_key > key || (other_key == key && other_id <= id);
  }
};

struct LogitRow {
  const float* logits;
  int vocab;
  int span;  // ids of a warp, a multiple of what its lanes load at once
  float max;
  float temperature;
  float reciprocal;  // of temperature; 0: to be divided by

  // In [0, 1]; 1 at the maximum.
  __device__ float Weight(float logit) const {
    if (logit == -INFINITY) return 0.0f;  // whatever the temperature
    const float distance = logit - max;
    return expf(reciprocal != 0.0f ? distance * reciprocal : distance / temperature);
  }
};

// body(logit, id) for every id of this warp's span, each lane in rising order.
// kVector: consecutive logits of one load. kAhead: loads in flight of each thread; 64 KiB in flight
// draw what an SM can from L2.
template <int kVector, int kAhead, class Body>
__device__ void ForSpan(const LogitRow& row, Body&& body) {
  constexpr int kStep = kWarp * kVector;
  const int first = WarpIndex() * row.span;
  const int end = min(first + row.span, row.vocab);
  for (int base = first + LaneIndex() * kVector; base < end; base += kAhead * kStep) {
    float values[kAhead][kVector];
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (base + a * kStep < end) LoadFloats(row.logits + base + a * kStep, values[a]);
    }
#pragma unroll
    for (int a = 0; a < kAhead; ++a) {
      if (base + a * kStep >= end) break;
#pragma unroll
      for (int i = 0; i < kVector; ++i) body(values[a][i], base + a * kStep + i);
    }
  }
}

// The same bits in every lane.
__device__ inline double WarpSum(double value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

// Sum of the threads before this one, and of all. Called by all threads; `warp_totals` must not be
// in use, and is until the next barrier.
__device__ inline double SumBefore(double value, double* warp_totals, double* total) {
  double inclusive = value;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const double before = __shfl_up_sync(~0u, inclusive, distance);
    if (LaneIndex() >= distance) inclusive += before;
  }
  const double neighbours = __shfl_up_sync(~0u, inclusive, 1);
  if (LaneIndex() == kWarp - 1) warp_totals[WarpIndex()] = inclusive;
  __syncthreads();
  double before = 0.0, sum = 0.0;
#pragma unroll
  for (int w = 0; w < kSamplingWarps; ++w) {
    if (w == WarpIndex()) before = sum;
    sum += warp_totals[w];
  }
  *total = sum;
  return LaneIndex() == 0 ? before : before + neighbours;
}

// The first index of [first, end) at which `sum` plus the measures up to and with it exceeds
// `target`; where rounding lets none do so, the last with a measure; -1 where all are 0. Called by
// all threads with the same arguments; all get the result.
template <class Measure>
__device__ int FirstBeyond(int first, int end, double sum, double target, WalkScratch& scratch,
                           Measure&& measure) {
  __syncthreads();  // scratch may still be read by a walk before
  if (threadIdx.x == 0) {
    scratch.found = INT32_MAX;
    scratch.last = -1;
  }
  __syncthreads();
  for (int base = first; base < end; base += kSamplingThreads * kRun) {
    const int mine = base + threadIdx.x * kRun;
    double values[kRun], local = 0.0;
    int last = -1;
#pragma unroll
    for (int i = 0; i < kRun; ++i) {
      values[i] = mine + i < end ? measure(mine + i) : 0.0;
      local += values[i];
      if (values[i] > 0.0) last = mine + i;
    }
    double total = 0.0;
    double running = sum + SumBefore(local, scratch.warp_totals, &total);
    if (last >= 0 && running + local > target) {
      int index = last;
#pragma unroll
      for (int i = 0; i < kRun; ++i) {
        running += values[i];
        if (values[i] > 0.0 && running > target) index = min(index, mine + i);
      }
      atomicMin(&scratch.found, index);
    }
    if (last >= 0) atomicMax(&scratch.last, last);
    sum += total;
    __syncthreads();
    if (scratch.found != INT32_MAX) break;
  }
  return scratch.found != INT32_MAX ? scratch.found : scratch.last;
}

}  // namespace augur::kernels
