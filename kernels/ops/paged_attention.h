#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/dtype.h"
#include "kernels/kv_page.h"
#include "kernels/ops/phase.h"
#include "kernels/ops/segment.h"

namespace augur::kernels {

// Attention of every row over a list of pages per (segment, kv head), causal: out = softmax(scale *
// q K^T + bias) V over the tokens of the listed blocks up to the row's own position, query head h
// reading kv head h / (num_q_heads / num_kv_heads).
//
// A list's entries are walked in order (ascending block ids) with one online-softmax update an
// entry; every kAttentionGroupBlocks entries form a group with a state of its own, and groups merge
// in ascending order. Work may be split only at group edges, so a row's bits depend on its list
// alone: not on chunking, batch, threads or where the pages lie.
inline constexpr int kAttentionGroupBlocks = 16;

struct AttentionSegment {
  Segment rows;  // num_rows 0: the segment is left out
  // [num_kv_heads][list_stride]: page of each entry, [K 64 x head_dim][V 64 x head_dim] of dtype.
  const std::byte* const* pages = nullptr;
  // [num_kv_heads][list_stride]: block of each entry, ascending. Null: entry e is block e, and a
  // row's list ends with its own block.
  const int32_t* blocks = nullptr;
  const int32_t* counts = nullptr;  // [num_kv_heads] entries; read when blocks are given
  // [num_kv_heads][list_stride]: 64 floats an entry, added to the scaled scores. Null: none.
  const float* const* biases = nullptr;
  int list_stride = 0;
  // Without blocks, and with many rows: each row's own blocks among those listed, ascending, the
  // row's own block the last; as SelectBlocks leaves them, by absolute row: [rows of the
  // call][num_kv_heads][choice_stride], [rows of the call][num_kv_heads]. Null: all up to its own.
  // Biases are then those of each block, as pages are. On the CPU a row's bits are those that it
  // has as a segment of one row with these blocks; a device rounds both differently, and there too
  // they depend on the row's own choice alone.
  const int32_t* choices = nullptr;
  const int32_t* choice_counts = nullptr;
  int choice_stride = 0;
};

struct PagedAttentionParams {
  const float* q = nullptr;  // [rows, num_q_heads * head_dim], rows q_stride apart, already rotated
  void* out = nullptr;       // [rows, num_q_heads * head_dim] of out_dtype, dense
  const AttentionSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int rows = 0;  // that q and out have
  int q_stride = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  DType dtype = DType::kF32;      // of the pages
  float scale = 1.0f;             // usually 1 / sqrt(head_dim)
  DType out_dtype = DType::kF32;  // the CPU's: kF32
  Phase phase = Phase::kPrefill;  // kDecode: every segment has one row at most
  // Entries of the longest list, at most: what the host knows where it cannot read the segments.
  int max_entries = std::numeric_limits<int>::max();
  // Some segment has biases, some has blocks, some has choices: likewise what the host knows where
  // it cannot read the segments. There they must be set when it is so, and choose the kernel: set
  // alike for all calls of a policy, they do not make a row's bits depend on its company. The CPU
  // looks at the segments instead. On a device a call with has_choices has choices in every segment
  // with rows, no blocks, phase kPrefill; lists with choices never pass by in several calls.
  bool has_biases = false;
  bool has_blocks = false;
  bool has_choices = false;
  // Added to every segment's `pages`, and to its `biases`, in entries: lists of several layers that
  // lie behind each other share their segments.
  int64_t pages_offset = 0;
  int64_t biases_offset = 0;

  // A long list may pass by in several calls, first_entry rising from 0 and each call going on
  // where the last one ended (both are multiples of kAttentionGroupBlocks): then pages, blocks and
  // biases hold entries [first_entry, end_entry) only, counts still tell the whole list, and
  // `states` keeps what the rows have gathered. A row's `out` is written by the call that holds its
  // last entry (and again, the same, by later ones: a segment whose list has passed by may be left
  // out).
  int first_entry = 0;
  int end_entry = std::numeric_limits<int>::max();
  float* states = nullptr;  // [rows][num_q_heads][AttentionStateFloats(head_dim)]; null: one call
};

// Floats that one (row, query head) keeps in PagedAttentionParams::states.
constexpr int AttentionStateFloats(int head_dim) { return (head_dim + 15) / 16 * 16 + 16; }

}  // namespace augur::kernels
