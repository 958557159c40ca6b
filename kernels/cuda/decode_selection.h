// Selection of one row at a time, for Phase::kDecode, and for every shape that prefill_selection.h
// does not serve.
//
// A cluster of eight CTAs takes a (row, kv head): each scores a share of the keys, once for all
// heads of the group, the softmax's sums and the blocks' scores go through the cluster's shared
// memory, and its first CTA chooses. One launch, nothing in global memory but the result. A row's
// bits follow from its position, q and keys alone. Products are of q in two parts (16-bit keys, to
// 2^-17 of the magnitudes) or one chain of FMA in float32 (float32 keys and odd key_dims).
//
// Thread: as Backend. Failure: a shape that the host can see is wrong is a CHECK; what only the
// device sees (a segment of several rows in Phase::kDecode, more blocks than max_blocks) stops the
// kernel, which is a broken device.
#pragma once

#include <cuda_runtime.h>

#include "kernels/ops/select_blocks.h"

namespace augur::kernels {

void SelectRowByRow(const SelectBlocksParams& params, cudaStream_t stream);

}  // namespace augur::kernels
