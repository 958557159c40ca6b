// InfiniGen's ops (sum_channels.h, choose_channels.h, project_keys.h, project_queries.h) against
// double; and the same bits of a backend whatever calls rows come in.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/kv_page.h"
#include "kernels/ops/choose_channels.h"
#include "kernels/ops/project_keys.h"
#include "kernels/ops/project_queries.h"
#include "kernels/ops/sum_channels.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

struct PartialShape {
  int num_kv_heads;
  int heads_per_group;
  int head_dim;
  DType dtype;

  int channels() const { return head_dim / 4; }
  int q_stride() const { return num_kv_heads * heads_per_group * head_dim + 8; }
  size_t page_bytes() const { return 2 * kBlockTokens * head_dim * BytesOf(dtype); }
};

std::vector<PartialShape> Shapes() {
  return {{2, 16, 128, DType::kBF16}, {2, 4, 64, DType::kF16},  {1, 3, 40, DType::kBF16},
          {2, 2, 16, DType::kF32},    {1, 1, 256, DType::kF32}, {3, 2, 128, DType::kF32}};
}

// A basis with columns of about unit length, and for every kv head a quarter of its columns.
struct Basis {
  Basis(Backend& backend, const PartialShape& shape)
      : values(backend,
               Scaled(RandomFloats(size_t(shape.num_kv_heads) * shape.head_dim * shape.head_dim, 3),
                      1.0f / std::sqrt(static_cast<float>(shape.head_dim)))),
        channels(backend, Channels(shape)) {}
  static std::vector<float> Scaled(std::vector<float> values, float by) {
    for (float& value : values) value *= by;
    return values;
  }
  static std::vector<int32_t> Channels(const PartialShape& shape) {
    std::vector<int32_t> channels;
    for (int head = 0; head < shape.num_kv_heads; ++head) {
      for (int c = 0; c < shape.channels(); ++c) channels.push_back(3 * c + head);
    }
    return channels;
  }

  SharedArray<float> values;
  SharedArray<int32_t> channels;
};

std::vector<float> Sums(Backend& backend, const PartialShape& shape, Basis& basis,
                        const std::vector<float>& q, const std::vector<std::vector<Segment>>& calls,
                        int sequences) {
  const int rows = static_cast<int>(q.size()) / shape.q_stride();
  const size_t width = size_t(shape.num_kv_heads) * shape.head_dim;
  const SharedArray<float> shared_q(backend, q);
  SharedArray<float> sums(backend, std::vector<float>((sequences + 1) * width));
  SharedArray<float> runs(backend, SumRuns(rows, sequences) * width);
  for (const std::vector<Segment>& call : calls) {
    std::vector<ChannelSegment> segments;
    for (int s = 0; s < sequences; ++s) {
      segments.push_back({.rows = call[s], .sums = sums.data() + s * width});
    }
    const SharedArray<ChannelSegment> shared(backend, segments);
    backend.SumChannels({.q = shared_q.data(),
                         .basis = basis.values.data(),
                         .segments = shared.data(),
                         .num_segments = sequences,
                         .rows = rows,
                         .q_stride = shape.q_stride(),
                         .num_kv_heads = shape.num_kv_heads,
                         .heads_per_group = shape.heads_per_group,
                         .head_dim = shape.head_dim,
                         .sums_offset = static_cast<int64_t>(width),
                         .runs = runs.data()});
    backend.Synchronize();
  }
  std::vector<float> all = sums.ToVector();
  for (size_t i = 0; i < width; ++i) EXPECT_EQ(all[i], 0.0f);  // in front of the offset
  return {all.begin() + width, all.end()};
}

