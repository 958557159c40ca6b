// TrainingOps on the CPU, by plain loops over a team of threads: what a device's are tested
// against, and what the pass over a device (engine/training/device_forecast_pass.h) runs on where
// there is none. Operands of 16 bits are widened, results rounded once.
//
// Thread: as Backend. Ownership: scratch that grows to the largest call's needs; the pool outlives
// it. Failure: a bad shape is a CHECK. Results do not depend on the number of threads.
#pragma once

#include <vector>

#include "kernels/cpu/forecast_teacher.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/training_ops.h"

namespace augur::kernels {

class CpuTrainingOps final : public TrainingOps {
 public:
  explicit CpuTrainingOps(ThreadPool* pool)
      : pool_(pool), teacher_(pool), scratch_(pool->num_threads()) {}

  void GatherRows(const GatherRowsParams& params) override;
  void WindowKeys(const WindowKeysParams& params) override;
  void ForecastTeacher(const ForecastTeacherParams& params) override { teacher_.Run(params); }
  void ProjectForecast(const ProjectForecastParams& params) override;
  void ForecastLoss(const ForecastLossParams& params) override;
  void AddForecastGradient(const AddForecastGradientParams& params) override;

 private:
  struct RowScratch {
    std::vector<float> forecast, shares, gradient;
    std::vector<int32_t> teacher_blocks, student_blocks, windows;
  };
  ForecastRowTally CompareRow(const ForecastLossParams& params, int row, int kv_head,
                              RowScratch* scratch) const;

  ThreadPool* const pool_;
  kernels::ForecastTeacher teacher_;
  std::vector<RowScratch> scratch_;  // [threads]
  std::vector<float> wide_;          // an operand of 16 bits
  std::vector<float> wide_rows_;
};

}  // namespace augur::kernels
