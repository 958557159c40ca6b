// A list of blocks with given scores and values, for tests of sampled attention: query head g is
// the unit vector e_g, so that component g of a key is its score (in nats) for that head.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/backend.h"
#include "kernels/kv_page.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {

inline constexpr ValueEstimator kAllEstimators[] = {
    ValueEstimator::kIid,          ValueEstimator::kStratified,       ValueEstimator::kSystematic,
    ValueEstimator::kProportional, ValueEstimator::kLargestRemainder, ValueEstimator::kFlash,
    ValueEstimator::kShared};
inline constexpr ValueEstimator kUnbiased[] = {
    ValueEstimator::kIid,          ValueEstimator::kStratified, ValueEstimator::kSystematic,
    ValueEstimator::kProportional, ValueEstimator::kFlash,      ValueEstimator::kShared};

inline const char* NameOf(ValueEstimator estimator) {
  constexpr const char* kNames[] = {
      "iid", "stratified", "systematic", "proportional", "largest_remainder", "flash", "shared"};
  return kNames[static_cast<int>(estimator)];
}

// One kv head, its keys and values in lists of their own, every byte beyond the tokens a NaN.
struct SampledCase {
  SampledCase(int tokens, int group_heads, int dim)
      : n(tokens), heads(group_heads), head_dim(dim), q(size_t(group_heads) * dim, 0.0f) {
    for (int g = 0; g < heads; ++g) q[size_t(g) * dim + g] = 1.0f;
    for (int block = 0; block * kBlockTokens < n; ++block) {
      blocks.push_back(block);
      keys.push_back(NanRows());
      values.push_back(NanRows());
      sums.emplace_back(dim, 0.0f);
    }
    state.assign(ValueStateFloats(heads), 0.0f);
    entry_rows.assign(blocks.size(), -1);
  }

  int entries() const { return static_cast<int>(blocks.size()); }
  float* key(int token) { return keys[token / 64].data() + size_t(token % 64) * head_dim; }
  float* value(int token) { return values[token / 64].data() + size_t(token % 64) * head_dim; }
  float score(int g, int token) { return key(token)[g]; }

  void SetScores(const std::function<float(int g, int token)>& score_of) {
    for (int token = 0; token < n; ++token) {
      for (int c = 0; c < head_dim; ++c) key(token)[c] = c < heads ? score_of(c, token) : 0.0f;
    }
  }
  void SetValues(const std::function<float(int token, int c)>& value_of) {
    for (std::vector<float>& sum : sums) std::fill(sum.begin(), sum.end(), 0.0f);
    for (int token = 0; token < n; ++token) {
      for (int c = 0; c < head_dim; ++c) {
        value(token)[c] = value_of(token, c);
        sums[token / 64][c] += value(token)[c];
      }
    }
  }
  void SetOneHotValues() {
    SetValues([](int token, int c) { return token == c ? 1.0f : 0.0f; });
  }

  // Softmax of head g in double.
  std::vector<double> Probabilities(int g) {
    double top = -INFINITY, sum = 0;
    for (int j = 0; j < n; ++j) top = std::max(top, double{score(g, j)});
    std::vector<double> p(n);
    for (int j = 0; j < n; ++j) sum += p[j] = std::exp(score(g, j) - top);
    for (double& value : p) value /= sum;
    return p;
  }
  std::vector<double> ExactOutput(int g) {
    const std::vector<double> p = Probabilities(g);
    std::vector<double> out(head_dim, 0.0);
    for (int j = 0; j < n; ++j) {
      for (int c = 0; c < head_dim; ++c) out[c] += p[j] * value(j)[c];
    }
    return out;
  }

  // A state whose normalisers are the exact ones times e^errors[g], and lambda.
  void PredictState(const std::vector<double>& errors, float lambda) {
    state[0] = 1.0f;
    state[1] = lambda;
    for (int g = 0; g < heads; ++g) {
      double sum = 0, anchor = 0;
      for (int j = 0; j < n; ++j) {
        const double weight = std::exp(double{score(g, j)});
        const int entry = j / kBlockTokens;
        sum += weight;
        if (entry == 0 || entry >= entries() - kAnchorLast) anchor += weight;
      }
      state[2 + g] =
          static_cast<float>((std::log(sum) - std::log(anchor) + errors[g]) / std::log(2.0));
    }
  }

