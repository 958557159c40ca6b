// How KV pages lie in a pool. A block is 64 consecutive tokens of one sequence in every layer and
// kv head; a page is one block's share for one (layer, kv head):
//
//   page:  [K 64 x head_dim][V 64 x head_dim]   contiguous, dtype elements, token-major
//   pool:  page index = (block * num_layers + layer) * num_kv_heads + kv_head
//
// Plain data, shared by every backend; owns nothing. Bytes of tokens not yet written are arbitrary
// (they may be NaN patterns): readers must not let them reach a result.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace augur::kernels {

inline constexpr int kBlockTokens = 64;

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

}  // namespace augur::kernels
