#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/silu.h"
#include "kernels/ops/gated_silu.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 256;
// Eight CTAs of 256 threads fill an SM; twice that many even out the last wave, and more would
// only add starts of CTAs.
constexpr int kCtasPerSm = 16;

// A thread keeps its columns and strides over rows.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) GatedSiluKernel(GatedSiluParams params) {
  WaitForPrevious();
  const int c = (blockIdx.x * kThreads + threadIdx.x) * kVector;
  if (c >= params.width) return;
  const size_t width = params.width;
  for (int row = blockIdx.y; row < params.rows; row += gridDim.y) {
    const T* gate = static_cast<const T*>(params.gate_up) + row * 2 * width + c;
    float gates[kVector], ups[kVector], products[kVector];
    LoadFloats(gate, gates);
    LoadFloats(gate + width, ups);
#pragma unroll
    for (int i = 0; i < kVector; ++i) products[i] = Silu<T>(gates[i]) * ups[i];
    StoreFloats(products, static_cast<T*>(params.out) + row * width + c);
  }
}

}  // namespace

void CudaBackend::GatedSilu(const GatedSiluParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.width > 0);
  ForElementType(params.dtype, [&]<class T>() {
    constexpr int kWide = 16 / sizeof(T);
    const bool is_wide =
        params.width % kWide == 0 && IsAligned(params.gate_up, 16) && IsAligned(params.out, 16);
    const int columns = kThreads * (is_wide ? kWide : 1);
    const int ctas_across = (params.width + columns - 1) / columns;
    const int ctas_down = (kCtasPerSm * num_sms_ + ctas_across - 1) / ctas_across;
    const LaunchShape shape{dim3(ctas_across, std::min(params.rows, ctas_down)), dim3(kThreads)};
    LaunchKernel(stream_, shape, is_wide ? GatedSiluKernel<T, kWide> : GatedSiluKernel<T, 1>,
                 params);
  });
}

}  // namespace augur::kernels
