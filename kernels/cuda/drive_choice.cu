#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_page.h"
#include "kernels/ops/drive_choice.h"

namespace augur::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int kWords = kMaxDrivenBlocks / 32;
static_assert(kWords == kThreads);

// grid: (segments, kv heads, rows). One CTA a list; a thread a place, then a word of the bitmap.
__global__ void __launch_bounds__(kThreads) DriveChoiceKernel(DriveChoiceParams params) {
  WaitForPrevious();
  __shared__ uint32_t chosen[kWords];
  __shared__ int ends[kWords];
  const SelectSegment segment = params.segments[blockIdx.x];
  const int row = blockIdx.z;
  if (row >= segment.rows.num_rows) return;
  const int head = blockIdx.y;
  const int item = blockIdx.x * params.num_kv_heads + head;
  const int position = segment.rows.first_position + row;
  const int blocks = position / kBlockTokens + 1;
  const int init = segment.budget.init, local = segment.budget.local;
  const int candidates = blocks - init - local;
  const int places = segment.budget.top_k - init - local;
  const bool all = candidates <= places;

  uint32_t word = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const int block = threadIdx.x * 32 + bit;
    const bool forced = all || block < init || block >= blocks - local;
    if (block < blocks && forced) word |= 1u << bit;
  }
  chosen[threadIdx.x] = word;
  __syncthreads();
  for (int place = threadIdx.x; !all && place < places; place += kThreads) {
    const uint64_t id = (uint64_t(params.layer) << 40) + (uint64_t(item) << 16) + place;
    int block = DrivenBlock(id, position, params.reuse, segment.budget);
    while (atomicOr(&chosen[block / 32], 1u << block % 32) >> block % 32 & 1) {
      block = init + (block - init + 1) % candidates;
    }
  }
  __syncthreads();
  word = chosen[threadIdx.x];
  ends[threadIdx.x] = __popc(word);
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2) {
    const int before = static_cast<int>(threadIdx.x) >= step ? ends[threadIdx.x - step] : 0;
    __syncthreads();
    ends[threadIdx.x] += before;
    __syncthreads();
  }
  const size_t list = size_t(segment.rows.first_row + row) * params.num_kv_heads + head;
  int at = ends[threadIdx.x] - __popc(word);
  for (; word != 0; word &= word - 1) {
    params.blocks[list * params.selection_stride + at++] = threadIdx.x * 32 + __ffs(word) - 1;
  }
  if (threadIdx.x == kThreads - 1) params.counts[list] = ends[kThreads - 1];
}

}  // namespace

void CudaBackend::DriveChoice(const DriveChoiceParams& params) {
  AUGUR_CHECK(params.num_kv_heads > 0 && params.max_rows > 0);
  LaunchKernel(stream_,
               {dim3(params.num_segments, params.num_kv_heads, params.max_rows), dim3(kThreads)},
               DriveChoiceKernel, params);
}

}  // namespace augur::kernels
