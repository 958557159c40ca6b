// Attention over paged KV in decode and prefill at the shapes of two models, beside what this
// device's memory gives. On any backend; the default sizes are a GPU's.
#pragma once

#include <string>
#include <vector>

#include "kernels/backend.h"
#include "tests/bench/bench_record.h"

namespace augur::bench {

struct AttentionBenchOptions {
  std::vector<int> batches = {1, 4, 16};
  std::vector<int> contexts = {8192, 32768, 131072};  // tokens behind each decoding row
  std::vector<int> samples = {};                      // of rows that sample (kDraws)
  std::vector<std::string> estimators = {"proportional", "shared"};  // of them
  // Times the scale of their scores: 1 is nearly flat, so that most rows drawn are distinct.
  std::vector<float> spreads = {1.0f};
  std::vector<int> prompts = {8192, 32768};
  int chunk = 8192;                              // rows of a prefill call
  std::vector<int> sparse_contexts = {122880};   // tokens before a chunk whose rows choose blocks
  std::vector<int> sparse_changes = {0, 4, 12};  // of a row's 62 free blocks, from row to row
};

// One line a case: the median over context.repeats of one op's time, in a recorded graph of many
// over different memory, so that caches do not help. Sampled rows stand beside the same exact ones.
// Prefill with choices stands beside the same chunk without.
void RunAttentionBench(kernels::Backend* backend, const BenchContext& context,
                       const AttentionBenchOptions& options, double read_bytes_per_second);

}  // namespace augur::bench
