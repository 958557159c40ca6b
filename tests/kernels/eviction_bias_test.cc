// Eviction biases and their window means: against double, the same bits whole, in chunks and token
// by token, on one thread and two, and nothing written beside the rows.
#include "kernels/ops/eviction_bias.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

constexpr int kHeads = 2;
constexpr int kTokens = 200;  // three blocks and a part
constexpr int kBlocks = 4;
constexpr float kUntouched = -77.0f;

struct Case {
  int head_dim;
  DType dtype;
  bool has_bias;
};

class EvictionBiasTest : public testing::TestWithParam<Case> {
 protected:
  EvictionBiasTest()
      : width_(kHeads * GetParam().head_dim),
        gate_(RandomFloats(kHeads, 1)),
        weight_(RandomFloats(size_t(kHeads) * width_, 2, 0.5f)),
        bias_(RandomFloats(kHeads, 3)) {
    weight_[0] = 60.0f;  // some products above softplus's bend
    const size_t page = 2 * kBlockTokens * GetParam().head_dim * BytesOf(GetParam().dtype);
    // Keys, and values behind the last token, are NaN patterns.
    pages_.assign(size_t(kBlocks) * kHeads, std::vector<std::byte>(page, std::byte{0xff}));
    const std::vector<float> values = RandomFloats(size_t(kTokens) * width_, 4);
    for (int t = 0; t < kTokens; ++t) {
      for (int i = 0; i < width_; ++i) {
        const int head = i / GetParam().head_dim, d = i % GetParam().head_dim;
        WriteAs(GetParam().dtype, values[size_t(t) * width_ + i],
                pages_[t / 64 * kHeads + head].data(),
                size_t(kBlockTokens + t % 64) * GetParam().head_dim + d);
      }
    }
  }

  void Clear() {
    biases_.assign(kBlocks * kHeads * 64, kUntouched);
    means_.assign(kHeads * 128, kUntouched);
  }
  float bias(int token, int head) const {
    return biases_[(token / 64 * kHeads + head) * 64 + token % 64];
  }
  float mean(int window, int head) const {  // place as of compressed keys
    return means_[head * 128 + window + 1];
  }

  void Run(Backend& backend, int first, int count) {
    const int first_block = first / 64, end_block = (first + count - 1) / 64 + 1;
    const bool reads_before =
        first_block > 0 && first % 64 <= 15 && first + count > first_block * 64 + 15;
    std::vector<const std::byte*> pages;
    std::vector<float*> biases, means;
    for (int head = 0; head < kHeads; ++head) means.push_back(means_.data() + head * 128);
    for (int block = first_block - 1; block < end_block; ++block) {
      for (int head = 0; head < kHeads; ++head) {
        const bool given = block >= first_block || reads_before;
        const int at = block * kHeads + head;
        biases.push_back(given ? biases_.data() + at * 64 : nullptr);
        if (block < first_block) continue;
        pages.push_back(pages_[at].data());
      }
    }
    const EvictionSegment segment{.rows = {0, count, first},
                                  .pages = pages.data(),
                                  .biases = biases.data(),
                                  .mean_pages = means.data(),
                                  .mean_page_stride = 1};
    backend.EvictionBias({.gate = gate_.data(),
                          .weight = weight_.data(),
                          .bias = GetParam().has_bias ? bias_.data() : nullptr,
                          .segments = &segment,
                          .num_segments = 1,
                          .num_kv_heads = kHeads,
                          .head_dim = GetParam().head_dim,
                          .dtype = GetParam().dtype});
    backend.Synchronize();
  }

  double Expected(int token, int head) const {
    double x = GetParam().has_bias ? bias_[head] : 0.0;
    const int head_dim = GetParam().head_dim;
    for (int i = 0; i < width_; ++i) {
      x += double(weight_[size_t(head) * width_ + i]) *
           ReadAs(GetParam().dtype, pages_[token / 64 * kHeads + i / head_dim].data(),
                  size_t(kBlockTokens + token % 64) * head_dim + i % head_dim);
    }
    return gate_[head] * (x > 20 ? x : std::log1p(std::exp(x)));
  }

  const int width_;
  std::vector<float> gate_, weight_, bias_;
  std::vector<std::vector<std::byte>> pages_;  // [blocks][kv heads]
  std::vector<float> biases_;                  // [blocks][kv heads][64]
  std::vector<float> means_;                   // [kv heads][128]
};

TEST_P(EvictionBiasTest, EqualsDoubleAndWritesNothingElse) {
  const auto backend = MakeCpuBackend({.num_threads = 2});
  Clear();
  Run(*backend, 0, kTokens);
  for (int head = 0; head < kHeads; ++head) {
    for (int t = 0; t < kBlocks * 64; ++t) {
      if (t >= kTokens) {
        EXPECT_EQ(bias(t, head), kUntouched);
        continue;
      }
      EXPECT_NEAR(bias(t, head), Expected(t, head), 3e-5 * (1 + std::abs(Expected(t, head))));
    }
    for (int window = -1; window < kBlocks * 4 - 1; ++window) {
      if (window < 0 || 16 * window + 32 > kTokens) {
        EXPECT_EQ(mean(window, head), kUntouched) << window;
        continue;
      }
      double sum = 0;
      for (int t = 16 * window; t < 16 * window + 32; ++t) sum += bias(t, head);
      EXPECT_NEAR(mean(window, head), sum / 32, 1e-6 * (1 + std::abs(sum)));
    }
  }
}

TEST_P(EvictionBiasTest, AnyCutAndAnyThreadsGiveTheSameBits) {
  Clear();
  Run(*MakeCpuBackend({.num_threads = 1, .isa = CpuIsa::kGeneric}), 0, kTokens);
  const std::vector<float> biases = biases_, means = means_;
  const auto backend = MakeCpuBackend({.num_threads = 2});
  for (const int chunk : {kTokens, 64, 37, 1}) {
    Clear();
    for (int first = 0; first < kTokens; first += chunk) {
      Run(*backend, first, std::min(chunk, kTokens - first));
    }
    EXPECT_EQ(biases_, biases) << chunk;
    EXPECT_EQ(means_, means) << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, EvictionBiasTest,
                         testing::Values(Case{128, DType::kBF16, false},
                                         Case{64, DType::kF32, true}, Case{22, DType::kF16, true}));

}  // namespace
}  // namespace augur::kernels
