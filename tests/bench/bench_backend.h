// The backend that a bench runs on, and the machine's ceilings beside which its figures stand.
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"
#include "tests/bench/bench_record.h"
#include "tests/bench/model_bench.h"

namespace augur::bench {

struct BenchBackendOptions {
  std::string device = "cpu";  // or "cuda"
  int threads = 1;             // of the CPU
  // As kernels::CudaBackendOptions has them.
  int decode_rows = 256;  // usual_decode_rows
  int product_sms = 0;
  int attention_sms = 0;
  std::string graph_priorities = "none";  // or copies, lanes
};

// Null, with a line on stderr, where it is not to be had.
std::unique_ptr<kernels::Backend> MakeBenchBackend(const BenchBackendOptions& options);

// Measured when asked for: the CPU's by loops over registers and memory, a device's by a matrix
// product of 8192^3 in bfloat16 through Backend::Linear and a kernel that reads 2 GiB.
Ceilings CeilingsOf(kernels::Backend* backend, const BenchContext& context);

}  // namespace augur::bench
