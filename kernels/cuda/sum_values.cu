#include <algorithm>

#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/element.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_page.h"
#include "kernels/ops/sum_values.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxCtas = 128;  // of one segment and kv head

// A CTA some blocks of a (segment, kv head), a thread a column: one chain in the order of tokens.
template <class T>
__global__ void __launch_bounds__(kThreads) SumValuesKernel(SumValuesParams params) {
  WaitForPrevious();
  const SumValuesSegment segment = params.segments[blockIdx.x];
  const Segment rows = segment.rows;
  if (rows.num_rows <= 0) return;
  const int head = blockIdx.y, head_dim = params.head_dim;
  const int end = rows.first_position + rows.num_rows;
  const int first_block = rows.first_position / kBlockTokens;
  const int blocks = (end - 1) / kBlockTokens - first_block + 1;
  const int block_stride = segment.block_stride > 0 ? segment.block_stride : params.num_kv_heads;
  for (int i = blockIdx.z; i < blocks; i += gridDim.z) {
    const int64_t place = int64_t{i} * block_stride + int64_t{head} * segment.head_stride;
    const T* values = reinterpret_cast<const T*>(segment.pages[params.pages_offset + place]) +
                      kBlockTokens * head_dim;
    float* sums = segment.sums[params.sums_offset + place];
    const int block_begin = (first_block + i) * kBlockTokens;
    const int from = max(rows.first_position - block_begin, 0);
    const int to = min(end - block_begin, kBlockTokens);
    for (int column = threadIdx.x; column < head_dim; column += kThreads) {
      float sum = from == 0 ? 0.0f : sums[column];
#pragma unroll 8
      for (int token = from; token < to; ++token) {
        sum += ToFloat(values[token * head_dim + column]);
      }
      sums[column] = sum;
    }
  }
}

}  // namespace

void CudaBackend::SumValues(const SumValuesParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0 && params.head_dim > 0);
  if (params.num_segments == 0) return;
  const int lists = params.num_segments * params.num_kv_heads;
  const int ctas = std::clamp(4 * num_sms_ / lists, 1, kMaxCtas);
  ForElementType(params.dtype, [&]<class T>() {
    LaunchKernel(stream_, {dim3(params.num_segments, params.num_kv_heads, ctas), dim3(kThreads)},
                 SumValuesKernel<T>, params);
  });
}

}  // namespace augur::kernels
