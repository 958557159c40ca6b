#include "kernels/ops/sum_values.h"

#include <algorithm>
#include <cstring>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {

void CpuBackend::SumValues(const SumValuesParams& params) {
  AUGUR_CHECK(params.head_dim > 0 && params.head_dim <= kMaxHeadDim);
  const size_t row_bytes = size_t(params.head_dim) * BytesOf(params.dtype);
  pool_.ParallelFor(params.num_segments, [&](int index, int) {
    const SumValuesSegment& segment = params.segments[index];
    const Segment& rows = segment.rows;
    const int end = rows.first_position + rows.num_rows;
    const int first_block = rows.first_position / kBlockTokens;
    const int block_stride = segment.block_stride > 0 ? segment.block_stride : params.num_kv_heads;
    for (int position = rows.first_position; position < end;) {
      const int block = position / kBlockTokens;
      const int next = std::min(end, (block + 1) * kBlockTokens);
      const int token = position - block * kBlockTokens;
      for (int head = 0; head < params.num_kv_heads; ++head) {
        const int64_t place =
            int64_t{block - first_block} * block_stride + int64_t{head} * segment.head_stride;
        float* sum = segment.sums[params.sums_offset + place];
        if (token == 0) std::memset(sum, 0, sizeof(float) * params.head_dim);
        const std::byte* values =
            segment.pages[params.pages_offset + place] + (kBlockTokens + token) * row_bytes;
        isa_.add_value_rows(params.dtype, values, next - position, params.head_dim, sum);
      }
      position = next;
    }
  });
}

}  // namespace augur::kernels
