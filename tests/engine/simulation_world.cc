#include "tests/engine/simulation_world.h"

#include <algorithm>

namespace augur::tests {
namespace {

using engine::AttentionPolicy;
using engine::ResidencyMode;

constexpr int64_t kNsPerRow = 1000;

engine::AttentionChoice DrawPolicy(SimulationRandom* random) {
  constexpr std::array<AttentionPolicy, 3> kPolicies = {
      AttentionPolicy::kDense, AttentionPolicy::kSparse, AttentionPolicy::kForecast};
  engine::AttentionChoice choice;
  choice.prefill = kPolicies[random->Draw(0, 2)];
  choice.decode = random->OneIn(4) ? choice.prefill : kPolicies[random->Draw(0, 2)];
  choice.budget.init = random->Draw(0, 2);
  choice.budget.local = random->Draw(2, 3);
  choice.budget.top_k = choice.budget.init + choice.budget.local + random->Draw(0, 4);
  choice.dense_len = random->OneIn(3) ? random->Draw(1, 600) : -1;
  choice.values.sampled = (choice.budget.top_k + choice.budget.init) % 2 == 0;
  return choice;
}

}  // namespace

WorldSettings DrawSettings(SimulationRandom* random) {
  WorldSettings world;
  world.shape = {.num_layers = random->Draw(2, 4), .num_kv_heads = random->Draw(1, 2)};
  for (int i = random->Draw(1, 3); i > 0; --i) world.policies.push_back(DrawPolicy(random));
  int top_k = 1;
  for (const engine::AttentionChoice& choice : world.policies) {
    top_k = std::max(top_k, choice.budget.top_k);
  }
  engine::EngineOptions& options = world.options;
  // Most worlds have tiers.
  constexpr std::array<ResidencyMode, 5> kModes = {ResidencyMode::kDevice, ResidencyMode::kTiered,
                                                   ResidencyMode::kTiered, ResidencyMode::kAuto,
                                                   ResidencyMode::kAuto};
  options.residency = kModes[random->Draw(0, 4)];
  options.num_slots = top_k + random->Draw(0, 1) * random->Draw(0, 6);
  options.max_batch = random->Draw(1, 8);
  // Some worlds have rows for one block at a time, some for whole prompts.
  constexpr std::array<int, 4> kMostExtraRows = {8, 100, 250, 700};
  options.max_batched_tokens =
      options.max_batch + 64 + random->Draw(0, kMostExtraRows[random->Draw(0, 3)]);
  options.max_context = 64 * random->Draw(2, 24);
  options.slow_reader_timeout_ns = random->Draw(1, 50) * 1000 * kNsPerRow;
  world.num_frames = random->OneIn(4) ? random->Draw(20, 60) : random->Draw(4, 24);
  if (options.residency != ResidencyMode::kDevice) world.num_host_blocks = random->Draw(8, 90);
  world.recording = {.limits = {.max_rows = options.max_batched_tokens,
                                .max_segments = options.max_batch,
                                .fetch_blocks = top_k + random->Draw(0, 1) * random->Draw(0, 12)},
                     .max_top_k = top_k,
                     .prefetch = !random->OneIn(6)};
  constexpr std::array<memory::ValueFetch, 3> kFetches = {
      memory::ValueFetch::kAuto, memory::ValueFetch::kRows, memory::ValueFetch::kWhole};
  world.recording.limits.value_fetch = kFetches[options.max_context / 64 % 3];
  world.page_check = random->OneIn(3) ? random->Draw(1, 3) : 0;
  world.transfers = {.units = random->Draw(1, 4),
                     .queue_copies = static_cast<size_t>(random->Draw(1, 300)),
                     .copy_ns = int64_t{1} << random->Draw(4, 19),  // a row takes 2^10
                     .stall_one_in = random->OneIn(2) ? random->Draw(10, 500) : 0};
  for (bool& on : world.troubles) on = random->OneIn(2);
  if (random->OneIn(2)) world.most_choices = std::min(options.max_batch, 4);
  if (random->OneIn(2)) world.most_priority = random->Draw(1, 3);
  return world;
}

}  // namespace augur::tests
