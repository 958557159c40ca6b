#include "kernels/ops/sample_queries.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/philox.h"
#include "kernels/value_weights.h"

namespace augur::kernels {
namespace {

// floor(B ratio + u): how many of B stratified draws are below `ratio`.
uint32_t CountBelow(double ratio, int samples, uint32_t word) {
  return static_cast<uint32_t>((static_cast<uint64_t>(ratio * samples * kQ32) + word) >> 32);
}

// One group's queries, [heads][head_dim] each; gives how many features any of them keeps.
int64_t SampleGroup(const SampleQueriesParams& params, const SampleQueriesSegment& segment,
                    int kv_head, const float* q, float* out) {
  const int heads = params.num_q_heads / params.num_kv_heads;
  const int dim = params.head_dim;
  const auto word = [&](int head, int feature) {
    if (params.forced_offset >= 0) return static_cast<uint32_t>(params.forced_offset);
    return PhiloxAttention(
               PhiloxPurpose::kScoreBits,
               {segment.seed, segment.choice_index, static_cast<uint32_t>(segment.position),
                static_cast<uint32_t>(params.layer), static_cast<uint32_t>(head)},
               static_cast<uint32_t>(feature))
        .words[0];
  };
  // What the draws of head g (of the group) compare with, feature by feature.
  const auto target = [&](int g, int c) {
    if (!params.mean_group) return std::fabs(static_cast<double>(q[g * dim + c]));
    double sum = 0;
    for (int h = 0; h < heads; ++h) sum += std::fabs(static_cast<double>(q[h * dim + c]));
    return sum / heads;
  };
  std::vector<double> norms(heads, 0.0);
  for (int g = 0; g < heads; ++g) {
    for (int c = 0; c < dim; ++c) norms[g] = std::max(norms[g], target(g, c));
  }
  int64_t features = 0;
  for (int c = 0; c < dim; ++c) {
    bool is_read = false;
    double factors[kMaxHeadDim];
    for (int g = 0; g < heads; ++g) {
      const double size = target(g, c);
      const int head = params.mean_group ? kv_head : kv_head * heads + g;
      uint32_t count = 0;
      if (size > 0) count = CountBelow(size / norms[g], segment.samples, word(head, c));
      factors[g] = count == 0 ? 0.0 : norms[g] * count / (segment.samples * size);
      is_read |= count > 0;
    }
    for (int g = 0; g < heads; ++g) {
      out[g * dim + c] = static_cast<float>(static_cast<double>(q[g * dim + c]) * factors[g]);
    }
    features += is_read ? 1 : 0;
  }
  return features;
}

}  // namespace

void CpuBackend::SampleQueries(const SampleQueriesParams& params) {
  AUGUR_CHECK(params.num_kv_heads > 0 && params.num_q_heads % params.num_kv_heads == 0);
  AUGUR_CHECK(params.num_q_heads / params.num_kv_heads <= kMaxHeadDim);
  pool_.ParallelFor(params.num_segments, [&](int index, int) {
    const SampleQueriesSegment& segment = params.segments[index];
    if (params.features != nullptr) params.features[index] = 0;
    if (segment.row < 0) return;
    const int group_width = params.num_q_heads / params.num_kv_heads * params.head_dim;
    for (int head = 0; head < params.num_kv_heads; ++head) {
      const size_t at = size_t(segment.row) * params.q_stride + size_t(head) * group_width;
      const int64_t read = SampleGroup(params, segment, head, params.q + at, params.out + at);
      if (params.features != nullptr) params.features[index] += read;
    }
  });
}

}  // namespace augur::kernels
