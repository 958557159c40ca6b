// InfiniGen's three ops (sum_channels.h, project_keys.h, project_queries.h): against double, and
// the same bits on every ISA, on one thread and two, and in any calls.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "kernels/backend.h"
#include "kernels/kv_page.h"

namespace augur::kernels {
namespace {

constexpr int kHeads = 2;  // kv heads
constexpr int kGroup = 3;
constexpr int kRows = 75;

struct Case {
  int head_dim;
  DType dtype;
};

class PartialKeysTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const size_t d = head_dim();
    basis_.resize(kHeads * d * d);
    for (size_t i = 0; i < basis_.size(); ++i) basis_[i] = std::sin(0.7f * i) / std::sqrt(float(d));
    q_.resize(kRows * stride());
    for (size_t i = 0; i < q_.size(); ++i) q_[i] = std::cos(0.31f * i + 0.1f);
    for (size_t i = 0; i < kHeads * d / 4; ++i) {
      channels_.push_back(static_cast<int32_t>(i % (d / 4) * 3 + i / (d / 4)));
    }
    for (const CpuIsa isa : {CpuIsa::kGeneric, CpuIsa::kAuto}) {
      for (const int threads : {1, 2}) {
        backends_.push_back(MakeCpuBackend({.num_threads = threads, .isa = isa}));
      }
    }
  }
  int head_dim() const { return GetParam().head_dim; }
  int stride() const { return kHeads * kGroup * head_dim() + 5; }
  double Basis(int head, int d, int c) const {
    return basis_[(size_t(head) * head_dim() + d) * head_dim() + c];
  }

  std::vector<float> basis_, q_;
  std::vector<int32_t> channels_;
  std::vector<std::unique_ptr<Backend>> backends_;
};

TEST_P(PartialKeysTest, SumsOfMagnitudes) {
  std::vector<float> first;
  for (const auto& backend : backends_) {
    for (const int cut : {kRows, 1, 64}) {  // all rows at once, or in two calls
      std::vector<float> sums(kHeads * head_dim());
      for (const auto& [begin, end] : {std::pair{0, cut}, {cut, kRows}}) {
        if (begin == end) continue;
        const ChannelSegment segment{.rows = {begin, end - begin, 0}, .sums = sums.data()};
        backend->SumChannels({.q = q_.data(),
                              .basis = basis_.data(),
                              .segments = &segment,
                              .num_segments = 1,
                              .q_stride = stride(),
                              .num_kv_heads = kHeads,
                              .heads_per_group = kGroup,
                              .head_dim = head_dim()});
      }
      if (first.empty()) first = sums;
      EXPECT_EQ(sums, first) << cut;
    }
  }
  for (int head = 0; head < kHeads; ++head) {
    for (int c = 0; c < head_dim(); ++c) {
      double sum = 0;
      for (int row = 0; row < kRows; ++row) {
        for (int i = 0; i < kGroup; ++i) {
          double product = 0;
          for (int d = 0; d < head_dim(); ++d) {
            product +=
                q_[row * stride() + (head * kGroup + i) * head_dim() + d] * Basis(head, d, c);
          }
          sum += std::abs(product);
        }
      }
      EXPECT_NEAR(first[head * head_dim() + c], sum, 1e-4 * (1 + sum));
    }
  }
}

