#include "kernels/ops/top_logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {
namespace {

// The `count` first tokens in falling order into row->top, as many as there are.
void FindTop(const float* logits, int vocab, int count, TokenLogprobsRow* row) {
  float kept[kMaxTopLogprobs];
  int filled = 0;
  for (int token = 0; token < vocab; ++token) {
    const float logit = logits[token];
    // Ids rise, so that one that equals the last kept comes after it.
    if (filled == count && (count == 0 || !(logit > kept[filled - 1]))) continue;
    int place = filled < count ? filled++ : filled - 1;
    for (; place > 0 && logit > kept[place - 1]; --place) {
      kept[place] = kept[place - 1];
      row->top[place] = row->top[place - 1];
    }
    kept[place] = logit;
    row->top[place].token = token;
  }
}

int RankOf(const float* logits, int vocab, int32_t token) {
  const float logit = logits[token];
  int before = 0;
  for (int i = 0; i < vocab; ++i) before += logits[i] > logit || (logits[i] == logit && i < token);
  return before + 1;
}

void FillRow(const float* logits, float max, int vocab, int32_t token, int top,
             TokenLogprobsRow* row) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  *row = {};
  row->chosen.token = token;
  const bool is_token = token >= 0 && token < vocab;
  if (!std::isfinite(max)) {
    row->chosen.logprob = kNan;
    for (int i = 0; i < top; ++i) row->top[i].logprob = kNan;
    return;
  }
  double sum = 0.0;
  for (int i = 0; i < vocab; ++i) sum += std::exp(double{logits[i]} - max);
  const double norm = max + std::log(sum);
  row->chosen.logprob = is_token ? static_cast<float>(logits[token] - norm) : kNan;
  row->rank = is_token ? RankOf(logits, vocab, token) : 0;
  FindTop(logits, vocab, top, row);
  for (int i = 0; i < std::min(top, vocab); ++i) {
    row->top[i].logprob = static_cast<float>(logits[row->top[i].token] - norm);
  }
}

}  // namespace

void CpuBackend::TopLogprobs(const TopLogprobsParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.vocab > 0);
  // An exponential is worth some 16 floats touched.
  ForRows(params.rows, int64_t{16} * params.vocab, [&](int first, int end, int) {
    for (int row = first; row < end; ++row) {
      const int top = params.top[row];
      if (top < 0) continue;
      AUGUR_CHECK(top <= kMaxTopLogprobs);
      const float* logits = params.logits + size_t(row) * params.vocab;
      FillRow(logits, isa_.max_or_nan(logits, params.vocab), params.vocab, params.tokens[row], top,
              &params.out[row]);
    }
  });
}

}  // namespace augur::kernels
