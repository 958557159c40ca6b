#include "kernels/check.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/launch.h"
#include "kernels/kv_page.h"
#include "kernels/ops/open_tails.h"
#include "kernels/ops/place_blocks.h"

namespace augur::kernels {
namespace {

constexpr int kWarp = 32;
constexpr int kWarps = 4;  // of a CTA
constexpr uint64_t kNever = ~uint64_t{0};

// How early a slot goes, the lower the earlier, with the slot in its low half: the one that holds
// the block already; empty ones; the least stamp.
__device__ uint64_t RankOf(const TailSegment& segment, int32_t block, int32_t held, int32_t stamp,
                           int slot) {
  if (held == block) return 0 + slot;
  if (held == kEmptySlot) return (uint64_t{1} << 32) + slot;
  const int local_begin = block - max(segment.local, 1) + 1;
  if (held < segment.init || held >= local_begin) return kNever;
  const uint64_t age_order = static_cast<uint32_t>(stamp) ^ 0x80000000u;
  return ((age_order + 2) << 32) + slot;
}

// One warp a segment, layer from 1 on and kv head.
__global__ void __launch_bounds__(kWarp* kWarps) OpenTailsKernel(OpenTailsParams params) {
  WaitForPrevious();
  const int groups = (params.num_layers - 1) * params.num_kv_heads;
  const int item = blockIdx.x * kWarps + threadIdx.x / kWarp;
  const int lane = threadIdx.x % kWarp;
  const int s = item / groups;
  if (s >= params.num_segments) return;
  const TailSegment segment = params.segments[s];
  if (segment.rows.num_rows == 0) return;
  const size_t group = item % groups + params.num_kv_heads;
  const int32_t block = segment.rows.first_position / kBlockTokens;
  int32_t* blocks = segment.slot_blocks + group * segment.slot_stride;
  int32_t* stamps = segment.slot_stamps + group * segment.slot_stride;
  uint64_t first = kNever;
#pragma unroll 4
  for (int slot = lane; slot < segment.num_slots; slot += kWarp) {
    const uint64_t rank = RankOf(segment, block, blocks[slot], stamps[slot], slot);
    first = rank < first ? rank : first;
  }
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const uint64_t other = __shfl_xor_sync(0xffffffffu, first, step);
    first = other < first ? other : first;
  }
  if (lane != 0) return;
  // The CPU's CHECKs.
  if (segment.rows.num_rows > 1 || block >= segment.source_stride || first == kNever) __trap();
  const int slot = static_cast<int>(first & 0xffffffffu);
  if (first >> 32 != 0) {
    blocks[slot] = block;
    stamps[slot] = segment.rows.first_position;
    if (segment.slot_costs != nullptr) {
      segment.slot_costs[group * segment.slot_stride + slot] = kSlotHasValues;
    }
  }
  segment.sources[group * segment.source_stride + block] =
      segment.slot_pages[group * segment.slot_stride + slot];
}

}  // namespace

void CudaBackend::OpenTails(const OpenTailsParams& params) {
  AUGUR_CHECK(params.num_segments >= 0 && params.num_kv_heads > 0 && params.num_layers >= 1);
  const int items = params.num_segments * (params.num_layers - 1) * params.num_kv_heads;
  LaunchKernel(stream_, {dim3((items + kWarps - 1) / kWarps), dim3(kWarp * kWarps)},
               OpenTailsKernel, params);
}

}  // namespace augur::kernels
