// Pools for tests, filled with a pattern that is no record.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "memory/kv_pools.h"

namespace augur::tests {

class TestPools {
 public:
  TestPools(const memory::KvLayout& layout, int num_frames, int num_host_blocks,
            int num_staging_pages) {
    const size_t pages = size_t(num_host_blocks) * layout.num_groups();
    device_.resize(num_frames * layout.frame_bytes(), kPattern);
    host_.resize(pages * layout.host_page_bytes(), kPattern);
    host_keys_.resize(pages * layout.key_bytes, kPattern);
    host_biases_.resize(pages * layout.bias_bytes, kPattern);
    host_sums_.resize(pages * layout.sum_bytes, kPattern);
    staging_.resize(num_staging_pages * layout.page_bytes, kPattern);
    pools_ = {.layout = layout,
              .num_frames = num_frames,
              .num_host_blocks = num_host_blocks,
              .num_staging_pages = num_staging_pages,
              .device = device_.data(),
              .host = host_.data(),
              .host_keys = host_keys_.data(),
              .host_biases = host_biases_.data(),
              .host_sums = host_sums_.data(),
              .staging = staging_.data()};
  }
  TestPools(const TestPools&) = delete;
  TestPools& operator=(const TestPools&) = delete;

  const memory::KvPools& pools() const { return pools_; }

 private:
  static constexpr std::byte kPattern{0xA5};

  std::vector<std::byte> device_;
  std::vector<std::byte> host_;
  std::vector<std::byte> host_keys_;
  std::vector<std::byte> host_biases_;
  std::vector<std::byte> host_sums_;
  std::vector<std::byte> staging_;
  memory::KvPools pools_;
};

}  // namespace augur::tests
