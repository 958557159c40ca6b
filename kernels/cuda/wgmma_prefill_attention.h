// Prefill attention by warpgroup products: the contract and the arithmetic of prefill_attention.h,
// in another order of additions inside a product.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops/paged_attention.h"

namespace augur::kernels {

// Of what ServesPrefillAttention() serves, head dims 64 and 128.
bool ServesWgmmaPrefillAttention(const PagedAttentionParams& params);
void RunWgmmaPrefillAttention(const PagedAttentionParams& params, cudaStream_t stream);

}  // namespace augur::kernels
