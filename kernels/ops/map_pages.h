#pragma once
#include <cstddef>
#include <cstdint>

namespace augur::kernels {

// Entry `block` of the lists in row `table` leads to frame `frame`.
struct MappedBlock {
  int32_t table = 0;
  int32_t block = 0;  // or slot, or page of compressed keys: what the lists are of
  int32_t frame = 0;  // -1: nothing to write
  int32_t layer_shift = 0;
  int32_t byte_shift = 0;  // from the page's beginning
};

// Writes lists of pages: for every layer of [first_layer, end_layer) and kv head
//   lists[((table * num_layers + layer) * num_kv_heads + head) * max_blocks + block] =
//       pool + ((frame * num_layers + layer + layer_shift) * num_kv_heads + head) * page_bytes +
//       byte_shift
// Two entries never name the same (table, block).
struct MapPagesParams {
  const MappedBlock* mapped = nullptr;  // [num_mapped]
  int num_mapped = 0;
  std::byte* pool = nullptr;    // [frames][num_layers][num_kv_heads] pages
  std::byte** lists = nullptr;  // [tables][num_layers][num_kv_heads][max_blocks]
  size_t page_bytes = 0;
  int num_layers = 0;
  int first_layer = 0;
  int end_layer = 0;
  int num_kv_heads = 0;
  int max_blocks = 0;
};

}  // namespace augur::kernels
