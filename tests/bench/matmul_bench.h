// y = x W^T at the shapes that decode and prefill use, beside the machine's multiply-add peak.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "tests/bench/bench_record.h"

namespace augur::bench {

void RunMatmulBench(kernels::Backend* backend, const BenchContext& context,
                    const std::vector<int>& rows);

}  // namespace augur::bench
