#include "tests/bench/synthetic_keys.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "kernels/fp8_page.h"
#include "kernels/kv_page.h"
#include "kernels/random_weight.h"
#include "tests/bench/bench_memory.h"

namespace augur::bench {
namespace {

// Of which each page takes one: they stay in a core's cache.
constexpr int kVariants = 32;

// Keys of kVariants pages, as the host has them.
std::vector<std::byte> Variants(const memory::KvLayout& layout, kernels::DType dtype, float spread,
                                uint64_t seed) {
  const size_t half = layout.half_host_page_bytes();
  std::vector<std::byte> plain(layout.half_page_bytes()), variants(kVariants * half);
  const size_t element = kernels::BytesOf(dtype);
  const size_t elements = size_t{kernels::kBlockTokens} * layout.head_dim;
  for (int variant = 0; variant < kVariants; ++variant) {
    for (size_t i = 0; i < elements; ++i) {
      StoreNumber(3.0f * spread * kernels::RandomWeight(seed, variant * elements + i), dtype,
                  &plain[i * element]);
    }
    std::byte* const to = variants.data() + variant * half;
    if (layout.fp8_of.has_value()) {
      kernels::PackHalfPage(dtype, layout.head_dim, plain.data(), to);
    } else {
      std::memcpy(to, plain.data(), half);
    }
  }
  return variants;
}

}  // namespace

void FillHostKeys(const memory::KvPools& pools, const memory::SequenceKv& kv, int blocks, int init,
                  int local, kernels::DType dtype, const SyntheticKeys& keys, int threads) {
  const memory::KvLayout& layout = pools.layout;
  const size_t half = layout.half_host_page_bytes();
  const std::vector<std::byte> near = Variants(layout, dtype, keys.near_spread, 1);
  const std::vector<std::byte> far = Variants(layout, dtype, keys.far_spread, 2);
  const auto fill = [&](int first, int end) {
    for (int block = first; block < end; ++block) {
      const bool is_near = block < init || block >= blocks - local;
      const std::vector<std::byte>& variants = is_near ? near : far;
      for (int group = 0; group < layout.num_groups(); ++group) {
        // Odd steps: neighbours in a list differ.
        const int variant = (13 * block + 7 * group) % kVariants;
        std::memcpy(pools.host_page(kv.host_blocks[block], group / layout.num_kv_heads,
                                    group % layout.num_kv_heads),
                    variants.data() + variant * half, half);
      }
    }
  };
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back(fill, blocks * i / threads, blocks * (i + 1) / threads);
  }
  for (std::thread& thread : running) thread.join();
}

}  // namespace augur::bench
