#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/compress_window.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"

namespace augur::kernels {
namespace {

// Four windows of 128 channels at a time, four channels a thread.
constexpr int kThreads = 128;
// Of one (segment, kv head): 64 times four windows are a chunk of 4096 tokens in one round.
constexpr int kMaxCtas = 64;

// A CTA strides over the windows of one (segment, kv head). Most decode calls end no window.
template <class T, int kVector>
__global__ void __launch_bounds__(kThreads) CompressKeysKernel(CompressKeysParams params) {
  WaitForPrevious();
  const Segment rows = params.segments[blockIdx.x].rows;
  if (rows.num_rows <= 0) return;
  const WindowRange windows = WindowsEndingIn(rows);
  if (windows.count() == 0) return;
  const CompressSegment segment = params.segments[blockIdx.x];
  const int kv_head = blockIdx.y;
  const int head_vectors = params.head_dim / kVector;
  const int step = gridDim.z * kThreads;
  for (int item = blockIdx.z * kThreads + threadIdx.x; item < windows.count() * head_vectors;
       item += step) {
    WriteWindow<T, kVector>(params, segment, windows.begin + item / head_vectors, kv_head,
                            item % head_vectors * kVector);
  }
}

}  // namespace

// Pages and compressed keys are aligned to four elements where head_dim is a multiple of four.
void CudaBackend::CompressKeys(const CompressKeysParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0 && params.head_dim > 0);
  const int lists = params.num_segments * params.num_kv_heads;
  if (lists == 0) return;
  // Two CTAs an SM: few segments (a prefill call) share them, many (decode) have one each.
  const int ctas = std::clamp(2 * num_sms_ / lists, 1, kMaxCtas);
  const LaunchShape shape{dim3(params.num_segments, params.num_kv_heads, ctas), dim3(kThreads)};
  ForElementType(params.dtype, [&]<class T>() {
    const bool is_wide = params.head_dim % 4 == 0;
    LaunchKernel(stream_, shape, is_wide ? CompressKeysKernel<T, 4> : CompressKeysKernel<T, 1>,
                 params);
  });
}

}  // namespace augur::kernels
