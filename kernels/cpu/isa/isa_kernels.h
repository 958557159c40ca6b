// The inner loops that exist once per instruction set: a table of plain functions, filled by
// generic.cc, avx2.cc and avx512.cc from the same bodies (*_body.h). One table is chosen when the
// backend is made.
//
// All bodies say Fma() where a product and a sum are rounded once and fix the order of every sum,
// so the three tables give the same bits.
//
// Everything here is plain data and pointers: what these files include must not define inline
// functions or templates with external linkage, or the linker may keep their AVX-512 copy for
// everyone (tests/kernels/isa_linkage_test.cmake looks for such symbols).
//
// Thread: functions are pure but for the memory they are given. Failure: none; shapes are checked
// above.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops/paged_attention.h"

namespace augur::kernels {

enum class CpuIsa;  // kernels/backend.h

// Rows of x times some panels of a weight. A panel is panel_columns outputs of all inputs,
// [in_features][panel_columns]; float32, or bf16 with columns c and c + panel_columns / 2 as the
// low and high half of 32-bit lane c. The last panel of a weight is filled up with zeros.
struct LinearBlock {
  const float* x = nullptr;      // [rows, in_features], rows x_stride apart
  const void* panels = nullptr;  // of the first column
  const float* bias = nullptr;   // [columns], may be null
  float* y = nullptr;            // [rows, columns], rows y_stride apart
  float* scratch = nullptr;      // kLinearScratchFloats
  size_t x_stride = 0;
  size_t y_stride = 0;
  int rows = 0;     // 1 to kLinearMaxRows
  int columns = 0;  // of y; the panels are ceil(columns / panel_columns)
  int in_features = 0;
  bool is_bf16 = false;
  bool accumulate = false;
};

// 96 = 8 tiles of 12 rows (AVX-512) = 16 of 6 (AVX2): a multiple of both, and with 320 to 4096
// inputs its rows stay in a 2 MiB second-level cache while the panels stream by.
inline constexpr int kLinearMaxRows = 96;
// Inputs taken at once when a panel is widened to float: 128 x 32 columns are 16 KiB, which with
// the rows of a tile (6 KiB) and the panel passing by fit any first-level cache. Measured at 96
// rows: 256 inputs 0.65 of the FMA peak, 192 and 128 0.98, 64 0.94.
inline constexpr int kLinearDepth = 128;
inline constexpr int kMaxPanelColumns = 32;
inline constexpr int kLinearScratchFloats =
    kLinearDepth * kMaxPanelColumns + kLinearMaxRows * kMaxPanelColumns;

// The entries of one token of a span: as in AttentionSpan, from entry 0 on. by_block: pages and
// biases hold every block of the sequence, and an entry's are those of its block.
struct AttentionTokenList {
  const std::byte* const* pages = nullptr;
  const int32_t* blocks = nullptr;
  const float* const* biases = nullptr;
  int num_entries = 0;  // all of them reach the token
  bool by_block = false;
};

// A part of paged attention: query rows [row_begin, row_end) of one segment and kv head over groups
// [group_begin, group_end) of the list's entries. Query row i is head i % group_heads of the
// segment's token i / group_heads.
struct AttentionSpan {
  const float* q = nullptr;  // head 0 of the kv head's group, the segment's token 0
  float* out = nullptr;      // likewise
  // Entry first_entry comes first in each of these.
  const std::byte* const* pages = nullptr;
  const int32_t* blocks = nullptr;            // null: entry e is block e
  const float* const* biases = nullptr;       // may be null
  const AttentionTokenList* lists = nullptr;  // [tokens], for attend_lists
  float* states = nullptr;    // as `out`, of AttentionStateFloats a head; null: all in one call
  float* partials = nullptr;  // [group_end - group_begin][rows] states: takes the groups apart
  float* scratch = nullptr;   // AttentionScratchFloats(head_dim)
  size_t q_stride = 0;        // floats between tokens
  size_t out_stride = 0;
  size_t states_stride = 0;
  int first_position = 0;  // of token 0
  int group_heads = 0;
  int row_begin = 0;
  int row_end = 0;      // at most kAttentionMaxRows more
  int first_entry = 0;  // a multiple of the group's entries
  int end_entry = 0;    // all of [first_entry, end_entry) reach the last row
  int group_begin = 0;
  int group_end = 0;
  int finished_block = 0;  // rows in blocks up to this one have their last entry in this call
  int head_dim = 0;
  DType dtype{};
  float scale = 1.0f;
};

// Query rows of one span: a block's keys are transposed and widened once for all of them, so more
// rows make that cheaper, while their state (3 x 128 x head_dim floats) should stay in the
// second-level cache.
inline constexpr int kAttentionMaxRows = 128;
inline constexpr int kMaxHeadDim = 256;

// Rows of a state are padded to whole vectors of the widest ISA, whatever the ISA, to keep one
// layout.
constexpr int PaddedHeadDim(int head_dim) { return (head_dim + 15) / 16 * 16; }
// One row's state over some groups (AttentionStateFloats): the weighted sum of values
// [PaddedHeadDim], then the largest score (in powers of two), the sum of weights, and padding to a
// whole cache line.
// Keys of a block transposed and widened, values widened, queries scaled, two states a row.
constexpr size_t AttentionScratchFloats(int head_dim) {
  return size_t{2} * 64 * PaddedHeadDim(head_dim) +
         size_t{kAttentionMaxRows} * PaddedHeadDim(head_dim) +
         size_t{2} * kAttentionMaxRows * AttentionStateFloats(head_dim);
}

// Tokens of one segment and kv head, whose heads go through the keys together: span.block_scores
// takes the scores of blocks [first_block, end_block) for each token. To the last token every key
// that these blocks pool is visible, but for the first place of compressed keys; what an earlier
// token gets for blocks with keys that it does not see means nothing.
struct SelectSpan {
  const float* q = nullptr;                 // head 0 of the kv head's group, token 0
  const std::byte* const* pages = nullptr;  // of keys, [keys_per_page][key_dim]
  float* scores = nullptr;        // [tiles of 64 places][tokens x heads][64], 64-byte aligned
  float* block_scores = nullptr;  // [tokens][block_stride]
  float* scratch = nullptr;       // SelectScratchFloats(key_dim)
  size_t q_stride = 0;            // floats between tokens
  size_t block_stride = 0;
  int keys_per_page = 0;
  int keys_per_block = 0;
  int num_tokens = 0;  // num_tokens * heads: at most kSelectMaxRows
  int heads = 0;
  int key_dim = 0;
  int first_position = 0;  // of token 0
  const int32_t* positions = nullptr;  // [tokens], ascending; null: one after the other
  int first_block = 0;
  int end_block = 0;
  bool is_softmax = false;
  DType dtype{};
  float scale = 1.0f;
};

inline constexpr int kSelectMaxRows = 128;
// Keys of a tile transposed and widened, queries.
constexpr size_t SelectScratchFloats(int key_dim) {
  return size_t(2 * 64 + kSelectMaxRows) * PaddedHeadDim(key_dim);
}

// Keys of entries [begin, end) of one (row, kv head) of sampled attention.
struct SampledScoreSpan {
  const float* q = nullptr;  // [heads][head_dim]
  const std::byte* const* keys = nullptr;
  const int32_t* blocks = nullptr;
  const float* const* biases = nullptr;  // may be null
  float* scores = nullptr;   // [heads][scores_stride], in powers of two; entry e's at 64 e
  float* scratch = nullptr;  // SampledScratchFloats
  size_t scores_stride = 0;
  int begin = 0;
  int end = 0;
  int position = 0;
  int heads = 0;
  int head_dim = 0;
  DType dtype{};
  float scale = 1.0f;
};

// Keys of a block transposed and widened, queries scaled.
constexpr size_t SampledScratchFloats(int heads, int head_dim) {
  return size_t(2 * 64 + heads) * PaddedHeadDim(head_dim);
}

// Drawn rows of one entry, for the heads of its group.
struct ValueGather {
  const std::byte* values = nullptr;  // [64][head_dim] of dtype
  const int32_t* tokens = nullptr;    // [count], ascending
  const float* weights = nullptr;     // [count][heads]; a row of weight 0 is left out for the head
  float* sums = nullptr;              // [heads], sums_stride apart
  size_t sums_stride = 0;             // at least PaddedHeadDim
  int count = 0;
  int heads = 0;
  int head_dim = 0;
  DType dtype{};
};

struct IsaKernels {
  const char* name;
  int panel_columns;

