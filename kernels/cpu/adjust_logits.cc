#include "kernels/ops/adjust_logits.h"

#include <cstring>
#include <limits>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {
namespace {

void AdjustRow(const AdjustLogitsParams& params, int row) {
  const LogitRule& rule = params.rules[row];
  const size_t vocab = params.vocab;
  const float* logits = params.logits + row * vocab;
  float* out = params.out + row * vocab;
  if (rule.slot < 0) {
    std::memcpy(out, logits, vocab * sizeof(float));
    return;
  }
  const uint32_t* words = params.words + rule.slot * vocab;
  const float* bias = rule.has_bias != 0 ? params.bias + rule.slot * vocab : nullptr;
  const float held = rule.holds_ends != 0 ? -std::numeric_limits<float>::infinity() : 0.0f;
  for (size_t i = 0; i < vocab; ++i) {
    const uint32_t word = words[i];
    const uint32_t count = word & kTokenCountMask;
    float x = logits[i];
    if (bias != nullptr) x += bias[i];
    if ((word & kTokenEnds) != 0) x += held;
    if ((word & kTokenInPrompt) != 0 || count > 0) {
      x = x > 0.0f ? x / rule.repetition : x * rule.repetition;
    }
    if (count > 0) {
      x -= rule.frequency * static_cast<float>(count);
      x -= rule.presence;
    }
    out[i] = x;
  }
}

}  // namespace

void CpuBackend::CountTokens(const CountTokensParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.vocab > 0);
  for (int row = 0; row < params.rows; ++row) {
    const LogitRule& rule = params.rules[row];
    if (rule.slot < 0 || params.counted[rule.slot] != rule.position) continue;
    const int32_t token = params.token_ids[params.row_ids[row]];
    if (token >= 0 && token < params.vocab)
      ++params.words[size_t(rule.slot) * params.vocab + token];
    params.counted[rule.slot] = rule.position + 1;
  }
}

void CpuBackend::AdjustLogits(const AdjustLogitsParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.vocab > 0 && params.out != params.logits);
  ForRows(params.rows, int64_t{4} * params.vocab, [&](int first, int end, int) {
    for (int row = first; row < end; ++row) AdjustRow(params, row);
  });
}

}  // namespace augur::kernels
