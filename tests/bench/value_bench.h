// Error of sampled attention's estimators on queries, keys and values captured from a model that
// reads a text and goes on writing: at equal distinct rows, over all layers and heads.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/bench/bench_record.h"

namespace augur::bench {

struct ValueBenchOptions {
  std::string folder = "deploy/models/demo-9m";
  std::vector<std::string> texts;  // files; their text, one after the other, is the prompt
  int tokens = 8000;               // of the prompt, at most
  int steps = 24;                  // generated tokens that are measured
  std::vector<int> rows = {16, 32, 64, 128, 256};
  uint64_t seed = 1;
};

// False, with a line on stderr, when the model or a text cannot be read.
bool RunValueBench(kernels::Backend* backend, const BenchContext& context,
                   const ValueBenchOptions& options);

}  // namespace augur::bench
