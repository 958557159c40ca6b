// Attention of single rows over lists of pages, on tensor cores, for Phase::kDecode.
//
// The list of a (row, kv head) is cut into runs of pages. One CTA takes a run for all query heads
// of the kv head, so that K and V are read once, and folds it into the run before where it has that
// one, too (decode_runs.h); partial results go to scratch, and a second kernel folds what remains.
// Where a list is cut and in which order runs are folded follows from its own length alone, so a
// row's bits do not depend on the batch, its place in it, or the device.
//
// Thread: as Backend. Ownership: the scratch for partial results, made at start. Failure: a shape
// that the host can see is wrong is a CHECK; what only the device sees (a segment of several rows,
// biases, a list longer than max_entries) stops the kernel, which is a broken device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/ops/paged_attention.h"

namespace augur::kernels {

struct DecodeAttentionLimits {
  int max_rows =
      0;  // that a call usually has at most; more rows cost a second launch, nothing else
  int num_sms = 0;
  // For partial results, at most. A call takes num_q_heads * MaxRuns(max_entries) * (head_dim + 2)
  // floats a segment, at 32 query heads of 128 and any list up to 64K tokens 1.06 MB; one that
  // needs more is run some segments at a time.
  size_t max_scratch_bytes = size_t{256} << 20;
};

class DecodeAttention {
 public:
  explicit DecodeAttention(const DecodeAttentionLimits& limits);
  ~DecodeAttention();
  DecodeAttention(const DecodeAttention&) = delete;
  DecodeAttention& operator=(const DecodeAttention&) = delete;

  // Page types, head dims and groups that Run serves: bf16 and fp16; 64, 96, 128; up to 16. Lists
  // may be given (AttentionSegment::blocks) or be the whole context; biases and `states` are not
  // served.
  static bool Serves(const PagedAttentionParams& params);
  // q is 8-byte aligned with an even q_stride, out and pages are 16-byte aligned. q and the weights
  // of the softmax are rounded to the pages' type; everything else is float32.
  void Run(const PagedAttentionParams& params, cudaStream_t stream);

 private:
  const DecodeAttentionLimits limits_;
  size_t scratch_bytes_ = 0;
  float* scratch_ = nullptr;
};

}  // namespace augur::kernels
