// Everything that can be set about a deployment: defaults, then the YAML file, then command-line
// flags.
//
// The file is a flat YAML map of the keys in the table of server_config.cc; flags go through the
// same table, so both have the same types, ranges and messages. This is the only place that touches
// yaml-cpp.
// Thread: plain functions, used at start.
// Ownership: values.
// Failure: INVALID_ARGUMENT of one line with file:line (or the flag), key, found value and limit;
// an unknown key names the nearest one. Nothing is clamped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/attention/attention_policy.h"
#include "engine/kv_options.h"
#include "kernels/dtype.h"
#include "server/machine_limits.h"

namespace augur::server {

struct ServerConfig {
  std::string model;           // Hugging Face folder
  std::string random_weights;  // instead: a config.json
  int64_t random_seed = 0;
  std::string served_name;  // empty: the folder's name
  std::string listen = "127.0.0.1:50051";
  std::string metrics = "127.0.0.1:9464";

  std::string device = "auto";  // cpu or cuda:N once loaded
  int64_t context = 0;          // tokens; 0: the model's own limit
  int64_t kv_bytes = 0;         // set from the machine when not given; stays 0 with a CUDA device
  std::optional<kernels::DType> kv_dtype;  // unset: the checkpoint's
  bool host_kv_fp8 = false;                // host_kv_dtype: fp8, else same
  bool prefix_cache = true;
  engine::ResidencyMode residency = engine::ResidencyMode::kDevice;
  int64_t host_kv_bytes = 0;  // set from the machine when not given and there is a host pool
  std::optional<int64_t> spare_slots;  // unset: as many as top_k_blocks
  int64_t staging_blocks = 0;          // 0: 64, or max_top_k_blocks where that is more
  bool prefetch = true;
  std::optional<int64_t> copy_ctas;  // unset: governed, between the bounds
  int64_t copy_ctas_min = 1;
  int64_t copy_ctas_max = 8;
  int64_t copy_threads = 1;
  int64_t transfer_queue = 65'536;    // copies
  int64_t link_bytes_per_second = 0;  // 0: as fast as memory
  int64_t link_pages_per_second = 0;  // 0: no limit
  int64_t link_latency_ns = 0;
  int64_t page_check = 0;
  int64_t recall_every = 64;
  int64_t device_fault_after = 0;

  // Unset ones come from the model's sparse_config, else from engine/attention/attention_policy.h.
  std::optional<engine::AttentionPolicy> prefill_policy;
  std::optional<engine::AttentionPolicy> decode_policy;
  bool policy_override = true;
  std::optional<int64_t> top_k_blocks;
  std::optional<int64_t> max_top_k_blocks;  // unset: top_k_blocks
  std::optional<int64_t> init_blocks;
  std::optional<int64_t> local_blocks;
  std::optional<int64_t> dense_len;
  std::string forecast_heads;
  std::string infinigen_basis;
  engine::ValueSettings values = {};

  int64_t batch = 32;          // sequences in a step
  int64_t batched_tokens = 0;  // rows in a step; set from batch when not given
  int64_t queue_requests = 256;
  int64_t queue_tokens = 1 << 20;
  int64_t threads = 0;  // set from the machine when not given

  int64_t stream_buffer_bytes = 64 << 10;  // what waits for a reader before its sequence is paused
  int64_t stream_buffer_messages = 256;
  int64_t slow_reader_timeout_ns = 30'000'000'000;
  int64_t max_message_bytes = 64 << 20;  // a request on the wire
  int64_t max_streams = 1024;            // of one connection
  int64_t intake_threads = 2;            // encode text
  int64_t intake_requests = 512;
  int64_t intake_bytes = 256 << 20;
  int64_t default_deadline_ns = 0;
  int64_t drain_limit_ns = 30'000'000'000;
  int64_t stall_limit_ns = 120'000'000'000;
  bool reflection = true;
  std::string log_level = "info";
};

// Of cuda:N; -1: not a CUDA device.
int CudaDeviceOf(const std::string& device);

// A key set from outside the file, with the flag as its place: {"listen", "0.0.0.0:1", "--listen"}.
struct ConfigOverride {
  std::string key;
  std::string value;
  std::string place;
};

// `file` may be empty. Derived defaults (kv_bytes, batched_tokens, threads, served_name) are filled
// in.
absl::StatusOr<ServerConfig> LoadServerConfig(const std::string& file,
                                              const std::vector<ConfigOverride>& overrides,
                                              const MachineLimits& machine);

// The effective configuration as a YAML file that LoadServerConfig reads back to the same values,
// one key a line with its meaning as a comment.
std::string FormatServerConfig(const ServerConfig& config);

// All keys, in the order of FormatServerConfig.
std::vector<std::string> ServerConfigKeys();

}  // namespace augur::server