  // The list as a segment for `row`; pointers are into this case.
  SampledSegment Segment(int row, int samples, uint64_t seed, int position = -1) {
    key_rows.clear();
    value_rows.clear();
    sum_rows.clear();
    for (size_t e = 0; e < keys.size(); ++e) {
      key_rows.push_back(reinterpret_cast<const std::byte*>(keys[e].data()));
      value_rows.push_back(reinterpret_cast<const std::byte*>(values[e].data()));
      sum_rows.push_back(sums[e].data());
    }
    count = entries();
    return {.row = row,
            .position = position < 0 ? n - 1 : position,
            .keys = key_rows.data(),
            .values = value_rows.data(),
            .blocks = blocks.data(),
            .counts = &count,
            .value_sums = has_sums ? sum_rows.data() : nullptr,
            .state = state.data(),
            .list_stride = entries(),
            .samples = samples,
            .seed = seed,
            .entry_rows = entry_rows.data()};
  }

  SampledAttentionParams Params(ValueEstimator estimator, const SampledSegment* segments,
                                int num_segments, float* out) {
    return {.q = q.data(),
            .out = out,
            .segments = segments,
            .counts = &counts,
            .num_segments = num_segments,
            .rows = 1,
            .q_stride = heads * head_dim,
            .num_q_heads = heads,
            .num_kv_heads = 1,
            .head_dim = head_dim,
            .dtype = DType::kF32,
            .scale = 1.0f,
            .layer = layer,
            .estimator = estimator,
            .budget = budget};
  }

  // One draw: [heads][head_dim]. The state is put back where `keeps_state` is false.
  std::vector<float> Run(Backend& backend, ValueEstimator estimator, int samples, uint64_t seed,
                         int64_t forced_offset = -1, bool keeps_state = false) {
    std::vector<float> out(size_t(heads) * head_dim, NAN);
    const std::vector<float> before = state;
    const SampledSegment segment = Segment(0, samples, seed);
    SampledAttentionParams params = Params(estimator, &segment, 1, out.data());
    params.forced_offset = forced_offset;
    backend.SampledAttention(params);
    if (!keeps_state) state = before;
    return out;
  }

  int n, heads, head_dim;
  int layer = 3;
  bool has_sums = false;
  ValueBudget budget = ValueBudget::kDraws;
  std::vector<float> q, state;
  std::vector<int32_t> blocks, entry_rows;
  std::vector<std::vector<float>> keys, values, sums;
  std::vector<const std::byte*> key_rows, value_rows;
  std::vector<const float*> sum_rows;
  int32_t count = 0;
  SampledCounts counts;

 private:
  std::vector<float> NanRows() const {
    return std::vector<float>(size_t(kBlockTokens) * head_dim, NAN);
  }
};

// Mean over all 2^32 forced offsets of a vector that is constant between few of them and whose
// equality at two offsets means that it is constant between them.
inline std::vector<double> MeanOverOffsets(
    const std::function<std::vector<float>(int64_t offset)>& at) {
  std::vector<double> mean;
  const auto add = [&](const std::vector<float>& value, double share) {
    mean.resize(value.size(), 0.0);
    for (size_t i = 0; i < value.size(); ++i) mean[i] += value[i] * share;
  };
  const double unit = 1.0 / 4294967296.0;
  // Offsets [low, high], whose ends are known.
  const std::function<void(int64_t, const std::vector<float>&, int64_t, const std::vector<float>&)>
      cover = [&](int64_t low, const std::vector<float>& at_low, int64_t high,
                  const std::vector<float>& at_high) {
        if (at_low == at_high) return add(at_low, static_cast<double>(high - low + 1) * unit);
        if (high == low + 1) {
          add(at_low, unit);
          return add(at_high, unit);
        }
        const int64_t middle = low + (high - low) / 2;
        const std::vector<float> at_middle = at(middle);
        cover(low, at_low, middle, at_middle);
        cover(middle + 1, at(middle + 1), high, at_high);
      };
  const int64_t last = (int64_t{1} << 32) - 1;
  cover(0, at(0), last, at(last));
  return mean;
}

}  // namespace augur::kernels
