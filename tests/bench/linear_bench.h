// Backend::Linear on a device at the shapes of 8B models, and what the device can do at best.
#pragma once

#include "tests/bench/bench_record.h"

namespace augur::bench {

// Both return false, with a line on stderr, when this build or this machine has no CUDA.
//
// us, weights' GB/s and TFLOP/s of every matrix of a layer, decode's rows and prefill's, with
// weights out of L2.
bool RunLinearBench(const BenchContext& context);
// Matrix rate of one large product, and copies between host and device.
bool RunCeilingsBench(const BenchContext& context);

}  // namespace augur::bench
