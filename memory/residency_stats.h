// What the tiers did, counted where it happens: by LayerResidency on the engine thread, read by
// anyone without a lock. server/metrics_families turns it into Prometheus families.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "memory/base/histogram.h"

namespace augur::memory {

// Why a layer waited for a copy.
enum class WaitCause {
  kPrefetchLate,  // asked for a layer ahead, not there in time
  kFetch,         // asked for when it was needed
  kFirstLayer,    // the first layer in the host pool: its lead is the shortest
  kCount
};

struct ResidencyStats {
  using Counter = std::atomic<uint64_t>;

  struct Layer {
    Counter wait_ns{0};
    Counter chosen_blocks{0};   // chosen by score, forced ones not counted
    Counter reused_blocks{0};   // of those, chosen by the token before as well
    Counter fetched_blocks{0};  // of all wanted ones
    Counter recall_found{0};    // sampled: Forecast's choice that the layer's own query made too
    Counter recall_wanted{0};   // sampled: choices of the layer's own query
  };

  explicit ResidencyStats(int layer_count)
      : num_layers(layer_count), layers(std::make_unique<Layer[]>(layer_count)) {}

  const int num_layers;
  std::unique_ptr<Layer[]> layers;  // [num_layers]

  std::array<Histogram, static_cast<size_t>(WaitCause::kCount)> wait_seconds{
      Histogram(ShortLatencyBounds()), Histogram(ShortLatencyBounds()),
      Histogram(ShortLatencyBounds())};

  // Blocks that had to come from the host in a decode step, by page: asked for a layer ahead, and
  // all of the layer's there when it wanted them or not; or only then asked for.
  Counter prefetch_hit{0};
  Counter prefetch_late{0};
  Counter prefetch_miss{0};

  // Blocks that scores chose in decode steps and that were in a slot: chosen by the token before,
  // or kept in a spare slot since an earlier one.
  Counter resident_last{0};
  Counter resident_spare{0};

  // Sampled on one token of 16: slots of the group used since a chosen block was last used, itself
  // counted. An LRU cache of n slots would have hit where this is at most n.
  Histogram stack_distance{PowerOfTwoBounds(4096)};

  // Sampled attention. Draws with repetitions and distinct rows of a query head, summed over heads;
  // distinct rows of a kv head: rows of values that were read; those of them that lay in host
  // pages.
  Counter sampled_draws{0};
  Counter sampled_rows{0};
  Counter sampled_distinct_rows{0};
  Counter host_rows{0};
  Counter sampled_features{0};  // of keys, that sampled queries read

  // Bytes that decode steps took over the link, by what they were: whole pages, K halves, V halves
  // of K-only slots, rows of values.
  Counter page_bytes{0};
  Counter key_bytes{0};
  Counter value_bytes{0};
  Counter row_bytes{0};

  Counter attention_ns{0};   // time in attention, times the threads that compute
  Counter checked_pages{0};  // fetched pages whose hash was compared with the spilled one's
};

}  // namespace augur::memory
