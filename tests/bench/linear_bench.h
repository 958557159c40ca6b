// Backend::Linear on a device at the shapes of 8B models, and what the device can do at best.
#pragma once

#include "kernels/backend.h"
#include "tests/bench/bench_record.h"
#include "tests/bench/model_bench.h"

namespace augur::bench {

// us, weights' GB/s and TFLOP/s of every matrix of a layer, decode's rows and prefill's, with
// weights out of L2.
void RunLinearBench(kernels::Backend* backend, const BenchContext& context);
// Matrix rate of one large product, rate of reading, and copies between host and device.
void RunCeilingsBench(kernels::Backend* backend, const BenchContext& context,
                      const Ceilings& ceilings);

// Of a product of 8192^3 in bfloat16.
double MatrixFlopsPerSecond(kernels::Backend* backend, const BenchContext& context);

}  // namespace augur::bench
