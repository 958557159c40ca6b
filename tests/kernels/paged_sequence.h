// Sequences in a paged pool for tests: rows of qkv, shuffled block tables, and pages whose
// unwritten bytes are NaN patterns.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/backend.h"
#include "kernels/kv_page.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {

// A pool of pages by block, layer and kv head.
struct PagedKv {
  std::byte* pool = nullptr;  // [num_blocks * num_layers * num_kv_heads] pages
  DType dtype = DType::kF32;
  int num_blocks = 0;
  int num_layers = 0;
  int num_kv_heads = 0;
  int head_dim = 0;

  size_t page_bytes() const { return size_t{2} * kBlockTokens * head_dim * BytesOf(dtype); }
  size_t block_bytes() const { return page_bytes() * num_layers * num_kv_heads; }
  std::byte* page(int block, int layer, int kv_head) const {
    const size_t index = (size_t(block) * num_layers + layer) * num_kv_heads + kv_head;
    return pool + index * page_bytes();
  }
};

struct HeadShape {
  int num_q_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 16;
  DType dtype = DType::kF32;
  int num_layers = 2;
  int layer = 1;

  int row_floats() const { return (num_q_heads + 2 * num_kv_heads) * head_dim; }
  int out_floats() const { return num_q_heads * head_dim; }
};

// A pool with room for `num_blocks`, every byte 0xff: a NaN in each of the three types.
class PagedPool {
 public:
  PagedPool(const HeadShape& shape, int num_blocks) {
    kv_.dtype = shape.dtype;
    kv_.num_blocks = num_blocks;
    kv_.num_layers = shape.num_layers;
    kv_.num_kv_heads = shape.num_kv_heads;
    kv_.head_dim = shape.head_dim;
    bytes_.assign(kv_.block_bytes() * num_blocks, std::byte{0xff});
    kv_.pool = bytes_.data();
    free_.resize(num_blocks);
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), std::mt19937(7));
  }

  const PagedKv& kv() const { return kv_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  std::vector<int32_t> TakeBlocks(int tokens) {
    std::vector<int32_t> table;
    for (int i = 0; i < (tokens + kBlockTokens - 1) / kBlockTokens; ++i) {
      table.push_back(free_.back());
      free_.pop_back();
    }
    return table;
  }

 private:
  PagedKv kv_;
  std::vector<std::byte> bytes_;
  std::vector<int32_t> free_;
};

