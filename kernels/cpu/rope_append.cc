#include "kernels/ops/rope_append.h"

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {
namespace {

void CheckSegments(const RopeAppendParams& params) {
  int next_row = 0;
  for (int s = 0; s < params.num_segments; ++s) {
    const Segment& segment = params.segments[s];
    AUGUR_CHECK(segment.first_row == next_row && segment.num_rows > 0);
    AUGUR_CHECK(segment.first_position >= 0);
    next_row += segment.num_rows;
  }
  AUGUR_CHECK(next_row == params.rows);
}

// One token: rotates its q and k in place, then writes k and v to the token's place in each page.
void AppendRow(const RopeAppendParams& params, const IsaKernels& isa, const Segment& segment,
               int row) {
  const PagedKv& kv = params.kv;
  const int head_dim = kv.head_dim;
  const int position = segment.first_position + row - segment.first_row;
  const float* cos = params.cos + size_t(position) * (head_dim / 2);
  const float* sin = params.sin + size_t(position) * (head_dim / 2);
  const int num_heads = params.num_q_heads + 2 * kv.num_kv_heads;
  float* heads = params.qkv + size_t(row) * num_heads * head_dim;
  for (int head = 0; head < params.num_q_heads + kv.num_kv_heads; ++head) {
    isa.rotate(heads + head * head_dim, cos, sin, head_dim / 2);
  }
  const int block = segment.block_table[position / kBlockTokens];
  AUGUR_CHECK(block >= 0 && block < kv.num_blocks);
  const size_t entry_bytes = head_dim * BytesOf(kv.dtype);
  const float* k = heads + params.num_q_heads * head_dim;
  const float* v = k + kv.num_kv_heads * head_dim;
  for (int head = 0; head < kv.num_kv_heads; ++head) {
    std::byte* entry = kv.page(block, params.layer, head) + position % kBlockTokens * entry_bytes;
    isa.narrow(kv.dtype, k + head * head_dim, entry, head_dim);
    isa.narrow(kv.dtype, v + head * head_dim, entry + kBlockTokens * entry_bytes, head_dim);
  }
}

}  // namespace

void CpuBackend::RopeAppend(const RopeAppendParams& params) {
  const PagedKv& kv = params.kv;
  AUGUR_CHECK(kv.head_dim > 0 && kv.head_dim % 2 == 0 && kv.num_kv_heads > 0);
  AUGUR_CHECK(params.layer >= 0 && params.layer < kv.num_layers && params.num_q_heads >= 0);
  CheckSegments(params);
  const int64_t row_cost = int64_t{params.num_q_heads + 2 * kv.num_kv_heads} * kv.head_dim;
  ForRows(params.rows, row_cost, [&](int first, int end, int) {
    const Segment* segment = params.segments;
    for (int row = first; row < end; ++row) {
      while (row >= segment->first_row + segment->num_rows) ++segment;
      AppendRow(params, isa_, *segment, row);
    }
  });
}

}  // namespace augur::kernels
