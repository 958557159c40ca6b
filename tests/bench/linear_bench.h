// Backend::Linear on a device at the shapes of 8B models, and what the device can do at best.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "tests/bench/bench_record.h"
#include "tests/bench/model_bench.h"

namespace augur::bench {

struct LinearBenchOptions {
  std::vector<int> decode_rows = {1, 4, 16, 64};
  std::vector<int> prefill_rows = {2048, 8192};
};

// us, weights' GB/s and TFLOP/s of every matrix of a layer, decode's rows and prefill's, with
// weights out of L2; of a decode step's small ones also in it (us_in_l2), the most that bringing
// them there ahead could save.
void RunLinearBench(kernels::Backend* backend, const BenchContext& context,
                    const LinearBenchOptions& options);
// Matrix rate of one large product, rate of reading, and copies between host and device.
void RunCeilingsBench(kernels::Backend* backend, const BenchContext& context,
                      const Ceilings& ceilings);

// Of a product of 8192^3 in bfloat16.
double MatrixFlopsPerSecond(kernels::Backend* backend, const BenchContext& context);

}  // namespace augur::bench
