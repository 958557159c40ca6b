#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/stamp.h"

namespace augur::kernels {
namespace {

__global__ void StampKernel(StampParams params) {
  WaitForPrevious();
  int64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  *params.at_ns = now;
}

}  // namespace

void CudaBackend::Stamp(const StampParams& params) {
  LaunchKernel(stream_, {dim3(1), dim3(1)}, StampKernel, params);
}

}  // namespace augur::kernels
