// Whole steps of a model: prefill in chunks beside the float32 peak, decode beside the bytes that
// it must read.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/bench/bench_record.h"

namespace augur::bench {

struct ModelBenchOptions {
  std::string folder;
  int chunk = 512;           // rows of a prefill step
  std::vector<int> prompts;  // tokens
  std::vector<int> batches;
  std::vector<int> contexts;  // tokens that each decoding sequence already has
};

// False, with a line on stderr, when the model cannot be loaded.
bool RunPrefillBench(kernels::Backend* backend, const BenchContext& context,
                     const ModelBenchOptions& options);
bool RunDecodeBench(kernels::Backend* backend, const BenchContext& context,
                    const ModelBenchOptions& options);

}  // namespace augur::bench