TEST(TwinPartialKeysTest, SumsOfMagnitudesInAnyChunks) {
  constexpr int kFirst = 75, kSecond = 33;  // rows of two sequences
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const PartialShape& shape : Shapes()) {
      Basis basis(*backend, shape);
      const int stride = shape.q_stride(), d = shape.head_dim;
      const std::vector<float> q = RandomFloats(size_t(kFirst + kSecond) * stride, 5);
      const std::vector<float> sums =
          Sums(*backend, shape, basis, q, {{{0, kFirst, 0}, {kFirst, kSecond, 0}}}, 2);
      const std::vector<float> cut = Sums(*backend, shape, basis, q,
                                          {{{0, 32, 0}, {kFirst, 0, 0}},
                                           {{32, 43, 32}, {kFirst, 32, 0}},
                                           {{0, 0, 0}, {107, 1, 32}}},
                                          2);
      EXPECT_EQ(cut, sums) << name;
      for (int s = 0; s < 2; ++s) {
        const int first_row = s == 0 ? 0 : kFirst, rows = s == 0 ? kFirst : kSecond;
        for (int head = 0; head < shape.num_kv_heads; ++head) {
          for (int c = 0; c < d; c += 7) {
            double sum = 0;
            for (int i = 0; i < rows * shape.heads_per_group; ++i) {
              const float* from =
                  &q[size_t(first_row + i / shape.heads_per_group) * stride +
                     (head * shape.heads_per_group + i % shape.heads_per_group) * d];
              double product = 0;
              for (int e = 0; e < d; ++e) {
                product += double{from[e]} * basis.values[(size_t(head) * d + e) * d + c];
              }
              sum += std::abs(product);
            }
            const double found = sums[(size_t(s) * shape.num_kv_heads + head) * d + c];
            ASSERT_NEAR(found, sum, 1e-5 * sum) << name << " " << s << " " << head << " " << c;
          }
        }
      }
    }
  }
}

TEST(TwinPartialKeysTest, TheLargestChannelsAndOfEqualOnesTheLower) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    const SharedArray<float> sums(*backend, std::vector<float>{-1, -1, -1, 1, 3, 2, 3, nan, 2, 0, 3,
                                                               0, nan, 0, 0, inf, nan, 0, 5});
    SharedArray<int32_t> channels(*backend, 10);
    const SharedArray<ChooseChannelsSegment> segments(
        *backend, {{}, {.sums = sums.data(), .channels = channels.data()}});
    backend->ChooseChannels({.segments = segments.data(),
                             .num_segments = 2,
                             .num_kv_heads = 2,
                             .head_dim = 8,
                             .num_channels = 4,
                             .sums_offset = 3,
                             .channels_offset = 1});
    backend->Synchronize();
    EXPECT_EQ(channels.ToVector(), (std::vector<int32_t>{-1, 1, 2, 3, 7, 0, 1, 4, 7, -1})) << name;
  }
}

