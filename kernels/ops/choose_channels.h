#pragma once
#include <cstdint>

namespace augur::kernels {

struct ChooseChannelsSegment {
  const float* sums = nullptr;  // [num_kv_heads][head_dim], as SumChannels leaves them
  int32_t* channels = nullptr;  // [num_kv_heads][num_channels]; null: the segment is left out
};

// Of every kv head the num_channels columns with the largest sums, ascending; equal ones go to the
// lower column. A sum that is no number (of a prompt whose activations are not finite, which ends
// by its logits) counts as nothing.
struct ChooseChannelsParams {
  const ChooseChannelsSegment* segments = nullptr;  // [num_segments]
  int num_segments = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  int num_channels = 0;
  // Added to every segment's sums and channels, in entries.
  int64_t sums_offset = 0;
  int64_t channels_offset = 0;
};

}  // namespace augur::kernels
