// What training of Forecast heads needs computed beside the frozen model's own ops: one virtual an
// op, twins on the CPU and on a device as Backend's (backend.h), with the same rules of memory,
// order and threads. Not recorded into graphs.
#pragma once

#include "kernels/ops/forecast_loss.h"
#include "kernels/ops/forecast_teacher.h"
#include "kernels/ops/gather_rows.h"
#include "kernels/ops/project_forecast.h"
#include "kernels/ops/window_keys.h"

namespace augur::kernels {

class TrainingOps {
 public:
  virtual ~TrainingOps() = default;

  virtual void GatherRows(const GatherRowsParams& params) = 0;
  virtual void WindowKeys(const WindowKeysParams& params) = 0;
  virtual void ForecastTeacher(const ForecastTeacherParams& params) = 0;
  virtual void ProjectForecast(const ProjectForecastParams& params) = 0;
  virtual void ForecastLoss(const ForecastLossParams& params) = 0;
  virtual void AddForecastGradient(const AddForecastGradientParams& params) = 0;
};

}  // namespace augur::kernels