// Pages of keys and a home for partial keys of one sequence, as a device's tables list them.
class PartialSequence {
 public:
  PartialSequence(Backend& backend, const PartialShape& shape, int tokens)
      : shape_(shape),
        blocks_((tokens + kBlockTokens - 1) / kBlockTokens),
        target_pages_(blocks_ / kPartialPageBlocks + 1),
        pages_(backend, size_t(blocks_) * shape.num_kv_heads * shape.page_bytes()),
        partial_(backend, target_bytes() * target_pages_ * shape.num_kv_heads),
        page_list_(backend, PageList()),
        target_list_(backend, TargetList()) {
    const size_t d = shape.head_dim;
    const std::vector<float> values = RandomFloats(size_t(tokens) * shape.num_kv_heads * d, 17);
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t t = i / d / shape.num_kv_heads, h = i / d % shape.num_kv_heads;
      WriteAs(shape.dtype, values[i], Page(t / kBlockTokens, h), t % kBlockTokens * d + i % d);
    }
  }

  // Lists begin kOffset entries behind where they are said to.
  static constexpr int kOffset = 5;
  ProjectSegment Segment(const Basis& basis, int first, int count) {
    return {.rows = {0, count, first},
            .pages = page_list_.data() + first / kBlockTokens,
            .block_stride = 1,
            .head_stride = blocks_,
            .targets = target_list_.data(),
            .target_stride = target_pages_,
            .channels = basis.channels.data()};
  }
  std::vector<std::byte> partial() const { return partial_.ToVector(); }
  double KeyAt(int token, int head, int element) const {
    return ReadAs(shape_.dtype, Page(token / kBlockTokens, head),
                  size_t(token % kBlockTokens) * shape_.head_dim + element);
  }
  const std::byte* PartialAt(int token, int head) const {
    return partial_.data() +
           (size_t(head) * target_pages_ * kPartialPageBlocks * kBlockTokens + token) *
               shape_.channels() * BytesOf(shape_.dtype);
  }

 private:
  size_t target_bytes() const {
    return size_t(kPartialPageBlocks) * kBlockTokens * shape_.channels() * BytesOf(shape_.dtype);
  }
  std::byte* Page(size_t block, size_t head) {
    return pages_.data() + (head * blocks_ + block) * shape_.page_bytes();
  }
  const std::byte* Page(size_t block, size_t head) const {
    return pages_.data() + (head * blocks_ + block) * shape_.page_bytes();
  }
  std::vector<const std::byte*> PageList() {
    std::vector<const std::byte*> list(kOffset);
    for (int h = 0; h < shape_.num_kv_heads; ++h) {
      for (int b = 0; b < blocks_; ++b) list.push_back(Page(b, h));
    }
    return list;
  }
  std::vector<std::byte*> TargetList() {
    std::vector<std::byte*> list(kOffset);
    for (int i = 0; i < shape_.num_kv_heads * target_pages_; ++i) {
      list.push_back(partial_.data() + i * target_bytes());
    }
    return list;
  }

  PartialShape shape_;
  int blocks_;
  int target_pages_;
  SharedArray<std::byte> pages_;
  SharedArray<std::byte> partial_;
  SharedArray<const std::byte*> page_list_;
  SharedArray<std::byte*> target_list_;
};

void Project(Backend& backend, const PartialShape& shape, Basis& basis,
             const std::vector<ProjectSegment>& segments) {
  const SharedArray<ProjectSegment> shared(backend, segments);
  backend.ProjectKeys({.basis = basis.values.data(),
                       .segments = shared.data(),
                       .num_segments = static_cast<int>(segments.size()),
                       .num_kv_heads = shape.num_kv_heads,
                       .head_dim = shape.head_dim,
                       .num_channels = shape.channels(),
                       .dtype = shape.dtype,
                       .pages_offset = PartialSequence::kOffset,
                       .targets_offset = PartialSequence::kOffset});
  backend.Synchronize();
}

TEST(TwinPartialKeysTest, KeysOfTheRowsAndOfNoOther) {
  constexpr int kFirst = 37, kEnd = 580;  // ten blocks, over a page of partial keys
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const PartialShape& shape : Shapes()) {
      Basis basis(*backend, shape);
      PartialSequence sequence(*backend, shape, kEnd + 30);
      Project(*backend, shape, basis, {{}, sequence.Segment(basis, kFirst, kEnd - kFirst)});
      const double error = shape.dtype == DType::kF32    ? 1e-5
                           : shape.dtype == DType::kBF16 ? 4e-3
                                                         : 6e-4;
      const std::vector<std::byte> unwritten(BytesOf(shape.dtype), std::byte{0xff});
      for (int token = 0; token < kEnd + 30; ++token) {
        for (int head = 0; head < shape.num_kv_heads; ++head) {
          for (int c = 0; c < shape.channels(); c += 3) {
            const std::byte* at = sequence.PartialAt(token, head);
            if (token < kFirst || token >= kEnd) {
              ASSERT_EQ(std::memcmp(at + c * unwritten.size(), unwritten.data(), unwritten.size()),
                        0)
                  << name << token;
              continue;
            }
            double product = 0;
            const int column = basis.channels[size_t(head) * shape.channels() + c];
            for (int e = 0; e < shape.head_dim; ++e) {
              product +=
                  sequence.KeyAt(token, head, e) *
                  basis.values[(size_t(head) * shape.head_dim + e) * shape.head_dim + column];
            }
            ASSERT_NEAR(ReadAs(shape.dtype, at, c), product, error * (1 + std::abs(product)))
                << name << " " << NameOf(shape.dtype) << " " << token;
          }
        }
      }
    }
  }
}

