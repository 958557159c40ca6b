// InfiniGen's three products with a kv head's basis, and the choice of its columns. They are a
// small part of a step (prompts: one product of head_dim a query head, against hidden_size outputs
// of the projections), so plain loops over a few columns at a time do; the order of every sum is in
// the source.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/kv_page.h"
#include "kernels/ops/choose_channels.h"
#include "kernels/ops/project_keys.h"
#include "kernels/ops/project_queries.h"
#include "kernels/ops/sum_channels.h"

namespace augur::kernels {
namespace {

// Columns whose chains run side by side.
constexpr int kColumns = 32;

// out[c] = sum over d, ascending, of x[d] matrix[d][c], for c below columns.
void Multiply(const float* x, const float* matrix, int stride, int depth, int columns, float* out) {
  for (int first = 0; first < columns; first += kColumns) {
    const int width = std::min(kColumns, columns - first);
    float sums[kColumns] = {};
    for (int d = 0; d < depth; ++d) {
      const float* row = matrix + size_t(d) * stride + first;
      if (width == kColumns) {
        for (int c = 0; c < kColumns; ++c) sums[c] += x[d] * row[c];
      } else {
        for (int c = 0; c < width; ++c) sums[c] += x[d] * row[c];
      }
    }
    std::copy(sums, sums + width, out + first);
  }
}

// The chosen columns of one kv head's basis, side by side: [head_dim][num_channels].
void GatherColumns(const float* basis, const int32_t* channels, int head_dim, int num_channels,
                   float* out) {
  for (int c = 0; c < num_channels; ++c) {
    AUGUR_CHECK(channels[c] >= 0 && channels[c] < head_dim);
  }
  for (int d = 0; d < head_dim; ++d) {
    for (int c = 0; c < num_channels; ++c) {
      out[size_t(d) * num_channels + c] = basis[size_t(d) * head_dim + channels[c]];
    }
  }
}

}  // namespace

// Items are (segment, kv head, run of columns): a sum over rows is never split.
void CpuBackend::SumChannels(const SumChannelsParams& params) {
  const int head_dim = params.head_dim;
  const int heads = params.heads_per_group;
  AUGUR_CHECK(head_dim > 0 && head_dim <= kMaxHeadDim && params.num_kv_heads > 0 && heads > 0);
  AUGUR_CHECK(params.q_stride >= params.num_kv_heads * heads * head_dim);
  const int runs = (head_dim + kColumns - 1) / kColumns;
  pool_.ParallelFor(params.num_segments * params.num_kv_heads * runs, [&](int item, int) {
    const int first = item % runs * kColumns;
    const int width = std::min(kColumns, head_dim - first);
    const int kv_head = item / runs % params.num_kv_heads;
    const ChannelSegment& segment = params.segments[item / runs / params.num_kv_heads];
    const float* basis = params.basis + size_t(kv_head) * head_dim * head_dim + first;
    float* sums = segment.sums + params.sums_offset + size_t(kv_head) * head_dim + first;
    for (int row = 0; row < segment.rows.num_rows; ++row) {
      const float* q = params.q + size_t(segment.rows.first_row + row) * params.q_stride +
                       size_t(kv_head) * heads * head_dim;
      for (int head = 0; head < heads; ++head) {
        float products[kColumns];
        Multiply(q + size_t(head) * head_dim, basis, head_dim, head_dim, width, products);
        for (int c = 0; c < width; ++c) sums[c] += std::fabs(products[c]);
      }
    }
  });
}

void CpuBackend::ChooseChannels(const ChooseChannelsParams& params) {
  const int head_dim = params.head_dim, num_channels = params.num_channels;
  AUGUR_CHECK(num_channels > 0 && num_channels <= head_dim && params.num_kv_heads > 0);
  std::vector<int32_t> order(head_dim);
  for (int item = 0; item < params.num_segments * params.num_kv_heads; ++item) {
    const ChooseChannelsSegment& segment = params.segments[item / params.num_kv_heads];
    if (segment.channels == nullptr) continue;
    const size_t kv_head = item % params.num_kv_heads;
    const float* sums = segment.sums + params.sums_offset + kv_head * head_dim;
    // NaN counts as nothing: the order stays a total one.
    const auto weight = [&](int32_t channel) { return sums[channel] >= 0 ? sums[channel] : 0.0f; };
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return weight(a) > weight(b); });
    int32_t* channels = segment.channels + params.channels_offset + kv_head * num_channels;
    std::copy_n(order.begin(), num_channels, channels);
    std::sort(channels, channels + num_channels);
  }
}

