// TrainingOps on a device. Operands are bfloat16, sums float32. The teacher's scores are computed
// twice on tensor cores (for the normaliser, then for the shares) and never written; products of
// matrices are tile_product.h's.
//
// Thread: as CudaBackend, on its stream. Ownership: nothing; scratch is the caller's. Failure: a
// bad shape is a CHECK. Every sum has one order: results are the same bits in every run.
#pragma once

#include <cuda_runtime.h>

#include "kernels/training_ops.h"

namespace augur::kernels {

class CudaTrainingOps final : public TrainingOps {
 public:
  explicit CudaTrainingOps(cudaStream_t stream) : stream_(stream) {}

  void GatherRows(const GatherRowsParams& params) override;
  void WindowKeys(const WindowKeysParams& params) override;
  void ForecastTeacher(const ForecastTeacherParams& params) override;
  void ProjectForecast(const ProjectForecastParams& params) override;
  void ForecastLoss(const ForecastLossParams& params) override;
  void AddForecastGradient(const AddForecastGradientParams& params) override;

 private:
  const cudaStream_t stream_;
};

}  // namespace augur::kernels
