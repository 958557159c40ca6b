// What one step shall do, as plain data: made by PlanStep, applied by EngineCore, printable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "memory/kv_layout.h"
#include "memory/kv_manager.h"

namespace augur::engine {

struct PlannedSegment {
  memory::SequenceId sequence = 0;
  int num_tokens = 0;    // computed in this step
  int blocks_after = 0;  // table length that they need
  bool samples = false;  // reaches the sequence's last token, so a new one is drawn
};

struct PlannedAdmission {
  memory::SequenceId sequence = 0;
  memory::Residency residency = memory::Residency::kDevice;
  bool resumed = false;  // saved on the host: nothing is computed again
  int hit_blocks = 0;    // taken from the prefix cache
  int total_blocks = 0;  // table length at the start: the whole current length
};

// A cold sequence (resumed, or a prefix hit) that gets some of what it must have on the device
// before it takes rows: beside this step, which does not wait for it.
struct PlannedWarmUp {
  memory::SequenceId sequence = 0;
  int64_t most_bytes = 0;  // handed to the link now
};

// Applied in this order: preemptions, admissions, warm-ups, segments.
struct BatchPlan {
  std::vector<memory::SequenceId> preemptions;
  std::vector<PlannedAdmission> admissions;
  std::vector<PlannedWarmUp> warm_ups;
  std::vector<PlannedSegment> segments;  // decodes first, then prefill chunks

  int num_rows() const;
  std::string ToString() const;
};

}  // namespace augur::engine
