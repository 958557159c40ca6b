// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a
// counter-based generator. The same counter and key give the same four words anywhere, so a draw
// needs no state that a batch, a preemption or a thread could disturb.
//
// Thread: pure. Failure: none.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace augur::kernels {

// std::array's members cannot be called in a kernel.
struct PhiloxCounter {
  uint32_t words[4];
  bool operator==(const PhiloxCounter&) const = default;
};
struct PhiloxKey {
  uint32_t words[2];
};

AUGUR_HOST_DEVICE constexpr PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter.words[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter.words[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter.words[1] ^ key.words[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter.words[3] ^ key.words[1],
               static_cast<uint32_t>(product0)};
    key.words[0] += 0x9E3779B9u;
    key.words[1] += 0xBB67AE85u;
  }
  return counter;
}

// What a draw is for: part of the counter, so that two uses never share numbers.
enum class PhiloxPurpose : uint32_t {
  kSampleToken = 0,
  kValueOffset = 1,     // systematic offsets: of a head's list (item 0) or of a block (1 + its id)
  kValueThreshold = 2,  // item: number of the draw
  kScoreBits = 3,       // item: feature of the query
};

// Uniform in [0, 1), all 53 bits of a double random.
AUGUR_HOST_DEVICE constexpr double PhiloxUniform(PhiloxPurpose purpose, uint64_t seed,
                                                 uint32_t choice_index, uint32_t position) {
  const PhiloxCounter block =
      Philox4x32({position, choice_index, static_cast<uint32_t>(purpose), 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{block.words[0]} << 21) | (block.words[1] >> 11);
  return static_cast<double>(bits) * 0x1p-53;
}

// What names the draws of one attention head at one token (a query head's, or a kv head's where its
// group shares them). A position is computed once, so the draws of a sequence are fresh at every
// step, and the same whatever batch, chunk, thread or tile computes them.
struct AttentionDrawKey {
  uint64_t seed = 0;
  uint32_t choice_index = 0;
  uint32_t position = 0;
  uint32_t layer = 0;  // below 4096
  uint32_t head = 0;   // likewise
};

// Four words for `item` of the head's draws. The purpose keeps them apart from PhiloxUniform's.
AUGUR_HOST_DEVICE constexpr PhiloxCounter PhiloxAttention(PhiloxPurpose purpose,
                                                          const AttentionDrawKey& key,
                                                          uint32_t item) {
  const uint32_t place = static_cast<uint32_t>(purpose) << 24 | key.layer << 12 | key.head;
  return Philox4x32({key.position, key.choice_index, place, item},
                    {static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)});
}

}  // namespace augur::kernels
