// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a
// counter-based generator. The same counter and key give the same four words anywhere, so a draw
// needs no state that a batch, a preemption or a thread could disturb.
//
// Thread: pure. Failure: none.
#pragma once

#include <array>
#include <cstdint>

namespace augur::kernels {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

constexpr PhiloxCounter Philox4x32(PhiloxCounter counter, PhiloxKey key) {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// What a draw is for: part of the counter, so that two uses never share numbers.
enum class PhiloxPurpose : uint32_t { kSampleToken = 0 };

// Uniform in [0, 1), all 53 bits of a double random.
constexpr double PhiloxUniform(PhiloxPurpose purpose, uint64_t seed, uint32_t choice_index,
                               uint32_t position) {
  const PhiloxCounter words =
      Philox4x32({position, choice_index, static_cast<uint32_t>(purpose), 0},
                 {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  const uint64_t bits = (uint64_t{words[0]} << 21) | (words[1] >> 11);
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace augur::kernels
