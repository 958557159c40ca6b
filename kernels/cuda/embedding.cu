#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/element_vector.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/embedding.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 256;  // four elements each: a row of 4096 in four rounds

// One CTA a row. The host cannot look at ids: one outside of the table makes a row of NaN, which
// sampling reports as not finite, for that row alone.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) EmbeddingKernel(EmbeddingParams params) {
  WaitForPrevious();
  const int row = blockIdx.x;
  const int id = params.ids[row];
  float* out = params.out + size_t(row) * params.hidden;
  const bool is_known = id >= 0 && id < params.vocab;
  const T* entry =
      static_cast<const T*>(params.table) + (is_known ? size_t(id) : 0) * params.hidden;
  const float scale = is_known ? params.scale : __int_as_float(0x7fffffff);
  for (int c = threadIdx.x * kVector; c < params.hidden; c += kThreads * kVector) {
    float values[kVector];
    LoadFloats(entry + c, values);
#pragma unroll
    for (int i = 0; i < kVector; ++i) values[i] *= scale;
    StoreFloats(values, out + c);
  }
}

}  // namespace

void CudaBackend::Embedding(const EmbeddingParams& params) {
  AUGUR_CHECK(params.rows >= 0 && params.hidden > 0 && params.vocab > 0);
  const LaunchShape shape{dim3(params.rows), dim3(kThreads)};
  ForElementType(params.table_dtype, [&]<class T>() {
    const bool is_wide = params.hidden % 4 == 0 && IsAligned(params.table, 4 * sizeof(T)) &&
                         IsAligned(params.out, 4 * sizeof(float));
    LaunchKernel(stream_, shape, is_wide ? EmbeddingKernel<T, 4> : EmbeddingKernel<T, 1>, params);
  });
}

}  // namespace augur::kernels
