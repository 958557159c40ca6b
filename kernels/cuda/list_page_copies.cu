#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops/list_page_copies.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 128;

// A row of CTAs a segment and kv head; one thread a block.
__global__ void __launch_bounds__(kThreads) ListPageCopiesKernel(ListPageCopiesParams params) {
  WaitForPrevious();
  const int head = blockIdx.y % params.num_kv_heads;
  const PageRange range = params.segments[blockIdx.y / params.num_kv_heads];
  if (range.num_blocks > params.max_blocks) __trap();  // the CPU's CHECK
  const int block = blockIdx.x * kThreads + threadIdx.x;
  if (block >= range.num_blocks) return;
  params.copies[range.first_copy + int64_t{head} * range.num_blocks + block] = {
      range.from[params.from_offset + int64_t{head} * range.from_stride + block],
      range.to[params.to_offset + int64_t{head} * range.to_stride + block]};
}

}  // namespace

void CudaBackend::ListPageCopies(const ListPageCopiesParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads >= 0 && params.max_blocks >= 0);
  LaunchKernel(stream_,
               {dim3((params.max_blocks + kThreads - 1) / kThreads,
                     params.num_segments * params.num_kv_heads),
                dim3(kThreads)},
               ListPageCopiesKernel, params);
}

}  // namespace augur::kernels
