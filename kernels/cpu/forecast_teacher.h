// ForecastTeacher on the CPU (ops/forecast_teacher.h says what it is).
//
// Thread: one at a time; works on a team of its own. Ownership: owns scratch of 1 MiB a thread, or
// of what one row of the longest sequence seen needs. Failure: a bad shape is a CHECK.
#pragma once

#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/isa/isa_kernels.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops/forecast_teacher.h"

namespace augur::kernels {

class ForecastTeacher {
 public:
  explicit ForecastTeacher(ThreadPool* pool, CpuIsa isa = CpuIsa::kAuto);
  void Run(const ForecastTeacherParams& params);

 private:
  struct Item {
    int kv_head = 0;
    int first_row = 0;
    int num_rows = 0;
  };
  void Score(const ForecastTeacherParams& params, const Item& item, int thread);

  ThreadPool* const pool_;
  const IsaKernels& isa_;
  const float* q_ = nullptr;    // of the call under way
  std::vector<float> widened_;  // q, where it is of 16 bits
  std::vector<Item> items_;
  std::vector<AlignedBuffer> scores_;   // [threads]
  std::vector<AlignedBuffer> scratch_;  // [threads]
};

}  // namespace augur::kernels
