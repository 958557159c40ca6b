// Eviction biases and their window means on both backends: against double, the same bits whole and
// token by token, by lists that are strided as a device's tables are, and nothing written beside.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/kv_page.h"
#include "kernels/ops/eviction_bias.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

constexpr int kTokens = 330;  // five blocks and a part
constexpr int kBlocks = 6;
constexpr int kOffset = 3;  // entries before each list
constexpr float kUntouched = -77.0f;

struct BiasShape {
  int num_kv_heads;
  int head_dim;
  DType dtype;
  bool has_bias;
};

class BiasedSequence {
 public:
  BiasedSequence(Backend& backend, const BiasShape& shape)
      : backend_(&backend),
        shape_(shape),
        gate_(backend, RandomFloats(shape.num_kv_heads, 1)),
        weight_(backend, Weights(shape)),
        bias_(backend, RandomFloats(shape.num_kv_heads, 3)),
        pages_(backend, size_t(kBlocks) * shape.num_kv_heads * page_bytes()),
        biases_(backend, Untouched(size_t(kBlocks) * shape.num_kv_heads * kBlockTokens)),
        means_(backend, Untouched(size_t(shape.num_kv_heads) * kKeyPageBlocks * kBlockWindows)),
        page_list_(backend, kOffset + size_t(kBlocks) * shape.num_kv_heads),
        bias_list_(backend, kOffset + size_t(kBlocks) * shape.num_kv_heads),
        mean_list_(backend, kOffset + size_t(shape.num_kv_heads)) {
    const size_t d = shape.head_dim, heads = shape.num_kv_heads;
    const std::vector<float> values = RandomFloats(kTokens * heads * d, 4);
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t t = i / d / heads, h = i / d % heads;
      WriteAs(shape.dtype, values[i], pages_.data() + PageAt(t / kBlockTokens, h),
              (kBlockTokens + t % kBlockTokens) * d + i % d);
    }
    for (size_t h = 0; h < heads; ++h) {
      for (size_t b = 0; b < kBlocks; ++b) {
        page_list_[kOffset + h * kBlocks + b] = pages_.data() + PageAt(b, h);
        bias_list_[kOffset + h * kBlocks + b] =
            biases_.data() + (h * kBlocks + b) * kBlockTokens;
      }
      mean_list_[kOffset + h] = means_.data() + h * kKeyPageBlocks * kBlockWindows;
    }
  }

  // The tokens [first, first + count), and a segment without rows beside them.
  void Run(int first, int count, bool with_means = true) {
    const int first_block = first / kBlockTokens;
    const SharedArray<EvictionSegment> segments(
        *backend_, {{},
                    {.rows = {0, count, first},
                     .pages = page_list_.data() + first_block,
                     .biases = bias_list_.data() + first_block - 1,
                     .block_stride = 1,
                     .head_stride = kBlocks,
                     .mean_pages = with_means ? mean_list_.data() : nullptr,
                     .mean_page_stride = 1}});
    backend_->EvictionBias({.gate = gate_.data(),
                            .weight = weight_.data(),
                            .bias = shape_.has_bias ? bias_.data() : nullptr,
                            .segments = segments.data(),
                            .num_segments = 2,
                            .num_kv_heads = shape_.num_kv_heads,
                            .head_dim = shape_.head_dim,
                            .dtype = shape_.dtype,
                            .pages_offset = kOffset,
                            .biases_offset = kOffset,
                            .means_offset = kOffset});
    backend_->Synchronize();
  }

  double Expected(int token, int head) const {
    const int d = shape_.head_dim, width = shape_.num_kv_heads * d;
    double x = shape_.has_bias ? bias_[head] : 0.0;
    for (int i = 0; i < width; ++i) {
      x += double{weight_[size_t(head) * width + i]} *
           ReadAs(shape_.dtype, pages_.data() + PageAt(token / kBlockTokens, i / d),
                  size_t(kBlockTokens + token % kBlockTokens) * d + i % d);
    }
    return gate_[head] * (x > 20 ? x : std::log1p(std::exp(x)));
  }
  float bias(int token, int head) const {
    return biases_[size_t(head * kBlocks) * kBlockTokens + token];
  }
  float mean(int place, int head) const {
    return means_[size_t(head) * kKeyPageBlocks * kBlockWindows + place];
  }
  std::vector<float> biases() const { return biases_.ToVector(); }
  std::vector<float> means() const { return means_.ToVector(); }

 private:
  static std::vector<float> Weights(const BiasShape& shape) {
    const size_t width = size_t(shape.num_kv_heads) * shape.head_dim;
    std::vector<float> weights = RandomFloats(shape.num_kv_heads * width, 2, 0.5f);
    weights[0] = 60.0f;  // some products above softplus's bend
    return weights;
  }
  static std::vector<float> Untouched(size_t count) {
    return std::vector<float>(count, kUntouched);
  }
  size_t page_bytes() const {
    return size_t{2} * kBlockTokens * shape_.head_dim * BytesOf(shape_.dtype);
  }
  size_t PageAt(size_t block, size_t head) const {
    return (head * kBlocks + block) * page_bytes();
  }

  Backend* backend_;
  BiasShape shape_;
  SharedArray<float> gate_, weight_, bias_;
  SharedArray<std::byte> pages_;
  SharedArray<float> biases_, means_;
  SharedArray<const std::byte*> page_list_;
  SharedArray<float*> bias_list_, mean_list_;
};

