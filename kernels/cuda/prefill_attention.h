// Attention of many rows of sequences over all their pages, on tensor cores, causal: the contract
// of ops/paged_attention.h in Phase::kPrefill. A row's bits depend on its own query and on the keys
// up to its position: not on the chunk, the rows beside it, the number of SMs.
//
// Queries and the softmax's weights are rounded to the pages' type before they meet K and V; sums
// are float32. A NaN or an infinity in a row's scores or in a value that it sees gives NaN where
// the CPU may give infinity.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops/paged_attention.h"

namespace augur::kernels {

// Page types, head dims and groups that RunPrefillAttention serves: bf16 and fp16; 64, 96, 128; any
// group up to 16; whole lists in one call; a positive scale. Lists of chosen blocks
// (AttentionSegment::blocks) and biases are not served either, but only the device sees them: a
// kernel that meets one traps.
bool ServesPrefillAttention(const PagedAttentionParams& params);
// One kernel on the stream. A shape that is not served is a CHECK.
void RunPrefillAttention(const PagedAttentionParams& params, cudaStream_t stream);

}  // namespace augur::kernels
