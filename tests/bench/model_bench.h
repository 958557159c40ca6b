// Whole steps of a model: prefill in chunks beside the machine's matrix rate, decode beside the
// bytes that it must read. On the CPU and on a device, by the runner that the daemon would use.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "kernels/backend.h"
#include "tests/bench/bench_record.h"

namespace augur::bench {

struct ModelBenchOptions {
  std::string folder;
  std::string random_weights;        // instead of a folder: a config.json
  bool synthetic_kv = false;         // decode over random KV, so that long contexts need no prefill
  int chunk = 512;                   // rows of a prefill step
  std::vector<int> prompts;          // tokens
  int at_once = 1;                   // prompts that share a prefill step's rows
  std::string policy = "dense";      // of prompts: dense, sparse or forecast
  std::string residency = "device";  // or tiered
  float reuse = -1.0f;  // of blocks chosen by the token before; below 0: what scores choose
  std::vector<int> batches;
  std::vector<int> contexts;  // tokens that each decoding sequence already has
};

// Weights that every row of a step is multiplied with, the head apart.
int64_t LayerWeightsOf(const engine::ModelConfig& config);

// What the machine can do, measured in the same run.
struct Ceilings {
  std::function<double()> flops_per_second;
  std::function<double(double bytes)> read_bytes_per_second;  // of a walk over so many bytes
};

// False, with a line on stderr, when the model cannot be loaded. Cases that the KV pool is too
// small for are left out with a line that says so.
bool RunPrefillBench(kernels::Backend* backend, const BenchContext& context,
                     const ModelBenchOptions& options, const Ceilings& ceilings);
bool RunDecodeBench(kernels::Backend* backend, const BenchContext& context,
                    const ModelBenchOptions& options, const Ceilings& ceilings);

}  // namespace augur::bench
