// Prefill attention by warpgroup products, for head dims 64 and 128: the contract of
// prefill_attention.h.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops/paged_attention.h"

namespace augur::kernels {

// What the CTAs of a launch share: who takes which tile. In device memory, 0 before the first
// launch; each launch leaves it 0. Launches that share one must not overlap.
struct PrefillTurns {
  unsigned next;  // tile that nobody has taken, less one a CTA
  unsigned done;  // CTAs
};

// For head dims 64 and 128 of what PrefillAttention serves. One CTA an SM of `num_sms`.
void RunWgmmaPrefillAttention(const PagedAttentionParams& params, int num_sms, PrefillTurns* turns,
                              cudaStream_t stream);

}  // namespace augur::kernels
