// One CTA a row: a pass for the maximum, one for the sum and the rank of the token, and one for
// each of the most probable tokens, which looks for the next in the order. The row stays in L2.
// Only rows that ask for logprobs come here.
#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampling_row.h"
#include "kernels/ops/top_logprobs.h"

namespace augur::kernels {
namespace {

// A token in falling order, ties by rising id.
struct Place {
  float logit;
  int id;

  __device__ bool IsBefore(float other_logit, int other_id) const {
    return logit > other_logit || (logit == other_logit && id < other_id);
  }
};

struct LogprobScratch {
  Place warp_best[kSamplingWarps];
  double warp_sums[kSamplingWarps];
  int warp_counts[kSamplingWarps];
};

// The first of all threads' places, in every thread. scratch.warp_best must not be in use.
__device__ Place FirstOfAll(Place best, LogprobScratch& scratch) {
  const auto take = [&best](float logit, int id) {
    if (!best.IsBefore(logit, id)) best = {logit, id};
  };
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float logit = __shfl_xor_sync(~0u, best.logit, distance);
    const int id = __shfl_xor_sync(~0u, best.id, distance);
    take(logit, id);
  }
  if (LaneIndex() == 0) scratch.warp_best[WarpIndex()] = best;
  __syncthreads();
  for (int w = 0; w < kSamplingWarps; ++w)
    take(scratch.warp_best[w].logit, scratch.warp_best[w].id);
  __syncthreads();
  return best;
}

// The first token behind `last`; id INT32_MAX where there is none.
__device__ Place NextPlace(const LogitRow& row, Place last, LogprobScratch& scratch) {
  Place best{-INFINITY, INT32_MAX};
  ForSpan<1, 8>(row, [&](float logit, int id) {
    if (last.IsBefore(logit, id) && !best.IsBefore(logit, id)) best = {logit, id};
  });
  return FirstOfAll(best, scratch);
}

// Of all tokens: whether one is NaN, the sum of weights, and how many come before `token`.
__device__ void Measure(const LogitRow& row, Place token, LogprobScratch& scratch, double* sum,
                        int* before) {
  double local = 0.0;
  int count = 0;
  ForSpan<1, 8>(row, [&](float logit, int id) {
    local += expf(logit - row.max);
    count += logit > token.logit || (logit == token.logit && id < token.id);
  });
  local = WarpSum(local);
  count = __reduce_add_sync(~0u, count);
  if (LaneIndex() == 0) {
    scratch.warp_sums[WarpIndex()] = local;
    scratch.warp_counts[WarpIndex()] = count;
  }
  __syncthreads();
  *sum = 0.0;
  *before = 0;
  for (int w = 0; w < kSamplingWarps; ++w) {
    *sum += scratch.warp_sums[w];
    *before += scratch.warp_counts[w];
  }
}

__device__ bool HasNan(const LogitRow& row) {
  bool found = false;
  ForSpan<1, 8>(row, [&](float logit, int) { found |= logit != logit; });
  return __syncthreads_or(found) != 0;
}

__global__ void __launch_bounds__(kSamplingThreads)
    TopLogprobsKernel(TopLogprobsParams params, int span) {
  __shared__ LogprobScratch scratch;
  WaitForPrevious();
  const int top = params.top[blockIdx.x];
  if (top < 0) return;
  LogitRow row{
      params.logits + size_t(blockIdx.x) * params.vocab, params.vocab, span, 0.0f, 1.0f, 1.0f};
  TokenLogprobsRow& out = params.out[blockIdx.x];
  const int token = params.tokens[blockIdx.x];
  const bool is_token = token >= 0 && token < params.vocab;
  const Place chosen{is_token ? row.logits[token] : INFINITY, is_token ? token : -1};
  Place place = NextPlace(row, {INFINITY, -1}, scratch);
  const bool is_finite = !HasNan(row) && isfinite(place.logit) && place.id != INT32_MAX;
  row.max = place.logit;
  double sum = 0.0;
  int before = 0;
  if (is_finite) Measure(row, chosen, scratch, &sum, &before);
  const double norm = is_finite ? row.max + log(sum) : NAN;
  if (threadIdx.x == 0) {
    out.chosen = {token, static_cast<float>(is_token ? chosen.logit - norm : NAN)};
    out.rank = is_token && is_finite ? before + 1 : 0;
  }
  for (int i = 0; i < kMaxTopLogprobs; ++i) {
    RankedLogprob entry{-1, i < top && !is_finite ? NAN : 0.0f};
    if (i < min(top, params.vocab) && is_finite) {
      if (i > 0) place = NextPlace(row, place, scratch);
      entry = {place.id, static_cast<float>(place.logit - norm)};
    }
    if (threadIdx.x == 0) out.top[i] = entry;
  }
}

}  // namespace

void CudaBackend::TopLogprobs(const TopLogprobsParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.vocab > 0);
  const LaunchShape shape{dim3(params.rows), dim3(kSamplingThreads)};
  const int span = (params.vocab + kSamplingThreads - 1) / kSamplingThreads * kWarp;
  LaunchKernel(stream_, shape, TopLogprobsKernel, params, span);
}

}  // namespace augur::kernels
