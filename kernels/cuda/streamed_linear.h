// Products of few rows whose time is that of reading the weight once: y = x W^T for at most
// kMaxStreamedRows rows of x, W in 16 bits as it lies in memory.
//
// How: a CTA that stays takes an even share of W's rows, eight at a time (a tile). Sixteen warps
// each own a sixteenth of W's columns: x's part lies in a warp's registers, and W streams through
// rings of shared memory that every thread fills and reads for itself, 128 KiB in flight on an SM.
// One more warp adds the sixteen sums of a tile in order and writes y. Weights do not depend on
// what ran before: a CTA fills its rings before it waits for its predecessor.
//
// Gated (LinearProduct::is_gated): tiles of gates and of ups take turns, and the last warp writes
// silu(gate) * up of both rounded as they would have been written.
//
// Bits: of a row of y they follow from the row of x and the shape alone. A sum is taken by
// multiply-adds of m16n8k16 along a warp's columns, then over warps, then over chunks of columns
// (as many as registers hold of x), each in ascending order.
//
// Thread: the backend's. Ownership: none. Failure: a shape that StreamsWeight refuses is a CHECK.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/linear_plans.h"

namespace augur::kernels {

// Rows of x in a warp's registers: one tile of the tensor cores.
inline constexpr int kMaxStreamedRows = 16;

// Whether StreamedLinear takes the shape on so many SMs: 16-bit types, columns that come out even
// over warps, and, where there are several chunks of them, few rows of W.
bool StreamsWeight(const LinearShape& shape, int sms);

// Whether it takes the shape as gates and ups (LinearProduct::is_gated): those with one chunk of
// columns, halves of whole pairs.
bool StreamsGated(const LinearShape& shape, int sms);

// product.rows is at most kMaxStreamedRows. sms: CTAs, one on each, at most.
void StreamedLinear(const LinearProduct& product, int sms, cudaStream_t stream);

}  // namespace augur::kernels