  void (*linear)(const LinearBlock& block);
  void (*attend)(const AttentionSpan& span);
  // A span of tokens with a list each, all groups, in one call. A page that several lists hold is
  // opened once for all of them.
  void (*attend_lists)(const AttentionSpan& span);
  // The partial states of a span's rows over all its groups, merged into span.states and span.out.
  void (*merge_partials)(const AttentionSpan& span);

  // Two runs of 16 consecutive keys -> their mean at `out`, rounded to dtype (compress_keys.h).
  void (*compress_window)(DType dtype, const void* first, const void* second, void* out,
                          int head_dim);
  void (*score_blocks)(const SelectSpan& span);

  // Sampled attention: sampled_body.h.
  void (*score_entries)(const SampledScoreSpan& span);
  float (*tile_max)(const float* scores);
  uint64_t (*tile_weights)(const float* scores, float max, uint32_t* weights);
  void (*shared_rates)(const float* scores, size_t stride, const float* log_norms, int heads,
                       float* rates);
  void (*gather_values)(const ValueGather& gather);
  void (*add_value_rows)(DType dtype, const void* rows, int count, int head_dim, float* sum);

  void (*rms_norm)(const float* x, const float* weight, float* out, int hidden, float epsilon);
  void (*gated_silu)(const float* gate, const float* up, float* out, int width);
  // Rotates one head in place: elements i and i + half by angle i.
  void (*rotate)(float* head, const float* cos, const float* sin, int half);
  void (*widen)(DType from, const void* source, float* out, int count);
  void (*narrow)(DType to, const float* source, void* out, int count);
  // The largest of `count` logits; a NaN among them gives NaN.
  float (*max_or_nan)(const float* logits, int count);
  // out[i] = exp((logits[i] - max) / temperature), logits <= max.
  void (*softmax_weights)(const float* logits, float max, float temperature, float* out, int count);

  // For fma_peak.h. Number of floating-point operations done by `rounds` rounds; the sum of a
  // memory range.
  double (*fma_rounds)(int64_t rounds);
  float (*read_floats)(const float* data, size_t count);
};

const IsaKernels& GenericKernels();
const IsaKernels& Avx2Kernels();
const IsaKernels& Avx512Kernels();

}  // namespace augur::kernels
