// Attention of single rows over lists of pages, on tensor cores: one CTA takes a run of a list's
// pages for all query heads of a kv head, so that K and V are read once; partial results are merged
// in ascending order.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops/paged_attention.h"

namespace augur::kernels {

struct DecodeAttentionLimits {
  int max_rows = 0;
  int num_sms = 0;
};

class DecodeAttention {
 public:
  explicit DecodeAttention(const DecodeAttentionLimits& limits);
  ~DecodeAttention();
  DecodeAttention(const DecodeAttention&) = delete;
  DecodeAttention& operator=(const DecodeAttention&) = delete;

  // Page types, head dims and groups that Run serves: bf16 and fp16; 64, 96, 128; up to 16.
  static bool Serves(const PagedAttentionParams& params);
  void Run(const PagedAttentionParams& params, cudaStream_t stream);

 private:
  const DecodeAttentionLimits limits_;
};

}  // namespace augur::kernels
