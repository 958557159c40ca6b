// cuBLASLt's handle, workspace and the algorithm of every (weight shape, types, phase), chosen once
// and pinned: a row's bits do not depend on how many rows it comes with.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

namespace augur::kernels {

class LinearPlans {
 public:
  explicit LinearPlans(cudaStream_t stream);
  ~LinearPlans();

 private:
  cudaStream_t stream_;
};

}  // namespace augur::kernels
