// Sums over a warp, and what kShared leaves a list for its next step. Device code of
// sampled_gather.cu and sampled_shared.cu.
#pragma once

#include <cmath>

#include "kernels/cuda/sampled_call.h"
#include "kernels/cuda/warp_math.h"
#include "kernels/value_weights.h"

namespace augur::kernels {

// The rates' bounds and the predictions' rise: cpu/value_sampling.cc.
inline constexpr double kMostRowsRate = 16.0;
inline constexpr float kStateRise = 0.5f;

template <class Number>
__device__ inline Number WarpSum(Number sum) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  return sum;
}
__device__ inline RateSums WarpSum(const RateSums& rates) {
  return {WarpSum(rates.unbounded), WarpSum(rates.bounded), WarpSum(rates.certain)};
}

// A sum of powers relative to the largest of them.
struct PowerSum {
  float top = -INFINITY;
  float sum = 0.0f;

  // One more of `other_sum` powers of two by `other_top`; NaN stays.
  __device__ void Add(float other_top, float other_sum) {
    const float next = MaxOrNan(top, other_top);
    if (next == -INFINITY) return;
    sum = sum * FastExp2(top - next) + other_sum * FastExp2(other_top - next);
    top = next;
  }
};

// Base-2 logarithm of a sum of 2^scores, from its mass beside `top`.
__device__ inline float LogSum(float top, uint64_t mass) {
  return top + static_cast<float>(log2(static_cast<double>(mass)) - 40.0);
}

// As the CPU's DrawShared leaves it, from the list's heads and what all rates add up to; by one
// warp, a lane a head. Where a score is NaN, or nothing is left of an anchor, the state stays.
__device__ inline void WriteNextState(const SampledCall& call, int list, const HeadDraw* heads,
                                      const RateSums& rates) {
  const SampledAttentionParams& params = call.attention;
  const int group = call.group(), samples = call.SamplesOf(call.SegmentOf(list));
  const int lane = threadIdx.x % 32;
  const float* state = call.StateOf(list);
  const bool is_first = state[0] == 0.0f;
  const float lambda = call.LambdaOf(list);
  HeadDraw draw{};
  float seen = 0.0f;
  if (lane < group) {
    draw = heads[lane];
    seen = state[2 + lane];
  }
  const bool stays = __any_sync(~0u, draw.is_nan || draw.log_anchor == kNoLogAnchor);
  const float now = draw.log_norm - draw.log_anchor;
  const double off = WarpSum(double{draw.log_norm - (seen + draw.log_anchor)});
  float* next_state = call.NextStateOf(list);
  if (lane < group) {
    next_state[2 + lane] = stays ? seen : is_first ? now : fminf(now, seen + kStateRise);
  }
  if (lane != 0) return;
  if (stays) {
    next_state[0] = state[0];
    next_state[1] = state[1];
    return;
  }
  double next = lambda * exp2(off / group);
  const bool counts_draws = params.budget == ValueBudget::kDraws || is_first;
  if (counts_draws) {
    next *= samples * kQ32 / rates.unbounded;
  } else {
    const double wanted = fmax(0.25, samples - static_cast<double>(rates.certain));
    next *= rates.bounded > 0 ? wanted * kQ32 / static_cast<double>(rates.bounded) : 2.0;
  }
  if (!isfinite(next)) next = samples;
  const double least = static_cast<double>(samples) / group;
  const double most = counts_draws ? samples : samples * kMostRowsRate;
  next_state[0] = 1.0f;
  next_state[1] = static_cast<float>(fmin(fmax(next, least), most));
}

}  // namespace augur::kernels
