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

// The biases of the token at place `at` of the block with `pages` and `biases`, all kv heads.
// values: room for one head's.
void WriteToken(const EvictionBiasParams& params, const IsaKernels& isa,
                const std::byte* const* pages, float* const* biases, int at, float* values) {
  const int head_dim = params.head_dim;
  const int kv_heads = params.num_kv_heads;
  const size_t value_bytes = head_dim * BytesOf(params.dtype);
  for (int head = 0; head < kv_heads; ++head) {
    float chains[kChains] = {};
    for (int source = 0; source < kv_heads; ++source) {
      isa.widen(params.dtype, pages[source] + (kBlockTokens + at) * value_bytes, values, head_dim);
      AddProducts(params.weight + (size_t(head) * kv_heads + source) * head_dim, values, head_dim,
                  chains);
    }
    float sum = ((chains[0] + chains[4]) + (chains[2] + chains[6])) +
                ((chains[1] + chains[5]) + (chains[3] + chains[7]));
    if (params.bias != nullptr) sum += params.bias[head];
    biases[head][at] = params.gate[head] * Softplus(sum);
  }
}

float SumWindowHalf(const float* biases) {
  float sum = biases[0];
  for (int i = 1; i < kWindowStride; ++i) sum += biases[i];
  return sum;
}

void WriteMeans(const EvictionSegment& segment, int kv_heads) {
  const Segment& rows = segment.rows;
  const int first_block = rows.first_position / kBlockTokens;
  // 16 biases from `token` on; they never cross a block.
  const auto biases_at = [&](int token, int head) {
    const size_t entry = token / kBlockTokens - (first_block - 1);
    const float* biases = segment.biases[entry * kv_heads + head];
    AUGUR_CHECK(biases != nullptr);
    return biases + token % kBlockTokens;
  };
  const int first = rows.first_position == 0 ? 0 : CompleteWindows(rows.first_position - 1);
  const int end = CompleteWindows(rows.first_position + rows.num_rows - 1);
  for (int window = first; window < end; ++window) {
    const int token = window * kWindowStride;
    const size_t touched = (token + kWindowTokens - 1) / kBlockTokens - first_block;
    for (int head = 0; head < kv_heads; ++head) {
      segment.means[touched * kv_heads + head][(window + 1) % kBlockWindows] =
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
    const size_t touched = block - begin / kBlockTokens;
    const int last = std::min(end, (block + 1) * kBlockTokens);
    for (int token = std::max(begin, block * kBlockTokens); token < last; ++token) {
      WriteToken(params, isa_, segment->pages + touched * kv_heads,
                 segment->biases + (1 + touched) * kv_heads, token - block * kBlockTokens,
                 thread_scratch_[thread].floats());
    }
  });
  // A hundredth of the above: not worth a second round of the threads.
  for (int s = 0; s < params.num_segments; ++s) WriteMeans(params.segments[s], kv_heads);
}

}  // namespace augur::kernels
