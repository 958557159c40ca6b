// Element by element, each step rounded as the CPU does (kernels/cpu/adjust_logits.cc).
#include <cmath>

#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/adjust_logits.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kTokensPerThread = 8;  // 2,048 of a row a CTA: 63 CTAs for 128 Ki tokens

__global__ void __launch_bounds__(kThreads) CountTokensKernel(CountTokensParams params) {
  WaitForPrevious();
  const int row = blockIdx.x * kThreads + threadIdx.x;
  if (row >= params.rows) return;
  const LogitRule rule = params.rules[row];
  if (rule.slot < 0 || params.counted[rule.slot] != rule.position) return;
  const int32_t token = params.token_ids[params.row_ids[row]];
  if (token >= 0 && token < params.vocab) ++params.words[size_t(rule.slot) * params.vocab + token];
  params.counted[rule.slot] = rule.position + 1;
}

__device__ float Adjust(const LogitRule& rule, float x, float bias, uint32_t word) {
  const uint32_t count = word & kTokenCountMask;
  if (rule.has_bias != 0) x = __fadd_rn(x, bias);
  if ((word & kTokenEnds) != 0 && rule.holds_ends != 0) x = __fadd_rn(x, -INFINITY);
  if ((word & kTokenInPrompt) != 0 || count > 0) {
    x = x > 0.0f ? __fdiv_rn(x, rule.repetition) : __fmul_rn(x, rule.repetition);
  }
  if (count > 0) {
    x = __fsub_rn(x, __fmul_rn(rule.frequency, static_cast<float>(count)));
    x = __fsub_rn(x, rule.presence);
  }
  return x;
}

__global__ void __launch_bounds__(kThreads) AdjustLogitsKernel(AdjustLogitsParams params) {
  WaitForPrevious();
  const size_t row = size_t(blockIdx.y) * params.vocab;
  const LogitRule rule = params.rules[blockIdx.y];
  const size_t state = size_t(rule.slot < 0 ? 0 : rule.slot) * params.vocab;
  const int first = blockIdx.x * kThreads * kTokensPerThread + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kTokensPerThread; ++i) {
    const int token = first + i * kThreads;
    if (token >= params.vocab) return;
    float x = params.logits[row + token];
    if (rule.slot >= 0) {
      const float bias = rule.has_bias != 0 ? params.bias[state + token] : 0.0f;
      x = Adjust(rule, x, bias, params.words[state + token]);
    }
    params.out[row + token] = x;
  }
}

}  // namespace

void CudaBackend::CountTokens(const CountTokensParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.vocab > 0);
  const LaunchShape shape{dim3((params.rows + kThreads - 1) / kThreads), dim3(kThreads)};
  LaunchKernel(stream_, shape, CountTokensKernel, params);
}

void CudaBackend::AdjustLogits(const AdjustLogitsParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.vocab > 0 && params.out != params.logits);
  constexpr int kTokens = kThreads * kTokensPerThread;
  const LaunchShape shape{dim3((params.vocab + kTokens - 1) / kTokens, params.rows),
                          dim3(kThreads)};
  LaunchKernel(stream_, shape, AdjustLogitsKernel, params);
}

}  // namespace augur::kernels
