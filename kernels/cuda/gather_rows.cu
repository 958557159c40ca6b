#include "kernels/check.h"
#include "kernels/cuda/cuda_training_ops.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/launch.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 128;

template <class From, class To, int kVector>
__global__ void __launch_bounds__(kThreads) GatherRowsKernel(GatherRowsParams params) {
  WaitForPrevious();
  const int row = blockIdx.x;
  const From* from =
      static_cast<const From*>(params.from) + params.row_ids[row] * params.from_stride;
  To* to = static_cast<To*>(params.to) + int64_t{row} * params.width;
  for (int c = threadIdx.x * kVector; c < params.width; c += kThreads * kVector) {
    float values[kVector];
    LoadFloats(from + c, values);
    StoreFloats(values, to + c);
  }
}

}  // namespace

void CudaTrainingOps::GatherRows(const GatherRowsParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.width > 0 && params.from_stride >= params.width);
  const LaunchShape shape{dim3(params.rows), dim3(kThreads)};
  const bool is_wide = params.width % 4 == 0 && params.from_stride % 4 == 0 &&
                       IsAligned(params.from, 16) && IsAligned(params.to, 16);
  ForElementType(params.from_dtype, [&]<class From>() {
    ForElementType(params.to_dtype, [&]<class To>() {
      LaunchKernel(stream_, shape,
                   is_wide ? GatherRowsKernel<From, To, 4> : GatherRowsKernel<From, To, 1>, params);
    });
  });
}

}  // namespace augur::kernels
