// What a seed draws: sizes, policies and kinds of trouble of one simulated world.
#pragma once

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "engine/attention/attention_policy.h"
#include "engine/engine_options.h"
#include "tests/support/recording_runner.h"
#include "tests/support/simulated_transfers.h"

namespace augur::tests {

enum class Trouble {
  kCancels,
  kDeadlines,
  kSlowReaders,
  kStopMatches,
  kPoisonedRows,
  kDrains,
  kPreemptions,
  kClearedCaches,
  kCount
};

class SimulationRandom {
 public:
  explicit SimulationRandom(uint64_t seed) : random_(seed) {}
  // From low to high, both included.
  int Draw(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool OneIn(int n) { return Draw(1, n) == 1; }

 private:
  std::mt19937_64 random_;
};

struct WorldSettings {
  RecordShape shape;
  engine::EngineOptions options;
  RecordingOptions recording;
  SimulatedTransfersOptions transfers;
  int num_frames = 0;
  int num_host_blocks = 0;
  int page_check = 0;
  int most_choices = 1;   // of one request
  int most_priority = 0;  // and as far below 0
  std::vector<engine::AttentionChoice> policies;
  // Half of the kinds of trouble are off in any one world, so that each also meets quiet
  // neighbours.
  std::array<bool, static_cast<size_t>(Trouble::kCount)> troubles{};

  bool has(Trouble trouble) const { return troubles[static_cast<size_t>(trouble)]; }
};

WorldSettings DrawSettings(SimulationRandom* random);

}  // namespace augur::tests
