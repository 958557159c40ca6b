#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/dtype.h"
#include "kernels/ops/phase.h"
#include "kernels/ops/segment.h"

namespace augur::kernels {

// How many blocks a token attends to. The first `init` blocks and the last `local` ones, the
// token's own among them, are always chosen; scores choose the others.
struct SelectionBudget {
  int top_k = 0;  // all blocks, forced ones included; at least init + local
  int init = 1;
  int local = 2;  // at least 2: then no choice hangs on a window that ends at the token itself
};

enum class ScoreRule {
  // Per query head the softmax over all visible keys, summed over the heads of the group
  // (InfLLM-V2 stage 1, exact normaliser).
  kSoftmaxSum,
  // The plain product with one vector a kv head (SparDA Eq. 4; InfiniGen's summed heads).
  kProduct,
};

struct SelectSegment {
  Segment rows;  // num_rows 0: the segment is left out
  SelectionBudget budget;
  // [num_kv_heads][key_page_stride]: pages of scoring keys, [keys_per_page][key_dim] of dtype.
  const std::byte* const* key_pages = nullptr;
  int key_page_stride = 0;
  // NOSA's second stage, null elsewhere: [num_kv_heads][key_page_stride] pages of compressed
  // eviction biases, float32 [128] (places as of compressed keys, pooled and forced alike);
  // query_top_k blocks come from the query's scores, the others of budget.top_k from the pooled
  // biases.
  const float* const* eviction_pages = nullptr;
  int query_top_k = 0;
};

// Scores keys, pools them to blocks and chooses top_k blocks for every (row, kv head), ascending.
//
// Keys: keys_per_block is 4 for compressed keys (window j lies at place j + 1 of its page row, what
// the first place of all holds never counts; visible: CompleteWindows(position)), 64 for one key a
// token (token t at place t; visible: t < position). Block b's score is the largest of keys
// [keys_per_block b - 1, keys_per_block (b + 1)) that are visible, minus infinity when none is.
// Equal scores go to the lower block. When top_k reaches the number of blocks all are chosen and
// nothing is read. A row depends on its own q and keys alone.
struct SelectBlocksParams {
  const float* q = nullptr;  // [rows, q_stride]: heads_per_group heads of key_dim for each kv head
  const SelectSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int q_stride = 0;
  int num_kv_heads = 0;
  int heads_per_group = 0;  // 1 with kProduct
  int key_dim = 0;
  int keys_per_block = 0;   // 4 or 64
  int keys_per_page = 128;  // a multiple of 64; 128 where eviction_pages are given
  ScoreRule rule = ScoreRule::kSoftmaxSum;
  float scale = 1.0f;         // on the products, with kSoftmaxSum
  DType dtype = DType::kF32;  // of the keys
  int32_t* blocks = nullptr;  // [rows][num_kv_heads][selection_stride]
  int32_t* counts = nullptr;  // [rows][num_kv_heads]
  int selection_stride = 0;   // at least every segment's top_k
  // What the host knows where it cannot read the segments; the CPU looks at these instead.
  Phase phase = Phase::kPrefill;                     // kDecode: every segment has one row at most
  int rows = 0;                                      // that q has: no segment's row is behind them
  int max_blocks = std::numeric_limits<int>::max();  // up to any row's own, at most
  // Added to every segment's `key_pages` (and `eviction_pages`), in entries: lists of several
  // layers that lie behind each other share their segments.
  int64_t key_pages_offset = 0;
};

}  // namespace augur::kernels
