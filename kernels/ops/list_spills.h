#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/ops/page_copy.h"

namespace augur::kernels {

// A complete block of a sequence that shall be written to the host.
struct SpilledBlock {
  int32_t table = 0;  // row of the lists
  int32_t block = 0;
  int32_t host_block = 0;
};

// Lists what spilled blocks have on the device and where it goes, for CopyPages. One entry for each
// block, layer of [first_layer, end_layer) and kv head, in that order:
//   pages[i]: lists[table][layer][head][block] -> host[host_block][layer][head]
//   keys[i]:  the block's part of key_lists[table][layer][head][block / kKeyPageBlocks]
//             -> host_keys[host_block][layer][head]
struct ListSpillsParams {
  const SpilledBlock* blocks = nullptr;  // [num_blocks]
  int num_blocks = 0;
  int num_layers = 0;  // of the lists
  int first_layer = 0;
  int end_layer = 0;
  int num_kv_heads = 0;
  std::byte* const* lists = nullptr;  // [tables][num_layers][num_kv_heads][max_blocks]
  int max_blocks = 0;
  std::byte* host = nullptr;  // [host blocks][num_layers][num_kv_heads] pages
  size_t page_bytes = 0;      // of a page there
  PageCopy* pages = nullptr;  // [num_blocks * layers of the range * num_kv_heads]; null: not wanted
  std::byte* const* key_lists = nullptr;  // [tables][num_layers][num_kv_heads][max_key_pages]
  int max_key_pages = 0;
  std::byte* host_keys = nullptr;  // [host blocks][num_layers][num_kv_heads], key_bytes each
  size_t key_bytes = 0;            // of one block, layer and kv head
  PageCopy* keys = nullptr;        // as many as pages; null: not wanted
};

}  // namespace augur::kernels
