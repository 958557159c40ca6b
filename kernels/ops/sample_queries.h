#pragma once
#include <cstddef>
#include <cstdint>

namespace augur::kernels {

// Bernoulli q.K (SANTA, arXiv 2605.01910, section 5): a query becomes whole multiples of one step,
// most of them 0, so that features of keys at 0 need not be read. E[out . k] = q . k for every key.
// The softmax of such logits is biased: it is there for comparison, followed by exact attention.
//
// With B draws and norm the largest |q_i| of the head, feature i gets norm sign(q_i) c_i / B, where
// c_i = floor(B |q_i| / norm + u_i): B draws, one in each of B strata of [0, 1), against |q_i| /
// norm.
struct SampleQueriesSegment {
  int row = -1;  // -1: the segment is left out
  int position = 0;
  int samples = 0;  // B
  uint64_t seed = 0;
  uint32_t choice_index = 0;
};

struct SampleQueriesParams {
  const float* q = nullptr;  // [rows, num_q_heads * head_dim], rows q_stride apart
  float* out = nullptr;      // likewise: may be q
  const SampleQueriesSegment* segments = nullptr;  // [num_segments]
  int64_t* features = nullptr;  // [num_segments] features of a kv head's keys that are read; may be
                                // null
  int num_segments = 0;
  int q_stride = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int layer = 0;
  // One set of features for a kv head: c_i by the mean over the group of |q_i|, out_i = q_i c_i
  // norm / (B mean_i).
  bool mean_group = false;
  int64_t forced_offset = -1;  // as in SampledAttentionParams
};

}  // namespace augur::kernels
