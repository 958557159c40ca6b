#include <climits>

#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/plain_attention.h"
#include "kernels/cuda/prefill_attention.h"
#include "kernels/ops/paged_attention.h"

namespace augur::kernels {
namespace {

// As the CPU's, but for what only the device can read.
void CheckParams(const PagedAttentionParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.num_segments >= 0 && params.max_entries >= 0);
  AUGUR_CHECK(params.num_kv_heads > 0 && params.num_q_heads > 0 &&
              params.num_q_heads % params.num_kv_heads == 0);
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim % 2 == 0 &&
              params.head_dim <= kPlainAttentionMaxHeadDim);
  AUGUR_CHECK(params.q_stride >= params.num_q_heads * params.head_dim);
  AUGUR_CHECK(params.first_entry >= 0 && params.first_entry % kAttentionGroupBlocks == 0 &&
              params.end_entry > params.first_entry);
  const bool is_whole = params.first_entry == 0 && params.end_entry == INT_MAX;
  AUGUR_CHECK(is_whole || params.states != nullptr);
  AUGUR_CHECK(params.end_entry == INT_MAX || params.end_entry % kAttentionGroupBlocks == 0);
  AUGUR_CHECK(!params.has_choices ||
              (params.phase == Phase::kPrefill && !params.has_blocks && params.states == nullptr));
}

}  // namespace

// Everything that chooses here must be the same for all calls that a row could come in, as the
// kernels round differently: types, shapes, the row's phase, flags that a policy sets alike, and
// whether its lists pass by in several calls.
void CudaBackend::PagedAttention(const PagedAttentionParams& params) {
  CheckParams(params);
  if (params.rows == 0 || params.num_segments == 0) return;
  const bool is_whole = params.states == nullptr;
  if (params.phase == Phase::kDecode) {
    if (is_whole && !params.has_biases && DecodeAttention::Serves(params)) {
      return decode_attention_->Run(params, stream_);
    }
  } else if (is_whole && !params.has_biases && !params.has_blocks &&
             PrefillAttention::Serves(params)) {
    return prefill_attention_->Run(params, stream_);
  }
  RunPlainAttention(params, stream_);
}

}  // namespace augur::kernels
