// Selection of many rows, for Phase::kPrefill, on tensor cores: products of packed rows (tokens by
// heads) with windows, pooled to blocks in scratch, some rows at a time, then a warp chooses for
// each (row, kv head). A softmax takes two walks over the keys: one for every row's largest score
// and sum, one for the sums over heads. A row's bits follow from its position, q and keys alone: it
// has its own lines of every product, and places are folded in fixed lanes and ranges.
//
// Products are of q in two parts of the keys' type, good to 2^-17 of the magnitudes.
//
// Thread: as Backend; calls of one object run one after the other (one stream). Ownership: the
// scratch, made at start. Failure: as decode_selection.h.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/ops/select_blocks.h"

namespace augur::kernels {

class PrefillSelection {
 public:
  explicit PrefillSelection(size_t scratch_bytes = size_t{64} << 20);
  ~PrefillSelection();
  PrefillSelection(const PrefillSelection&) = delete;
  PrefillSelection& operator=(const PrefillSelection&) = delete;

  // bf16 and fp16; compressed keys of 64, 96 or 128.
  static bool Serves(const SelectBlocksParams& params);
  void Run(const SelectBlocksParams& params, cudaStream_t stream);

 private:
  const size_t scratch_bytes_;
  std::byte* scratch_ = nullptr;
};

}  // namespace augur::kernels
