// Where the bytes of KV lie: the device pool in frames, the host pool in blocks, and the staging
// pages that a prefill chunk works in. Addresses only; see kv_layout.h for the units.
//
// Thread: any; immutable. Ownership: the memory belongs to whoever filled in the pointers (the
// runner, a test, the simulation).
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/kv_layout.h"

namespace augur::memory {

struct KvPools {
  KvLayout layout;
  int num_frames = 0;
  int num_host_blocks = 0;
  int num_staging_pages = 0;
  std::byte* device = nullptr;       // [num_frames][layers][kv heads] pages
  std::byte* host = nullptr;         // [num_host_blocks][layers][kv heads] host pages
  std::byte* host_keys = nullptr;    // [num_host_blocks][layers][kv heads] compressed keys
  std::byte* host_biases = nullptr;  // likewise eviction biases, where the layout has them
  std::byte* host_sums = nullptr;    // likewise sums of values
  std::byte* staging = nullptr;      // [num_staging_pages] pages, on the device
  // Where host pages lie, if the layout has them in fp8; null: it has not.
  const kernels::Fp8Pages* fp8 = nullptr;

  size_t group_index(int block, int layer, int kv_head) const {
    return (size_t(block) * layout.num_layers + layer) * layout.num_kv_heads + kv_head;
  }
  std::byte* device_page(int frame, int layer, int kv_head) const {
    return device + group_index(frame, layer, kv_head) * layout.page_bytes;
  }
  std::byte* host_page(int block, int layer, int kv_head) const {
    return host + group_index(block, layer, kv_head) * layout.host_page_bytes();
  }
  std::byte* host_key(int block, int layer, int kv_head) const {
    return host_keys + group_index(block, layer, kv_head) * layout.key_bytes;
  }
  std::byte* host_sum(int block, int layer, int kv_head) const {
    return host_sums + group_index(block, layer, kv_head) * layout.sum_bytes;
  }
  std::byte* host_bias(int block, int layer, int kv_head) const {
    return host_biases + group_index(block, layer, kv_head) * layout.bias_bytes;
  }
  // For ops, which have no null.
  kernels::Fp8Pages fp8_pages() const { return fp8 == nullptr ? kernels::Fp8Pages{} : *fp8; }
  // All host pages as Fp8Pages has them.
  kernels::Fp8Pages Fp8PagesOfHost() const {
    const size_t bytes = size_t(num_host_blocks) * layout.num_groups() * layout.host_page_bytes();
    return {.begin = host,
            .end = host + bytes,
            .head_dim = layout.head_dim,
            .dtype = layout.fp8_of.value_or(kernels::DType::kF32)};
  }
  std::byte* staging_page(int index) const { return staging + size_t(index) * layout.page_bytes; }
};

}  // namespace augur::memory
