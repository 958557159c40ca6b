// What the benches of whole models choose blocks by: MiniCPM4's budget. Which heads or basis there
// are is the bench's to say.
#pragma once

#include "engine/attention/attention_policy.h"

namespace augur::bench {

// 1 first block, 33 of the window, 62 chosen.
inline constexpr kernels::SelectionBudget kBudget{.top_k = 96, .init = 1, .local = 33};

inline engine::AttentionSettings SettingsOf(engine::AttentionPolicy prefill,
                                            engine::AttentionPolicy decode, int spare_slots) {
  engine::AttentionSettings settings;
  settings.prefill = prefill;
  settings.decode = decode;
  settings.top_k_blocks = kBudget.top_k;
  settings.init_blocks = kBudget.init;
  settings.local_blocks = kBudget.local;
  settings.spare_slots = spare_slots;
  return settings;
}

}  // namespace augur::bench
