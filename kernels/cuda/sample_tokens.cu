// One CTA a row, and no memory but the row itself: a pass for the maximum, one for the weights of
// the warps' spans, then the draw walks the one span that it falls into. Filters that are off cost
// nothing; sampling_cut.h has the others. The rule is the CPU's (kernels/cpu/sample_tokens.cc).
#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sampling_cut.h"
#include "kernels/cuda/sampling_row.h"
#include "kernels/ops/sample_tokens.h"
#include "kernels/philox.h"

namespace augur::kernels {
namespace {

// The highest logit and the lowest id that has it.
struct Best {
  float logit;
  int id;
  bool has_nan;

  __device__ void Take(const Best& other) {
    has_nan |= other.has_nan;
    if (other.logit < logit || (other.logit == logit && other.id >= id)) return;
    logit = other.logit;
    id = other.id;
  }
};

struct RowScratch {
  Best warp_best[kSamplingWarps];
  double warp_weights[kSamplingWarps];
  CutScratch cut;
};

__device__ Best WarpBest(Best best) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    Best other;
    other.logit = __shfl_xor_sync(~0u, best.logit, distance);
    other.id = __shfl_xor_sync(~0u, best.id, distance);
    other.has_nan = __shfl_xor_sync(~0u, int{best.has_nan}, distance) != 0;
    best.Take(other);
  }
  return best;
}

template <int kVector>
__device__ Best FindBest(const LogitRow& row, RowScratch& scratch) {
  Best best{-INFINITY, INT32_MAX, false};
  ForSpan<kVector, 8>(row, [&](float logit, int id) {
    best.has_nan |= logit != logit;
    if (logit > best.logit) {  // the first of a lane's equals has the lowest id
      best.logit = logit;
      best.id = id;
    }
  });
  best = WarpBest(best);
  if (LaneIndex() == 0) scratch.warp_best[WarpIndex()] = best;
  __syncthreads();
  return WarpBest(scratch.warp_best[LaneIndex() % kSamplingWarps]);
}

struct KeptWeight {
  const LogitRow& row;
  const Cut& cut;
  float min_p;

  __device__ float operator()(float logit, int id) const {
    if (!cut.Keeps(OrderedKey(logit), id)) return 0.0f;
    const float weight = row.Weight(logit);
    return weight >= min_p ? weight : 0.0f;  // the highest weight is 1
  }
};

// The weight kept in each warp's span, in scratch.warp_weights, and their sum.
template <int kVector>
__device__ double SumWeights(const KeptWeight& kept, RowScratch& scratch) {
  double sum = 0.0;
  ForSpan<kVector, 4>(kept.row, [&](float logit, int id) { sum += kept(logit, id); });
  sum = WarpSum(sum);
  __syncthreads();  // warp_weights may still be read by a sum before
  if (LaneIndex() == 0) scratch.warp_weights[WarpIndex()] = sum;
  __syncthreads();
  double total = 0.0;
  for (int w = 0; w < kSamplingWarps; ++w) total += scratch.warp_weights[w];
  return total;
}

// Apart, so that its registers are no burden to rows without filters.
template <int kVector>
__device__ __noinline__ Cut FindRowCut(LogitRow row, SamplingRow rule, RowScratch& scratch) {
  CutRule cut_rule;
  cut_rule.count = row.vocab;
  if (rule.top_k != 0 && rule.top_k < static_cast<uint32_t>(row.vocab)) {
    cut_rule.wanted = rule.top_k;
    cut_rule.limit = FindCut<kVector>(row, cut_rule, scratch.cut);
    cut_rule.count = static_cast<int>(rule.top_k);
  }
  if (rule.top_p == 1.0f) return cut_rule.limit;
  const double total = SumWeights<kVector>({row, cut_rule.limit, 0.0f}, scratch);
  cut_rule.by_weight = true;
  cut_rule.wanted = rule.top_p * total;
  return FindCut<kVector>(row, cut_rule, scratch.cut);
}

template <int kVector>
__device__ int DrawToken(const LogitRow& row, const SamplingRow& rule, RowScratch& scratch) {
  Cut cut;
  if (rule.top_k != 0 || rule.top_p < 1.0f) cut = FindRowCut<kVector>(row, rule, scratch);
  const KeptWeight kept{row, cut, rule.min_p};
  const double total = SumWeights<kVector>(kept, scratch);
  const double target = total * PhiloxUniform(PhiloxPurpose::kSampleToken, rule.seed,
                                              rule.choice_index, rule.position);
  // The target is less than the sum of all, which is added up in this very order.
  int warp = 0;
  double sum = 0.0;
  while (warp < kSamplingWarps - 1 && !(sum + scratch.warp_weights[warp] > target)) {
    sum += scratch.warp_weights[warp++];
  }
  const int first = warp * row.span;
  return FirstBeyond(first, min(first + row.span, row.vocab), sum, target, scratch.cut.walk,
                     [&](int id) { return static_cast<double>(kept(row.logits[id], id)); });
}

__device__ bool IsRule(const SamplingRow& rule) {
  return rule.temperature >= 0.0f && rule.top_p > 0.0f && rule.top_p <= 1.0f &&
         rule.min_p >= 0.0f && rule.min_p <= 1.0f;
}

// A rule out of its range, of which the CPU makes a CHECK, is answered for its row alone.
template <int kVector>
__global__ void __launch_bounds__(kSamplingThreads)
    SampleTokensKernel(SampleTokensParams params, int span) {
  __shared__ RowScratch scratch;
  WaitForPrevious();
  const SamplingRow rule = params.params[blockIdx.x];
  int token = kNotFinite;
  if (IsRule(rule)) {
    LogitRow row{params.logits + size_t(blockIdx.x) * params.vocab,
                 params.vocab,
                 span,
                 0.0f,
                 rule.temperature,
                 0.0f};
    const Best best = FindBest<kVector>(row, scratch);
    if (!best.has_nan && isfinite(best.logit)) {
      row.max = best.logit;
      if (rule.temperature >= kSmallestReciprocal) row.reciprocal = 1.0f / rule.temperature;
      const bool is_greedy = rule.temperature == 0.0f || rule.top_k == 1;
      token = is_greedy ? best.id : DrawToken<kVector>(row, rule, scratch);
    }
  }
  if (threadIdx.x == 0) params.tokens[blockIdx.x] = token;
}

}  // namespace

void CudaBackend::SampleTokens(const SampleTokensParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.vocab > 0);
  const LaunchShape shape{dim3(params.rows), dim3(kSamplingThreads)};
  // By the vocabulary alone, and not by where a row lies: the order of sums depends on it.
  const bool is_wide = params.vocab % 4 == 0;
  const int step = kWarp * (is_wide ? 4 : 1);
  const int span = (params.vocab + step * kSamplingWarps - 1) / (step * kSamplingWarps) * step;
  if (!is_wide) return LaunchKernel(stream_, shape, SampleTokensKernel<1>, params, span);
  AUGUR_CHECK(IsAligned(params.logits, 16));
  LaunchKernel(stream_, shape, SampleTokensKernel<4>, params, span);
}

}  // namespace augur::kernels