struct RopeTable {
  RopeTable(int max_position, int head_dim) {
    for (int p = 0; p < max_position; ++p) {
      for (int i = 0; i < head_dim / 2; ++i) {
        const double angle = p / std::pow(10000.0, 2.0 * i / head_dim);
        cos.push_back(static_cast<float>(std::cos(angle)));
        sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  std::vector<float> cos, sin;
};

// Some rows of one sequence: its tokens [first_position, first_position + num_rows).
struct Piece {
  const std::vector<float>* qkv = nullptr;  // of the whole sequence, unrotated
  const std::vector<int32_t>* blocks = nullptr;
  int first_position = 0;
  int num_rows = 0;

  int first_block() const { return first_position / kBlockTokens; }
  int end_block() const { return (first_position + num_rows - 1) / kBlockTokens + 1; }
};

// Pages of a sequence's blocks [first, end), [blocks][num_kv_heads]. Lists are of just the length
// that an op may read: a sanitizer sees one entry too many.
inline std::vector<std::byte*> PagesByBlock(const HeadShape& shape, const PagedKv& kv,
                                            const std::vector<int32_t>& table, int first, int end) {
  std::vector<std::byte*> pages;
  for (int b = first; b < end; ++b) {
    for (int h = 0; h < kv.num_kv_heads; ++h) {
      pages.push_back(kv.page(table[b], shape.layer, h));
    }
  }
  return pages;
}

// Likewise [num_kv_heads][blocks], of blocks [0, end).
inline std::vector<const std::byte*> PagesByHead(const HeadShape& shape, const PagedKv& kv,
                                                 const std::vector<int32_t>& table, int end) {
  std::vector<const std::byte*> pages;
  for (int h = 0; h < kv.num_kv_heads; ++h) {
    for (int b = 0; b < end; ++b) pages.push_back(kv.page(table[b], shape.layer, h));
  }
  return pages;
}

// The rows of some pieces one after the other, rotated, their k and v in the pages.
inline std::vector<float> AppendPieces(Backend& backend, const HeadShape& shape, const PagedKv& kv,
                                       const RopeTable& rope, const std::vector<Piece>& pieces) {
  std::vector<float> qkv;
  std::vector<std::vector<std::byte*>> pages;
  std::vector<AppendSegment> segments;
  int rows = 0;
  for (const Piece& piece : pieces) {
    const auto begin = piece.qkv->begin() + size_t(piece.first_position) * shape.row_floats();
    qkv.insert(qkv.end(), begin, begin + size_t(piece.num_rows) * shape.row_floats());
    pages.push_back(PagesByBlock(shape, kv, *piece.blocks, piece.first_block(), piece.end_block()));
    segments.push_back({{rows, piece.num_rows, piece.first_position}, pages.back().data()});
    rows += piece.num_rows;
  }
  RopeAppendParams append;
  append.qkv = qkv.data();
  append.segments = segments.data();
  append.num_segments = static_cast<int>(segments.size());
  append.rows = rows;
  append.row_stride = shape.row_floats();
  append.num_q_heads = shape.num_q_heads;
  append.num_kv_heads = shape.num_kv_heads;
  append.head_dim = shape.head_dim;
  append.dtype = shape.dtype;
  append.cos = rope.cos.data();
  append.sin = rope.sin.data();
  backend.RopeAppend(append);
  return qkv;
}

// Attention's parameters but for its segments; out is [rows][out_floats].
inline PagedAttentionParams AttentionOver(const HeadShape& shape, const std::vector<float>& qkv,
                                          std::vector<float>& out) {
  PagedAttentionParams attend;
  attend.q = qkv.data();
  attend.rows = static_cast<int>(qkv.size()) / shape.row_floats();
  out.assign(size_t(attend.rows) * shape.out_floats(), NAN);
  attend.out = out.data();
  attend.q_stride = shape.row_floats();
  attend.num_q_heads = shape.num_q_heads;
  attend.num_kv_heads = shape.num_kv_heads;
  attend.head_dim = shape.head_dim;
  attend.dtype = shape.dtype;
  attend.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  return attend;
}

// One step over some pieces: RopeAppend, then PagedAttention over all blocks. Outputs come piece
// after piece.
inline std::vector<float> RunStep(Backend& backend, const HeadShape& shape, const PagedKv& kv,
                                  const RopeTable& rope, const std::vector<Piece>& pieces) {
  const std::vector<float> qkv = AppendPieces(backend, shape, kv, rope, pieces);
  std::vector<std::vector<const std::byte*>> pages;
  std::vector<AttentionSegment> segments;
  int rows = 0;
  for (const Piece& piece : pieces) {
    pages.push_back(PagesByHead(shape, kv, *piece.blocks, piece.end_block()));
    segments.push_back({.rows = {rows, piece.num_rows, piece.first_position},
                        .pages = pages.back().data(),
                        .list_stride = piece.end_block()});
    rows += piece.num_rows;
  }
  std::vector<float> out;
  PagedAttentionParams attend = AttentionOver(shape, qkv, out);
  attend.segments = segments.data();
  attend.num_segments = static_cast<int>(segments.size());
  backend.PagedAttention(attend);
  backend.Synchronize();
  return out;
}

// A sequence fed in chunks of `chunk` tokens on a pool of its own.
inline std::vector<float> RunChunked(Backend& backend, const HeadShape& shape,
                                     const RopeTable& rope, const std::vector<float>& qkv,
                                     int chunk) {
  const int tokens = static_cast<int>(qkv.size()) / shape.row_floats();
  PagedPool pool(shape, (tokens + kBlockTokens - 1) / kBlockTokens + 3);
  const std::vector<int32_t> blocks = pool.TakeBlocks(tokens);
  std::vector<float> out;
  for (int first = 0; first < tokens; first += chunk) {
    const Piece piece{&qkv, &blocks, first, std::min(chunk, tokens - first)};
    const std::vector<float> part = RunStep(backend, shape, pool.kv(), rope, {piece});
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

}  // namespace augur::kernels
