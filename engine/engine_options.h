// Every limit and knob of the engine, units in the names. Filled by server/server_config, checked
// there.
#pragma once

#include <climits>
#include <cstdint>

#include "engine/kv_options.h"

namespace augur::engine {

struct EngineOptions {
  int max_context = 0;               // tokens of prompt + completion; at most the model's
  int short_rope_context = INT_MAX;  // the model's: see RopeVariantOf
  ResidencyMode residency = ResidencyMode::kDevice;
  // Sequences get the block of the token after next where frames are to spare: a runner that runs
  // ahead (engine/model/device_runner.h) then need not stop at a block's edge.
  bool reserve_ahead = false;
  int num_slots = 0;   // of a tiered sequence's groups: largest budget and spare slots
  int max_batch = 32;  // sequences in a step
  int max_batched_tokens =
      512;  // rows in a step; at least max_batch + 64, so that prefill always moves
  // Of cold sequences (resumed, or a prefix hit) on the link at a time while others take rows: 0.33
  // ms of 50 GB/s in one step of two. One of 128K at MiniCPM4.1-8B's shape has 27 times as many.
  int64_t warm_up_bytes = int64_t{16} << 20;
  int max_queued_requests = 256;        // accepted and not yet admitted; each choice counts
  int64_t max_queued_tokens = 1 << 20;  // prompt tokens of those
  bool prefix_cache = true;
  int64_t slow_reader_timeout_ns = 30'000'000'000;
};

}  // namespace augur::engine
