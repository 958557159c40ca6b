#include "memory/kv_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"
#include "kernels/ops/project_keys.h"

namespace augur::memory {
namespace {

static_assert(kKeyFrameBlocks == kernels::kKeyPageBlocks);
static_assert(2 * kernels::kBlockTokens == kKeyFrameBlocks * kernels::kBlockWindows,
              "a page of keys holds the compressed keys of 32 blocks");
static_assert(kPartialFrameBlocks == kernels::kPartialPageBlocks);
static_assert(kBiasWindows == kernels::kBlockWindows && kBiasTokens == kernels::kBlockTokens);

int CeilDivide(int value, int by) { return (value + by - 1) / by; }

std::string Mebibytes(size_t bytes) {
  return absl::StrCat(bytes / 1048576, ".", bytes % 1048576 * 10 / 1048576, " MiB");
}

}  // namespace

KvLayout MakeKvLayout(int num_layers, int num_kv_heads, int head_dim, size_t element_bytes,
                      bool biases, bool value_sums) {
  const size_t row = size_t(head_dim) * element_bytes;
  return {.num_layers = num_layers,
          .num_kv_heads = num_kv_heads,
          .page_bytes = 2 * kernels::kBlockTokens * row,
          .key_bytes = kernels::kBlockWindows * row,
          .head_dim = head_dim,
          .bias_bytes = biases ? kBiasFloats * sizeof(float) : 0,
          .sum_bytes = value_sums ? head_dim * sizeof(float) : 0};
}

KvFootprint FootprintOf(const KvLayout& layout, const KvDemand& demand, int blocks) {
  AUGUR_CHECK(blocks > 0);
  KvFootprint footprint;
  if (demand.selects) footprint.key_frames = CeilDivide(blocks, kKeyFrameBlocks);
  if (demand.partial_keys) footprint.partial_frames = CeilDivide(blocks, kPartialFrameBlocks);
  if (layout.has_biases()) {
    AUGUR_CHECK(layout.bias_frame_blocks() > 0);
    footprint.bias_frames = CeilDivide(blocks, layout.bias_frame_blocks());
  }
  if (layout.has_value_sums()) {
    footprint.sum_frames = CeilDivide(blocks, layout.sum_frame_blocks());
  }
  if (demand.residency == Residency::kDevice) {
    footprint.block_frames = blocks;
    return footprint;
  }
  AUGUR_CHECK(demand.num_slots > 0);
  // A sequence of fewer blocks than slots never fills them.
  footprint.slot_frames = std::min(demand.num_slots, blocks);
  footprint.layer0_frames = CeilDivide(blocks - footprint.slot_frames, layout.num_layers);
  footprint.host_blocks = blocks;
  return footprint;
}

std::string DescribeFootprint(const KvLayout& layout, const KvDemand& demand, int blocks) {
  const KvFootprint footprint = FootprintOf(layout, demand, blocks);
  std::string text = absl::StrCat(blocks, " blocks");
  const auto add = [&](int frames, const char* what) {
    if (frames > 0) absl::StrAppend(&text, ", ", frames, " ", what);
  };
  add(footprint.block_frames, "resident");
  add(footprint.slot_frames, "slots");
  add(footprint.layer0_frames, "for layer 0");
  add(footprint.key_frames, "for compressed keys");
  add(footprint.partial_frames, "for partial keys");
  add(footprint.bias_frames, "for eviction biases");
  add(footprint.sum_frames, "for sums of values");
  absl::StrAppend(&text, " = ", footprint.frames(), " frames of ", layout.frame_bytes(),
                  " bytes = ", Mebibytes(footprint.frames() * layout.frame_bytes()),
                  " on the device");
  if (footprint.host_blocks > 0) {
    absl::StrAppend(&text, ", ", footprint.host_blocks, " blocks of ", layout.host_block_bytes(),
                    " bytes = ", Mebibytes(footprint.host_blocks * layout.host_block_bytes()),
                    " on the host");
  }
  return text;
}

}  // namespace augur::memory
