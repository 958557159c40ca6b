// Prefill attention of rows that have each their own choice of blocks, by warpgroup products, for
// head dims 64 and 128: the contract of prefill_attention.h, for calls with has_choices. A row's
// bits depend on its own query, its own choice and the keys that it sees there.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/wgmma_prefill_attention.h"
#include "kernels/ops/paged_attention.h"

namespace augur::kernels {

// For head dims 64 and 128 of what PrefillAttention serves. One CTA an SM of `num_sms`.
void RunSparsePrefillAttention(const PagedAttentionParams& params, int num_sms, PrefillTurns* turns,
                               cudaStream_t stream);

}  // namespace augur::kernels
