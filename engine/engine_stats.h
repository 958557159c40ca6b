// What the engine counts, filled by the engine and emitter threads, read by anyone without a lock.
// server/metrics_exporter turns a reader's view of it into Prometheus families.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "memory/base/histogram.h"

namespace augur::engine {

enum class Outcome {  // how a request that was accepted ended; also the label values' order
  kStop,
  kLength,
  kEos,
  kCancelled,
  kDeadline,
  kSlowReader,
  kDraining,
  kInternal,
  kCount
};

struct EngineStats {
  using Counter = std::atomic<uint64_t>;
  using Gauge = std::atomic<int64_t>;

  // Requests.
  std::array<Counter, static_cast<size_t>(Outcome::kCount)> outcomes{};
  Counter accepted{0};
  Gauge waiting{0};  // in the queue, not yet admitted (preempted ones too)
  Gauge waiting_tokens{0};
  Gauge running{0};  // admitted, paused ones included
  Gauge paused{0};
  Counter preemptions{0};
  Counter recomputed_tokens{0};  // computed again after a preemption
  Counter saved{0};              // preemptions that kept everything on the host
  Counter mirrored{0};           // sequences written behind for want of frames (residency auto)
  Gauge warming{0};              // admitted, and what they need is on its way to the device

  // Tokens.
  Counter prompt_tokens{0};  // computed in prefill, first time
  Counter cached_tokens{0};  // taken from the prefix cache
  Counter generated_tokens{0};
  Counter prefix_query_blocks{0};
  Counter prefix_hit_blocks{0};

  // Frames of the device pool (memory/kv_layout.h) by state: held by sequences, cached (evictable),
  // free; they add up to the pool.
  Gauge blocks_total{0};
  Gauge blocks_held{0};
  Gauge blocks_cached{0};
  Gauge blocks_free{0};
  // The same of the host pool; all 0 without one.
  Gauge host_blocks_total{0};
  Gauge host_blocks_held{0};
  Gauge host_blocks_cached{0};
  Gauge host_blocks_free{0};

  // Steps.
  Counter steps{0};
  std::atomic<int64_t> last_step_ns{0};  // engine clock at the end of the last step

  memory::Histogram queue_seconds{memory::LatencyBounds()};
  // From the admission of a cold sequence (resumed, or a prefix hit) until it may take rows.
  memory::Histogram warm_up_seconds{memory::LatencyBounds()};
  memory::Histogram first_token_seconds{memory::LatencyBounds()};
  memory::Histogram inter_token_seconds{memory::LatencyBounds()};
  memory::Histogram request_seconds{memory::LatencyBounds()};
  memory::Histogram step_seconds{memory::LatencyBounds()};
  memory::Histogram step_host_seconds{memory::ShortLatencyBounds()};  // less its wait for a device
  memory::Histogram batch_size{memory::PowerOfTwoBounds(1024)};       // sequences in a step
  memory::Histogram step_tokens{memory::PowerOfTwoBounds(65536)};     // rows in a step
  memory::Histogram request_prompt_tokens{memory::PowerOfTwoBounds(1 << 20)};
  memory::Histogram request_generated_tokens{memory::PowerOfTwoBounds(1 << 20)};
};

}  // namespace augur::engine
