// How a row is drawn. Tokens are ordered by falling logit, ties by rising id. top_k keeps the first
// k; top_p the shortest start of what is left that holds top_p of its probability; min_p then drops
// tokens below min_p times the highest probability (the order of the Hugging Face warpers). What is
// kept is some start of that order, so one last token describes it. The draw walks the kept tokens
// by rising id, which needs no sort, adding weights in double; a filter that is off costs nothing.
#include "kernels/ops/sample_tokens.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/philox.h"

namespace augur::kernels {
namespace {

// Tokens sorted at once in search of the nucleus, which for a trained model seldom has more.
constexpr int kNucleusStep = 256;

// True when token a comes before token b.
struct FallingLogit {
  const float* logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  }
};

int32_t FirstAtMaximum(const float* logits, int vocab, float max) {
  return static_cast<int32_t>(std::find(logits, logits + vocab, max) - logits);
}

double SumOfWeights(const float* weights, const int32_t* tokens, int count) {
  double sum = 0.0;
  for (int i = 0; i < count; ++i) sum += weights[tokens[i]];
  return sum;
}

// How many of tokens[0, count) it takes, in falling order, to gather `wanted`; these come first,
// sorted.
int SortNucleus(const float* weights, FallingLogit order, double wanted, int32_t* tokens,
                int count) {
  double sum = 0.0;
  for (int begin = 0; begin < count; begin += kNucleusStep) {
    const int end = std::min(begin + kNucleusStep, count);
    if (end < count) std::nth_element(tokens + begin, tokens + end, tokens + count, order);
    std::sort(tokens + begin, tokens + end, order);
    for (int i = begin; i < end; ++i) {
      sum += weights[tokens[i]];
      if (sum >= wanted) return i + 1;
    }
  }
  return count;
}

// The last token, in falling order, that top_k and top_p keep, at least one of which is on.
// `tokens` has room for the vocabulary.
int32_t LastKept(const float* logits, const float* weights, int vocab, const SamplingRow& rule,
                 int32_t* tokens) {
  const FallingLogit order{logits};
  const bool has_top_k = rule.top_k != 0 && rule.top_k < static_cast<uint32_t>(vocab);
  int count = vocab;
  std::iota(tokens, tokens + vocab, 0);
  if (has_top_k) {
    count = static_cast<int>(rule.top_k);
    std::nth_element(tokens, tokens + count - 1, tokens + vocab, order);
    if (rule.top_p == 1.0f) return tokens[count - 1];
    // nth_element leaves them in no stated order, and a sum must not depend on it.
    std::sort(tokens, tokens + count, order);
  }
  const double total = SumOfWeights(weights, tokens, count);
  // Tokens so rare that all of them together are less than the nucleus may leave out are never in
  // it: most of a vocabulary, which then need not be sorted.
  const double rare = (1.0 - rule.top_p) * total / count;
  count = static_cast<int>(
      std::remove_if(tokens, tokens + count, [&](int32_t token) { return weights[token] < rare; }) -
      tokens);
  count = SortNucleus(weights, order, rule.top_p * total, tokens, count);
  return tokens[count - 1];
}

}  // namespace

void CpuBackend::SampleTokens(const SampleTokensParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.vocab > 0);
  pool_.ParallelFor(
      params.rows, [&](int row, int thread) { SampleRow(params, row, sampling_scratch_[thread]); });
}

void CpuBackend::SampleRow(const SampleTokensParams& params, int row,
                           SamplingScratch& scratch) const {
  const SamplingRow& rule = params.params[row];
  AUGUR_CHECK(rule.temperature >= 0.0f && rule.top_p > 0.0f && rule.top_p <= 1.0f);
  AUGUR_CHECK(rule.min_p >= 0.0f && rule.min_p <= 1.0f);
  const int vocab = params.vocab;
  const float* logits = params.logits + size_t(row) * vocab;
  const float max = isa_.max_or_nan(logits, vocab);
  if (!std::isfinite(max)) {
    params.tokens[row] = kNotFinite;
    return;
  }
  const int32_t best = FirstAtMaximum(logits, vocab, max);
  params.tokens[row] = best;
  if (rule.temperature == 0.0f || rule.top_k == 1) return;

  scratch.weights.resize(vocab);
  float* weights = scratch.weights.data();
  isa_.softmax_weights(logits, max, rule.temperature, weights, vocab);

  const FallingLogit order{logits};
  int32_t last = -1;  // all are kept
  if ((rule.top_k != 0 && rule.top_k < static_cast<uint32_t>(vocab)) || rule.top_p < 1.0f) {
    scratch.tokens.resize(vocab);
    last = LastKept(logits, weights, vocab, rule, scratch.tokens.data());
  }

  const auto is_kept = [&](int32_t token) {
    if (last >= 0 && order(last, token)) return false;
    return weights[token] >= rule.min_p;  // the highest weight is 1
  };
  double total = 0.0;
  for (int i = 0; i < vocab; ++i) total += is_kept(i) ? weights[i] : 0.0f;
  const double target = total * PhiloxUniform(PhiloxPurpose::kSampleToken, rule.seed,
                                              rule.choice_index, rule.position);
  double sum = 0.0;
  for (int i = 0; i < vocab; ++i) {
    if (weights[i] == 0.0f || !is_kept(i)) continue;
    sum += weights[i];
    if (sum > target) {
      params.tokens[row] = i;
      return;
    }
  }
}

}  // namespace augur::kernels
