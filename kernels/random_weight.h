// Weights of checkpoints that have a shape but no file: the same values on every backend.
//
// Thread: pure. Failure: none.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace augur::kernels {

// Element `index` of the matrix named by `seed`: 24 random bits spread evenly over [-1, 1), by the
// finaliser of MurmurHash3 (64 bits), of which every input bit moves every output bit.
AUGUR_HOST_DEVICE constexpr float RandomWeight(uint64_t seed, uint64_t index) {
  uint64_t bits = seed * 0x9E3779B97F4A7C15u + index;
  bits = (bits ^ (bits >> 33)) * 0xFF51AFD7ED558CCDu;
  bits = (bits ^ (bits >> 33)) * 0xC4CEB9FE1A85EC53u;
  bits ^= bits >> 33;
  return static_cast<float>(static_cast<int32_t>(bits >> 40) - (1 << 23)) * 0x1p-23f;
}

}  // namespace augur::kernels