// Items are (block, kv head).
void CpuBackend::ProjectKeys(const ProjectKeysParams& params) {
  const int head_dim = params.head_dim;
  const int channels = params.num_channels;
  AUGUR_CHECK(head_dim > 0 && head_dim <= kMaxHeadDim && params.num_kv_heads > 0);
  AUGUR_CHECK(channels > 0 && channels <= head_dim);
  const size_t key_bytes = head_dim * BytesOf(params.dtype);
  const size_t partial_bytes = channels * BytesOf(params.dtype);
  for (int s = 0; s < params.num_segments; ++s) {
    const ProjectSegment& segment = params.segments[s];
    if (segment.rows.num_rows == 0) continue;
    const int begin = segment.rows.first_position;
    const int end = begin + segment.rows.num_rows;
    AUGUR_CHECK(begin >= 0 && end > begin);
    const int block_stride = segment.block_stride > 0 ? segment.block_stride : params.num_kv_heads;
    const int first_block = begin / kBlockTokens;
    const int blocks = (end - 1) / kBlockTokens - first_block + 1;
    pool_.ParallelFor(blocks * params.num_kv_heads, [&](int item, int thread) {
      const int kv_head = item % params.num_kv_heads;
      const int entry = item / params.num_kv_heads, block = first_block + entry;
      const int block_begin = block * kBlockTokens;
      const std::byte* page = segment.pages[params.pages_offset + int64_t{entry} * block_stride +
                                            int64_t{kv_head} * segment.head_stride];
      std::byte* target =
          segment.targets[params.targets_offset + int64_t{kv_head} * segment.target_stride +
                          block / kPartialPageBlocks] +
          block % kPartialPageBlocks * kBlockTokens * partial_bytes;
      float* columns = thread_scratch_[thread].floats();
      float* key = columns + size_t(head_dim) * channels;
      float* partial = key + head_dim;
      GatherColumns(params.basis + size_t(kv_head) * head_dim * head_dim,
                    segment.channels + params.channels_offset + size_t(kv_head) * channels,
                    head_dim, channels, columns);
      std::byte unpacked[kMaxHeadDim * sizeof(float)];
      const int last = std::min(end, block_begin + kBlockTokens);
      for (int token = std::max(begin, block_begin); token < last; ++token) {
        const int at = token - block_begin;
        const std::byte* row = page + at * key_bytes;
        if (params.fp8.holds(page)) {
          UnpackRow(params.dtype, head_dim, page, at, unpacked);
          row = unpacked;
        }
        isa_.widen(params.dtype, row, key, head_dim);
        Multiply(key, columns, channels, head_dim, channels, partial);
        isa_.narrow(params.dtype, partial, target + at * partial_bytes, channels);
      }
    });
  }
}

void CpuBackend::ProjectQueries(const ProjectQueriesParams& params) {
  const int head_dim = params.head_dim;
  const int channels = params.num_channels;
  const int heads = params.heads_per_group;
  AUGUR_CHECK(head_dim > 0 && head_dim % 2 == 0 && head_dim <= kMaxHeadDim && heads > 0);
  AUGUR_CHECK(params.num_kv_heads > 0 && channels > 0 && channels <= head_dim);
  AUGUR_CHECK(params.q_stride >= params.num_kv_heads * heads * head_dim);
  pool_.ParallelFor(params.num_segments * params.num_kv_heads, [&](int item, int thread) {
    const QuerySegment& segment = params.segments[item / params.num_kv_heads];
    if (segment.rows.num_rows == 0) return;
    const int kv_head = item % params.num_kv_heads;
    float* columns = thread_scratch_[thread].floats();
    float* query = columns + size_t(head_dim) * channels;
    GatherColumns(params.basis + size_t(kv_head) * head_dim * head_dim,
                  segment.channels + params.channels_offset + size_t(kv_head) * channels, head_dim,
                  channels, columns);
    for (int i = 0; i < segment.rows.num_rows; ++i) {
      const size_t row = segment.rows.first_row + i;
      const float* q = params.q + row * params.q_stride + size_t(kv_head) * heads * head_dim;
      std::copy(q, q + head_dim, query);
      for (int head = 1; head < heads; ++head) {
        for (int d = 0; d < head_dim; ++d) query[d] += q[size_t(head) * head_dim + d];
      }
      const int position = segment.rows.first_position + i;
      const size_t angle = size_t(segment.first_angle + position) * (head_dim / 2);
      isa_.rotate(query, params.cos + angle, params.sin + angle, head_dim / 2);
      Multiply(query, columns, channels, head_dim, channels,
               params.out + (row * params.num_kv_heads + kv_head) * channels);
    }
  });
}

}  // namespace augur::kernels
