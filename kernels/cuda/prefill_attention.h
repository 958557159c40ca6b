// Attention of many rows of a sequence over a list of pages, on tensor cores, causal.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops/paged_attention.h"

namespace augur::kernels {

// Page types, head dims and groups that RunPrefillAttention serves: bf16 and fp16; 64, 96, 128; any
// group up to 16; no lists of chosen blocks (AttentionSegment::blocks), no biases.
bool ServesPrefillAttention(const PagedAttentionParams& params);
void RunPrefillAttention(const PagedAttentionParams& params, cudaStream_t stream);

}  // namespace augur::kernels
