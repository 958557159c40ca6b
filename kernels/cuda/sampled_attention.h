// Sampled attention of single rows on a device, for kProportional, kFlash and kShared: kernels that
// follow each other on one stream and leave what the next one needs in scratch. At head dims 64 and
// 128 of 16 bits keys go by bulk copies to tensor cores (sampled_pages.h, decode_scores.h), at
// other shapes by plain loops.
//
// kShared, where keys are streamed, is one pass over them (sampled_shared.cu):
//
//   anchors  scores of each list's anchor, from which its normalisers are predicted
//   stream   all keys once: scores, rates under the predictions, draws, the drawn rows of V
//   merge    the runs' sums under the exact normalisers; counts and the next step's state
//
// All else keeps the scores, since what a tile is drawn depends on all of them:
//
//   scores   all keys once; scores are kept, and each tile's largest one and sum of integer weights
//            (value_weights.h)
//   draws    a CTA a query head: masses of tiles, their running sum, boundaries
//   gather   a CTA a chunk of a list: tiles that a head draws from, the drawn rows of V, their sums
//   merge    the chunks' sums, and counts
//
// What is drawn follows from a list's own scores alone, and every float sum has an order that
// follows from its own length: a row's bits do not depend on the batch or the device.
//
// Thread: as Backend. Ownership: scratch, made at start. Failure: a shape that the host can see is
// wrong is a CHECK; a list longer than max_entries stops the kernel, which is a broken device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/ops/sampled_attention.h"

namespace augur::kernels {

class SampledDecode {
 public:
  // For num_sms; scratch of kSampledScratchBytes.
  explicit SampledDecode(int num_sms);
  ~SampledDecode();
  SampledDecode(const SampledDecode&) = delete;
  SampledDecode& operator=(const SampledDecode&) = delete;

  void Run(const SampledAttentionParams& params, cudaStream_t stream);

 private:
  const int num_sms_;
  std::byte* scratch_ = nullptr;
  int* runs_taken_ = nullptr;  // SampledCall's
};

// A launch takes num_q_heads * max_entries * 276 bytes a segment and the sums of at most 64 chunks;
// calls that need more are run some segments at a time. One segment must fit: a million tokens of
// 32 query heads do.
inline constexpr size_t kSampledScratchBytes = size_t{192} << 20;

}  // namespace augur::kernels
