#include "kernels/ops/eviction_bias.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"

namespace augur::kernels {
namespace {

constexpr int kChains = 8;
constexpr float kSoftplusLinear = 20.0f;  // torch.nn.functional.softplus's threshold

float Softplus(float x) { return x > kSoftplusLinear ? x : std::log1p(std::exp(x)); }

void AddProducts(const float* a, const float* b, int count, float* chains) {
  int i = 0;
  for (; i + kChains <= count; i += kChains) {
    for (int c = 0; c < kChains; ++c) chains[c] += a[i + c] * b[i + c];
  }
  for (int c = 0; i + c < count; ++c) chains[c] += a[i + c] * b[i + c];
}

// Where the lists of the segment's first block begin, and how far its neighbours' are.
struct EvictionLists {
  EvictionLists(const EvictionBiasParams& params, const EvictionSegment& segment)
      : pages(segment.pages + params.pages_offset),
        biases(segment.biases + params.biases_offset),
        block_stride(segment.block_stride > 0 ? segment.block_stride : params.num_kv_heads),
        head_stride(segment.head_stride) {}

  const std::byte* PageOf(int touched, int head) const {
    return pages[int64_t{touched} * block_stride + int64_t{head} * head_stride];
  }
  // touched -1: the block before.
  float* BiasesOf(int touched, int head) const {
    return biases[int64_t{touched + 1} * block_stride + int64_t{head} * head_stride];
  }

  const std::byte* const* pages;
  float* const* biases;
  int block_stride;
  int head_stride;
};

// The biases of the token at place `at` of the block, all kv heads. values: room for one head's.
void WriteToken(const EvictionBiasParams& params, const IsaKernels& isa, const EvictionLists& lists,
                int touched, int at, float* values) {
  const int head_dim = params.head_dim;
  const int kv_heads = params.num_kv_heads;
  const size_t value_bytes = head_dim * BytesOf(params.dtype);
  for (int head = 0; head < kv_heads; ++head) {
    float chains[kChains] = {};
    for (int source = 0; source < kv_heads; ++source) {
      isa.widen(params.dtype, lists.PageOf(touched, source) + (kBlockTokens + at) * value_bytes,
                values, head_dim);
      AddProducts(params.weight + (size_t(head) * kv_heads + source) * head_dim, values, head_dim,
                  chains);
    }
    float sum = ((chains[0] + chains[4]) + (chains[2] + chains[6])) +
                ((chains[1] + chains[5]) + (chains[3] + chains[7]));
    if (params.bias != nullptr) sum += params.bias[head];
    lists.BiasesOf(touched, head)[at] = params.gate[head] * Softplus(sum);
  }
}

float SumWindowHalf(const float* biases) {
  float sum = biases[0];
  for (int i = 1; i < kWindowStride; ++i) sum += biases[i];
  return sum;
}

void WriteMeans(const EvictionBiasParams& params, const EvictionSegment& segment) {
  const EvictionLists lists(params, segment);
  const Segment& rows = segment.rows;
  const int first_block = rows.first_position / kBlockTokens;
  // 16 biases from `token` on; they never cross a block.
  const auto biases_at = [&](int token, int head) {
    const float* biases = lists.BiasesOf(token / kBlockTokens - first_block, head);
    AUGUR_CHECK(biases != nullptr);
    return biases + token % kBlockTokens;
  };
  const WindowRange windows = WindowsEndingIn(rows);
  for (int window = windows.begin; window < windows.end; ++window) {
    const int token = window * kWindowStride;
    const int block = (token + kWindowTokens - 1) / kBlockTokens;
    for (int head = 0; head < params.num_kv_heads; ++head) {
      float* means =
          segment.mean_pages[params.means_offset + int64_t{head} * segment.mean_page_stride +
                             block / kKeyPageBlocks];
      means[block % kKeyPageBlocks * kBlockWindows + (window + 1) % kBlockWindows] =
          (SumWindowHalf(biases_at(token, head)) +
           SumWindowHalf(biases_at(token + kWindowStride, head))) /
          kWindowTokens;
    }
  }
}

}  // namespace

void CpuBackend::EvictionBias(const EvictionBiasParams& params) {
  const int kv_heads = params.num_kv_heads;
  AUGUR_CHECK(kv_heads > 0 && params.head_dim > 0 && params.head_dim <= kMaxHeadDim);
  AUGUR_CHECK(params.gate != nullptr && params.weight != nullptr);
  eviction_items_.clear();
  for (int s = 0; s < params.num_segments; ++s) {
    const Segment& rows = params.segments[s].rows;
    if (rows.num_rows == 0) continue;
    AUGUR_CHECK(rows.num_rows > 0 && rows.first_position >= 0);
    const int end = (rows.first_position + rows.num_rows - 1) / kBlockTokens + 1;
    for (int block = rows.first_position / kBlockTokens; block < end; ++block) {
      eviction_items_.push_back({&params.segments[s], block});
    }
  }
  pool_.ParallelFor(static_cast<int>(eviction_items_.size()), [&](int item, int thread) {
    const auto [segment, block] = eviction_items_[item];
    const int begin = segment->rows.first_position;
    const int end = begin + segment->rows.num_rows;
    const EvictionLists lists(params, *segment);
    const int last = std::min(end, (block + 1) * kBlockTokens);
    for (int token = std::max(begin, block * kBlockTokens); token < last; ++token) {
      WriteToken(params, isa_, lists, block - begin / kBlockTokens, token - block * kBlockTokens,
                 thread_scratch_[thread].floats());
    }
  });
  // A hundredth of the above: not worth a second round of the threads.
  for (int s = 0; s < params.num_segments; ++s) {
    const EvictionSegment& segment = params.segments[s];
    if (segment.rows.num_rows > 0 && segment.mean_pages != nullptr) WriteMeans(params, segment);
  }
}

}  // namespace augur::kernels