std::vector<BiasShape> Shapes() {
  return {{2, 128, DType::kBF16, false},
          {2, 64, DType::kF32, true},
          {3, 22, DType::kF16, true},
          {1, 256, DType::kBF16, true}};
}

TEST(TwinEvictionBiasTest, EqualsDoubleAndWritesNothingElse) {
  constexpr int kFirst = 70;  // of a second call
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const BiasShape& shape : Shapes()) {
      BiasedSequence sequence(*backend, shape);
      sequence.Run(0, kFirst);
      sequence.Run(kFirst, kTokens - kFirst);
      for (int head = 0; head < shape.num_kv_heads; ++head) {
        for (int t = 0; t < kBlocks * kBlockTokens; ++t) {
          const double expected = t < kTokens ? sequence.Expected(t, head) : kUntouched;
          const double error = t < kTokens ? 3e-5 * (1 + std::abs(expected)) : 0.0;
          ASSERT_NEAR(sequence.bias(t, head), expected, error) << name << t;
        }
        for (int place = 0; place < kKeyPageBlocks * kBlockWindows; ++place) {
          const int first = kWindowStride * (place - 1);
          if (place == 0 || first + kWindowTokens > kTokens) {
            ASSERT_EQ(sequence.mean(place, head), kUntouched) << name << place;
            continue;
          }
          double sum = 0;
          for (int t = first; t < first + kWindowTokens; ++t) sum += sequence.bias(t, head);
          ASSERT_NEAR(sequence.mean(place, head), sum / kWindowTokens, 1e-6 * (1 + std::abs(sum)))
              << name << place;
        }
      }
    }
  }
}

TEST(TwinEvictionBiasTest, AnyCutGivesTheSameBits) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const BiasShape& shape : Shapes()) {
      BiasedSequence whole(*backend, shape);
      whole.Run(0, kTokens);
      for (const int chunk : {64, 37, 1}) {
        BiasedSequence cut(*backend, shape);
        for (int first = 0; first < kTokens; first += chunk) {
          cut.Run(first, std::min(chunk, kTokens - first));
        }
        EXPECT_EQ(cut.biases(), whole.biases()) << name << chunk;
        EXPECT_EQ(cut.means(), whole.means()) << name << chunk;
      }
    }
  }
}

TEST(TwinEvictionBiasTest, WithoutPagesOfMeansNoneAreWritten) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    BiasedSequence sequence(*backend, Shapes()[0]);
    sequence.Run(0, kTokens, /*with_means=*/false);
    EXPECT_EQ(sequence.means(), std::vector<float>(sequence.means().size(), kUntouched)) << name;
    EXPECT_NE(sequence.bias(kTokens - 1, 1), kUntouched) << name;
  }
}

}  // namespace
}  // namespace augur::kernels
