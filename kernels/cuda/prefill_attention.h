// Attention of many rows of sequences over all their pages, or over each row's own choice of them,
// on tensor cores, causal: the contract of ops/paged_attention.h in Phase::kPrefill. A row's bits
// depend on its own query and on the keys that it sees: not on the chunk, the rows beside it and
// what they choose, the number of SMs. A row that chooses all blocks is rounded a little
// differently from one without choices.
//
// Queries and the softmax's weights are rounded to the pages' type before they meet K and V; sums
// are float32. A NaN or an infinity in a row's scores or in a value that it sees gives NaN where
// the CPU may give infinity.
//
// Thread: as Backend; calls of one object run one after the other (one stream). Ownership: a few
// bytes of device memory, made at start.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops/paged_attention.h"

namespace augur::kernels {

struct PrefillTurns;  // wgmma_prefill_attention.h

class PrefillAttention {
 public:
  explicit PrefillAttention(int num_sms);
  ~PrefillAttention();
  PrefillAttention(const PrefillAttention&) = delete;
  PrefillAttention& operator=(const PrefillAttention&) = delete;

  // Page types, head dims and groups that Run serves: bf16 and fp16; 64, 96, 128 (with choices: 64,
  // 128); any group up to 16; whole lists in one call; a positive scale. Lists of chosen blocks
  // (AttentionSegment::blocks) and biases are not served either, but only the device sees them: a
  // kernel that meets one traps.
  static bool Serves(const PagedAttentionParams& params);
  // One kernel on the stream, for each head dim always the same one. A shape that is not served is
  // a CHECK.
  void Run(const PagedAttentionParams& params, cudaStream_t stream);

 private:
  const int num_sms_;
  PrefillTurns* turns_ = nullptr;
};

}  // namespace augur::kernels
