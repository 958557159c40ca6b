// How keys and values lie in memory. A block is 64 consecutive tokens of one sequence; a page is
// one block's share for one (layer, kv head):
//
//   page:  [K 64 x head_dim][V 64 x head_dim]   contiguous, dtype elements, token-major
//
// Ops take pages by address, wherever they lie. Bytes of tokens not yet written are arbitrary (they
// may be NaN patterns): readers must not let them reach a result.
#pragma once

namespace augur::kernels {

inline constexpr int kBlockTokens = 64;

}  // namespace augur::kernels
