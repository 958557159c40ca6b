// A runner that runs ahead draws the tokens of one that does not, whatever the engine then asks for:
// sequences that end, wait, join, prefill beside others, or lack the block for their next token.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "engine/batcher.h"
#include "tests/support/model_driver.h"

namespace augur::engine {
namespace {

using tests::DriverBackend;
using tests::ModelDriver;

constexpr int kSteps = 120;
constexpr int kMostRunning = 9;

std::unique_ptr<ModelDriver> Model(DriverBackend backend, bool run_ahead) {
  return std::make_unique<ModelDriver>(
      tests::ModelDriverOptions{.folder = tests::SourceFolder() + "/tests/golden/models/llama",
                                .threads = 2,
                                .backend = backend,
                                .run_ahead = run_ahead,
                                .max_rows = 256,
                                .max_segments = 12});
}

std::vector<int32_t> RandomPrompt(std::mt19937* random, int vocab) {
  std::vector<int32_t> prompt(1 + (*random)() % 150);
  for (int32_t& token : prompt) token = static_cast<int32_t>((*random)() % vocab);
  return prompt;
}

// One schedule of arrivals, pauses and ends, drawn from `seed` alone; every token drawn in it.
std::vector<int32_t> RunSchedule(ModelDriver* model, uint32_t seed, int chunk) {
  std::mt19937 random(seed);
  std::vector<std::unique_ptr<ModelDriver::Sequence>> running;
  std::vector<int32_t> drawn;
  for (int step = 0; step < kSteps; ++step) {
    if (running.size() < kMostRunning && random() % 4 == 0) {
      // Some have room for a few tokens only: the block behind is not theirs.
      const int room = random() % 3 == 0 ? 2 : 140;
      running.push_back(std::make_unique<ModelDriver::Sequence>(
          model->Start(RandomPrompt(&random, model->vocab()), room)));
    }
    std::vector<ModelDriver::Part> parts;
    for (auto& sequence : running) {
      const int left = static_cast<int>(sequence->tokens.size()) - sequence->computed;
      const int most = engine::BlocksFor(static_cast<int64_t>(sequence->prompt_tokens) + 2) * 64;
      const bool is_full = sequence->computed + left >= most;
      if (random() % 8 == 0 || is_full) continue;  // waits
      parts.push_back({sequence.get(), std::min(left, chunk)});
    }
    if (step % 7 == 3) std::reverse(parts.begin(), parts.end());
    if (parts.empty()) continue;
    model->Step(parts);
    for (size_t i = 0; i < parts.size(); ++i) {
      ModelDriver::Sequence& sequence = *parts[i].sequence;
      const int32_t token = model->sampled()[i];
      drawn.push_back(token);
      // Where the prompt is not through yet nothing is appended.
      if (sequence.computed == static_cast<int>(sequence.tokens.size())) {
        sequence.tokens.push_back(token);
      }
    }
    for (size_t i = 0; i < running.size();) {
      if (random() % 25 != 0) {
        ++i;
        continue;
      }
      model->Finish(*running[i]);
      running.erase(running.begin() + static_cast<int>(i));
    }
  }
  return drawn;
}

TEST(RunAheadTest, TheTokensAreThoseOfARunnerThatWaits) {
  for (const DriverBackend backend : tests::DriverBackendsHere()) {
    if (backend == DriverBackend::kCpu) continue;
    SCOPED_TRACE(tests::NameOf(backend));
    for (const uint32_t seed : {1u, 2u, 3u, 4u}) {
      for (const int chunk : {33, 64}) {
        const auto ahead = Model(backend, true);
        EXPECT_EQ(RunSchedule(ahead.get(), seed, chunk),
                  RunSchedule(Model(backend, false).get(), seed, chunk))
            << "seed " << seed << ", chunk " << chunk;
        EXPECT_GT(ahead->rows_foreseen(), 20);
      }
    }
  }
}

}  // namespace
}  // namespace augur::engine