TEST_P(PartialKeysTest, KeysOfPages) {
  const DType dtype = GetParam().dtype;
  const size_t d = head_dim(), channels = d / 4, bytes = BytesOf(dtype);
  // Two blocks and a part: tokens 3 to 140 of three.
  const Segment rows{.first_row = 0, .num_rows = 138, .first_position = 3};
  std::vector<std::vector<std::byte>> pages(3 * kHeads, std::vector<std::byte>(128 * d * bytes));
  const auto put = [&](std::byte* at, float value) {
    const uint16_t half = dtype == DType::kBF16 ? BF16FromFloat(value) : F16FromFloat(value);
    std::memcpy(at, dtype == DType::kF32 ? static_cast<const void*>(&value) : &half, bytes);
  };
  const auto get = [&](const std::byte* at) {
    float value;
    uint16_t half;
    std::memcpy(dtype == DType::kF32 ? static_cast<void*>(&value) : &half, at, bytes);
    if (dtype == DType::kBF16) value = FloatFromBF16(half);
    if (dtype == DType::kF16) value = FloatFromF16(half);
    return value;
  };
  for (size_t page = 0; page < pages.size(); ++page) {
    for (size_t i = 0; i < 64 * d; ++i) put(&pages[page][i * bytes], std::sin(0.13f * i + page));
  }
  std::vector<const std::byte*> sources;
  for (const auto& page : pages) sources.push_back(page.data());
  std::vector<std::byte> first;
  for (const auto& backend : backends_) {
    // A page of eight blocks a head.
    std::vector<std::byte> out(kHeads * 512 * channels * bytes, std::byte{0x5a});
    std::vector<std::byte*> targets;
    for (int head = 0; head < kHeads; ++head) {
      targets.push_back(&out[head * 512 * channels * bytes]);
    }
    const ProjectSegment segment{.rows = rows,
                                 .pages = sources.data(),
                                 .targets = targets.data(),
                                 .target_stride = 1,
                                 .channels = channels_.data()};
    backend->ProjectKeys({.basis = basis_.data(),
                          .segments = &segment,
                          .num_segments = 1,
                          .num_kv_heads = kHeads,
                          .head_dim = head_dim(),
                          .num_channels = static_cast<int>(channels),
                          .dtype = dtype});
    if (first.empty()) first = out;
    EXPECT_EQ(out, first);
  }
  const double error = dtype == DType::kF32 ? 1e-5 : dtype == DType::kBF16 ? 2e-2 : 2e-3;
  for (int token = 0; token < 192; ++token) {
    for (int head = 0; head < kHeads; ++head) {
      const size_t page = size_t(token / 64) * kHeads + head;
      for (size_t c = 0; c < channels; ++c) {
        const std::byte* at = &first[((size_t(head) * 512 + token) * channels + c) * bytes];
        if (token < 3 || token > 140) {  // not written
          EXPECT_EQ(*at, std::byte{0x5a});
          continue;
        }
        double product = 0;
        for (size_t i = 0; i < d; ++i) {
          product += get(&pages[page][(token % 64 * d + i) * bytes]) *
                     Basis(head, i, channels_[head * channels + c]);
        }
        EXPECT_NEAR(get(at), product, error * (1 + std::abs(product)));
      }
    }
  }
}

TEST_P(PartialKeysTest, QueriesAreSummedTurnedAndProjected) {
  const int d = head_dim(), channels = d / 4, half = d / 2;
  constexpr int kPositions = 200;
  std::vector<float> cosines(kPositions * half), sines(kPositions * half);
  for (size_t i = 0; i < cosines.size(); ++i) {
    cosines[i] = std::cos(0.01f * i);
    sines[i] = std::sin(0.01f * i);
  }
  std::vector<float> first;
  for (const auto& backend : backends_) {
    std::vector<float> out(kRows * kHeads * channels, -7.0f);
    const std::vector<QuerySegment> segments = {
        {.rows = {0, 1, 120}, .channels = channels_.data()},
        {.rows = {2, kRows - 2, 17}, .channels = channels_.data()}};
    backend->ProjectQueries({.q = q_.data(),
                             .basis = basis_.data(),
                             .segments = segments.data(),
                             .out = out.data(),
                             .num_segments = 2,
                             .q_stride = stride(),
                             .num_kv_heads = kHeads,
                             .heads_per_group = kGroup,
                             .head_dim = d,
                             .num_channels = channels,
                             .cos = cosines.data(),
                             .sin = sines.data()});
    if (first.empty()) first = out;
    EXPECT_EQ(out, first);
  }
  for (int row = 0; row < kRows; ++row) {
    const int position = row == 0 ? 120 : 17 + row - 2;
    for (int head = 0; head < kHeads; ++head) {
      std::vector<double> turned(d);
      for (int i = 0; row != 1 && i < kGroup; ++i) {
        const float* q = &q_[row * stride() + (head * kGroup + i) * d];
        for (int e = 0; e < half; ++e) {
          const double c = cosines[position * half + e], s = sines[position * half + e];
          turned[e] += q[e] * c - q[e + half] * s;
          turned[e + half] += q[e + half] * c + q[e] * s;
        }
      }
      for (int c = 0; c < channels; ++c) {
        double product = row == 1 ? -7.0 : 0;
        for (int e = 0; e < d; ++e) {
          product += turned[e] * Basis(head, e, channels_[head * channels + c]);
        }
        EXPECT_NEAR(first[(row * kHeads + head) * channels + c], product, 1e-5 * d);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, PartialKeysTest,
                         testing::Values(Case{16, DType::kF32}, Case{40, DType::kBF16},
                                         Case{64, DType::kF16}, Case{128, DType::kBF16},
                                         Case{256, DType::kF32}));

}  // namespace
}  // namespace augur::kernels