TEST(TwinPartialKeysTest, OneTokenACallComesToTheSame) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const PartialShape& shape : Shapes()) {
      Basis basis(*backend, shape);
      constexpr int kTokens = 140;
      PartialSequence whole(*backend, shape, kTokens), single(*backend, shape, kTokens);
      Project(*backend, shape, basis, {whole.Segment(basis, 0, kTokens)});
      for (int t = 0; t < kTokens; ++t) {
        Project(*backend, shape, basis, {single.Segment(basis, t, 1), {}});
      }
      EXPECT_EQ(single.partial(), whole.partial()) << name;
    }
  }
}

TEST(TwinPartialKeysTest, QueriesAreSummedTurnedAndProjected) {
  constexpr int kRows = 9, kPositions = 200, kAngle = 7;
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const PartialShape& shape : Shapes()) {
      Basis basis(*backend, shape);
      const int d = shape.head_dim, half = d / 2, group = shape.heads_per_group;
      const std::vector<float> q = RandomFloats(size_t(kRows) * shape.q_stride(), 21);
      std::vector<float> angles = RandomFloats(size_t(kPositions + kAngle) * half, 23);
      std::vector<float> cosines(angles), sines(angles);
      for (float& angle : cosines) angle = std::cos(3 * angle);
      for (float& angle : sines) angle = std::sin(3 * angle);
      const SharedArray<float> shared_q(*backend, q), cos(*backend, cosines), sin(*backend, sines);
      const size_t width = size_t(shape.num_kv_heads) * shape.channels();
      const auto run = [&](const std::vector<QuerySegment>& segments) {
        SharedArray<float> out(*backend, std::vector<float>(kRows * width, -7.0f));
        const SharedArray<QuerySegment> shared(*backend, segments);
        backend->ProjectQueries({.q = shared_q.data(),
                                 .basis = basis.values.data(),
                                 .segments = shared.data(),
                                 .out = out.data(),
                                 .num_segments = static_cast<int>(segments.size()),
                                 .q_stride = shape.q_stride(),
                                 .num_kv_heads = shape.num_kv_heads,
                                 .heads_per_group = group,
                                 .head_dim = d,
                                 .num_channels = shape.channels(),
                                 .cos = cos.data(),
                                 .sin = sin.data()});
        backend->Synchronize();
        return out.ToVector();
      };
      const auto rows = [&](int row, int count, int position) {
        return QuerySegment{.rows = {row, count, position},
                            .channels = basis.channels.data(),
                            .first_angle = kAngle};
      };
      const std::vector<float> out = run({rows(0, 1, 120), {}, rows(2, kRows - 2, 17)});
      const std::vector<float> alone = run({rows(4, 1, 19)});
      for (int row = 0; row < kRows; ++row) {
        const int position = kAngle + (row == 0 ? 120 : 17 + row - 2);
        for (int head = 0; head < shape.num_kv_heads; ++head) {
          std::vector<double> turned(d);
          for (int i = 0; row != 1 && i < group; ++i) {
            const float* from = &q[size_t(row) * shape.q_stride() + (head * group + i) * d];
            for (int e = 0; e < half; ++e) {
              const double c = cosines[position * half + e], s = sines[position * half + e];
              turned[e] += from[e] * c - from[e + half] * s;
              turned[e + half] += from[e + half] * c + from[e] * s;
            }
          }
          for (int c = 0; c < shape.channels(); ++c) {
            double product = row == 1 ? -7.0 : 0;
            const int column = basis.channels[size_t(head) * shape.channels() + c];
            for (int e = 0; e < d; ++e) {
              product += turned[e] * basis.values[(size_t(head) * d + e) * d + column];
            }
            const size_t at = row * width + size_t(head) * shape.channels() + c;
            ASSERT_NEAR(out[at], product, 2e-5 * std::sqrt(group)) << name << row;
            ASSERT_EQ(alone[at], row == 4 ? out[at] : -7.0f) << name << row;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace augur::kernels
