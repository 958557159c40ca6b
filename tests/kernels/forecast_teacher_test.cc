// The teacher of Forecast training against a slow one in double, on every ISA and any threads.
#include "kernels/cpu/forecast_teacher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/ops/compress_keys.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

struct TeacherCase {
  int head_dim = 64;
  int kv_heads = 2;
  int group = 4;
  int tokens = 700;
  bool is_fine = true;
  FineAlignment alignment = {};
};

// A case's inputs and room for its result.
struct TeacherData {
  explicit TeacherData(const TeacherCase& which) : one(which) {
    for (int position = 31; position < one.tokens; position += 1 + position % 23) {
      positions.push_back(position);
    }
    const int width = one.kv_heads * one.group * one.head_dim;
    q = RandomFloats(positions.size() * width, 1);
    places = one.is_fine ? one.tokens : one.tokens / kWindowStride;
    keys = RandomFloats(size_t(one.kv_heads) * places * one.head_dim, 2);
    stride = one.tokens / kWindowStride;
    params = {.q = q.data(),
              .positions = positions.data(),
              .keys = keys.data(),
              .key_stride = int64_t{places} * one.head_dim,
              .window_stride = stride,
              .rows = static_cast<int>(positions.size()),
              .q_stride = width,
              .num_kv_heads = one.kv_heads,
              .heads_per_group = one.group,
              .head_dim = one.head_dim,
              .scale = 0.25f,
              .is_fine = one.is_fine,
              .alignment = one.alignment};
  }

  std::vector<float> Run(int threads, CpuIsa isa) {
    std::vector<float> windows(positions.size() * one.kv_heads * stride, -1.0f);
    ThreadPool pool(threads);
    params.windows = windows.data();
    ForecastTeacher(&pool, isa).Run(params);
    return windows;
  }

  TeacherCase one;
  std::vector<int32_t> positions;
  std::vector<float> q, keys;
  int places = 0;
  int stride = 0;
  ForecastTeacherParams params;
};

// A / sum(A) of one row and kv head, as the header defines it.
std::vector<double> SlowTeacher(const TeacherData& data, int row, int kv_head) {
  const TeacherCase& one = data.one;
  const int position = data.positions[row], windows = CompleteWindows(position);
  const int first = one.is_fine ? 0 : 1, end = one.is_fine ? position : windows + 1;
  std::vector<double> total(end, 0.0);
  for (int head = 0; head < one.group; ++head) {
    const float* q = data.q.data() + size_t(row) * data.params.q_stride +
                     size_t(kv_head * one.group + head) * one.head_dim;
    std::vector<double> e(end, 0.0);
    double sum = 0;
    for (int place = first; place < end; ++place) {
      const float* key = data.keys.data() + (size_t(kv_head) * data.places + place) * one.head_dim;
      double product = 0;
      for (int c = 0; c < one.head_dim; ++c) product += double{q[c]} * key[c];
      sum += e[place] = std::exp(product * data.params.scale);
    }
    for (int place = first; place < end; ++place) total[place] += e[place] / sum;
  }
  std::vector<double> aligned(windows, 0.0);
  double sum = 0;
  for (int j = 0; j < windows; ++j) {
    if (one.is_fine) {
      const int begin = kWindowStride * j - one.alignment.before;
      for (int t = begin; t < begin + one.alignment.tokens; ++t) {
        if (t >= 0 && t < end) aligned[j] = std::max(aligned[j], total[t]);
      }
    } else {
      aligned[j] = total[j + 1];
    }
    sum += aligned[j];
  }
  for (double& value : aligned) value /= sum;
  return aligned;
}

const TeacherCase kCases[] = {
    {},
    {.alignment = {.before = 0, .tokens = 31}},
    {.is_fine = false},
    {.head_dim = 128, .kv_heads = 1, .group = 16, .tokens = 300},
    {.head_dim = 32, .kv_heads = 3, .group = 1, .tokens = kSanitized ? 500 : 4000},
};

TEST(ForecastTeacherTest, AgreesWithTheDefinition) {
  for (const TeacherCase& one : kCases) {
    TeacherData data(one);
    const std::vector<float> windows = data.Run(2, CpuIsa::kAuto);
    const int step = one.tokens > 2000 ? 13 : 1;
    for (int row = 0; row < data.params.rows; row += step) {
      for (int kv_head = 0; kv_head < one.kv_heads; ++kv_head) {
        const std::vector<double> expected = SlowTeacher(data, row, kv_head);
        const float* found = windows.data() + (size_t(row) * one.kv_heads + kv_head) * data.stride;
        const double largest = *std::max_element(expected.begin(), expected.end());
        for (size_t j = 0; j < expected.size(); ++j) {
          ASSERT_NEAR(found[j], expected[j], 1e-5 * largest)
              << "row " << row << " at " << data.positions[row] << ", window " << j;
        }
      }
    }
  }
}

TEST(ForecastTeacherTest, SameBitsOnEveryIsaAndAnyThreads) {
  for (const TeacherCase& one : kCases) {
    TeacherData data(one);
    const std::vector<float> expected = data.Run(1, CpuIsa::kGeneric);
    for (const CpuIsa isa : IsasHere()) EXPECT_EQ(data.Run(2, isa), expected) << NameOf(isa);
  }
}

}  // namespace
}  // namespace augur::kernels
