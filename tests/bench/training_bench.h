// Training of Forecast heads at a model's shape, with random weights and tokens where no checkpoint
// is at hand: what a sequence costs, by part, and what the published recipe would take.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/bench/bench_record.h"

namespace augur::bench {

struct TrainingBenchOptions {
  std::string folder = "deploy/models/demo-9m";
  std::string random_weights;  // instead of a folder: a config.json
  std::vector<int> lengths = {8192};
  int row_stride = 16;
  int top_k = 96, init = 1, local = 33;  // blocks of a choice
  int sequences = 2;                     // timed, behind one that is not
};

// A record for each length: tokens/s, memory, seconds of a sequence by part, and GPU-hours of 2,000
// steps of 32 sequences. False, with a line on stderr, when the model cannot be loaded.
bool RunTrainingBench(kernels::Backend* backend, const BenchContext& context,
                      const TrainingBenchOptions& options);

}  // namespace augur::bench
