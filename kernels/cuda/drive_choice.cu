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

// One list, one CTA.
struct DrivenList {
  int item;
  int position;
  int init;
  int local;
  int candidates;
  int places;
};

// Bitmaps of one bit a block, or a place of the stack; ends: set bits up to a word's end.
struct Bitmaps {
  uint32_t chosen[kWords];
  uint32_t taken[kWords];
  int ends[kWords];
};

__device__ bool TakeBit(uint32_t* words, int bit) {
  return (atomicOr(&words[bit / 32], 1u << bit % 32) >> bit % 32 & 1) == 0;
}

// ends[i] = set bits of words[0] to words[i]. All threads.
__device__ void CountBits(const uint32_t* words, int* ends) {
  ends[threadIdx.x] = __popc(words[threadIdx.x]);
  __syncthreads();
  for (int step = 1; step < kThreads; step *= 2) {
    const int before = static_cast<int>(threadIdx.x) >= step ? ends[threadIdx.x - step] : 0;
    __syncthreads();
    ends[threadIdx.x] += before;
    __syncthreads();
  }
}

__device__ void ChooseAlike(const DriveChoiceParams& params, const DrivenList& list,
                            const SelectionBudget& budget, Bitmaps* maps) {
  for (int place = threadIdx.x; place < list.places; place += kThreads) {
    int block = DrivenBlock(DrivenPlace(params.layer, list.item, place), list.position,
                            params.reuse, budget);
    while (!TakeBit(maps->chosen, block)) {
      block = list.init + (block - list.init + 1) % list.candidates;
    }
  }
  __syncthreads();
}

// As on the CPU: which bits a probe of free ones takes does not depend on who comes first.
__device__ void ChooseByLaw(const DriveChoiceParams& params, const DrivenList& list,
                            Bitmaps* maps) {
  const int position = list.position, candidates = list.candidates;
  int32_t* const halves = params.stacks + size_t(list.item) * 2 * params.stack_stride;
  const int32_t* const from = halves + ((position - 1) & 1) * params.stack_stride;
  int32_t* const to = halves + (position & 1) * params.stack_stride;
  const int known = from[0] == position - 1 ? min(from[1], candidates) : 0;
  maps->taken[threadIdx.x] = 0;
  __syncthreads();
  for (int place = threadIdx.x; place < list.places; place += kThreads) {
    if (StaysChosen(DrivenPlace(params.layer, list.item, place), position, params.reuse)) {
      TakeBit(maps->taken, place);
    }
  }
  __syncthreads();
  for (int place = threadIdx.x; place < list.places; place += kThreads) {
    const uint64_t id = DrivenPlace(params.layer, list.item, place);
    if (StaysChosen(id, position, params.reuse)) continue;
    int depth = LawDepth(params.law, id, position, list.places, candidates);
    while (!TakeBit(maps->taken, depth)) depth = (depth + 1) % candidates;
  }
  __syncthreads();
  CountBits(maps->taken, maps->ends);
  const uint64_t id = DrivenPlace(params.layer, list.item, 0);
  for (int depth = threadIdx.x; depth < candidates; depth += kThreads) {
    int32_t block = list.init + depth;
    if (known == 0) {
      block = FirstStackBlock(id, depth, candidates, list.init);
    } else if (depth < known) {
      block = from[kStackHead + depth];
    }
    const uint32_t word = maps->taken[depth / 32];
    const bool taken = word >> depth % 32 & 1;
    const int before = maps->ends[depth / 32] - __popc(word >> depth % 32);
    to[kStackHead + (taken ? before : list.places + depth - before)] = block;
    if (taken) TakeBit(maps->chosen, block);
  }
  if (threadIdx.x == 0) {
    to[0] = position;
    to[1] = candidates;
  }
  __syncthreads();
}

// grid: (segments, kv heads, rows). A thread a place, then a word of the bitmap.
__global__ void __launch_bounds__(kThreads) DriveChoiceKernel(DriveChoiceParams params) {
  WaitForPrevious();
  __shared__ Bitmaps maps;
  const SelectSegment segment = params.segments[blockIdx.x];
  const int row = blockIdx.z;
  if (row >= segment.rows.num_rows) return;
  const int position = segment.rows.first_position + row;
  const int blocks = position / kBlockTokens + 1;
  const int init = segment.budget.init, local = segment.budget.local;
  const DrivenList list = {static_cast<int>(blockIdx.x * params.num_kv_heads + blockIdx.y),
                           position,
                           init,
                           local,
                           blocks - init - local,
                           segment.budget.top_k - init - local};
  const bool all = list.candidates <= list.places;

  uint32_t word = 0;
  for (int bit = 0; bit < 32; ++bit) {
    const int block = threadIdx.x * 32 + bit;
    const bool forced = all || block < init || block >= blocks - local;
    if (block < blocks && forced) word |= 1u << bit;
  }
  maps.chosen[threadIdx.x] = word;
  __syncthreads();
  if (!all && params.stacks == nullptr) ChooseAlike(params, list, segment.budget, &maps);
  if (!all && params.stacks != nullptr) ChooseByLaw(params, list, &maps);
  CountBits(maps.chosen, maps.ends);
  word = maps.chosen[threadIdx.x];
  const size_t at = size_t(segment.rows.first_row + row) * params.num_kv_heads + blockIdx.y;
  int entry = maps.ends[threadIdx.x] - __popc(word);
  for (; word != 0; word &= word - 1) {
    params.blocks[at * params.selection_stride + entry++] = threadIdx.x * 32 + __ffs(word) - 1;
  }
  if (threadIdx.x == kThreads - 1) params.counts[at] = maps.ends[kThreads - 1];
}

}  // namespace

void CudaBackend::DriveChoice(const DriveChoiceParams& params) {
  AUGUR_CHECK(params.num_kv_heads > 0 && params.max_rows > 0);
  AUGUR_CHECK(params.stacks == nullptr || params.max_rows == 1);
  LaunchKernel(stream_,
               {dim3(params.num_segments, params.num_kv_heads, params.max_rows), dim3(kThreads)},
               DriveChoiceKernel, params);
}

}  // namespace augur::kernels
