// Attention for whatever the tensor-core kernels (decode_attention.h, prefill_attention.h) do not
// serve: float32 pages, any even head_dim up to kPlainAttentionMaxHeadDim, any group, biases,
// lists that pass by in several calls. All of ops/paged_attention.h, in float32.
//
// Bits: a row walks its own list from the first entry to the last with one state, so they depend on
// nothing else; a list that passes by in several calls gives the bits of one call.
// Thread and failure: as Backend. The caller has checked the shapes.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops/paged_attention.h"

namespace augur::kernels {

inline constexpr int kPlainAttentionMaxHeadDim = 256;  // as the CPU's

void RunPlainAttention(const PagedAttentionParams& params, cudaStream_t stream);

}  // namespace augur::kernels
