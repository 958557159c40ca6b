#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/decode_selection.h"
#include "kernels/cuda/prefill_selection.h"
#include "kernels/cuda/select_row.h"

namespace augur::kernels {

// A shape is always served by the same algorithm of its phase. Pages are 16-byte aligned.
void CudaBackend::SelectBlocks(const SelectBlocksParams& params) {
  AUGUR_CHECK(params.num_kv_heads > 0 && params.heads_per_group > 0 &&
              params.heads_per_group <= kSelectMaxHeads);
  AUGUR_CHECK(params.rule != ScoreRule::kProduct || params.heads_per_group == 1);
  AUGUR_CHECK(params.key_dim > 0 && params.key_dim % 2 == 0 && params.key_dim <= 256);
  AUGUR_CHECK(params.q_stride >= params.num_kv_heads * params.heads_per_group * params.key_dim);
  AUGUR_CHECK(params.keys_per_block == kBlockWindows || params.keys_per_block == kBlockTokens);
  AUGUR_CHECK(params.keys_per_page > 0 && params.keys_per_page % 64 == 0);
  AUGUR_CHECK(params.rows >= 0 && params.num_segments >= 0);
  if (params.num_segments == 0) return;
  if (params.phase == Phase::kPrefill && PrefillSelection::Serves(params)) {
    AUGUR_CHECK(prefill_selection_ != nullptr);  // the main order and the lane of selection
    prefill_selection_->Run(params, stream_);
  } else {
    SelectRowByRow(params, stream_);
  }
}

}  // namespace augur::kernels
