// Random words of training by counter: a resumed run draws what an uninterrupted one would have.
#pragma once

#include <cstdint>

#include "kernels/philox.h"

namespace augur::engine {

enum class TrainingPurpose : uint32_t {
  kSequenceOrder = 0x100,  // beside kernels::PhiloxPurpose
  kComparedRow = 0x101,
};

inline uint32_t TrainingDraw(TrainingPurpose purpose, uint64_t seed, uint32_t first,
                             uint32_t second) {
  return kernels::Philox4x32({first, second, static_cast<uint32_t>(purpose), 0},
                             {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)})
      .words[0];
}

}  // namespace augur::engine
