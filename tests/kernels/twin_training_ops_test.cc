// Ops of Forecast training against slow ones in double.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cpu/forecast_loss.h"
#include "kernels/training_ops.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/kernel_test_data.h"

namespace augur::kernels {
namespace {

// The types in which a backend computes.
std::vector<DType> DTypesOf(const BackendUnderTest& under) {
  if (under.on_device) return {DType::kBF16};
  return {DType::kF32, DType::kBF16};
}

// An operand in the backend's memory and the floats it stands for.
struct Operand {
  Operand(Backend& backend, DType dtype, const std::vector<float>& source)
      : matrix(dtype, source), bytes(backend, matrix.bytes) {}
  const void* data() const { return bytes.data(); }
  const std::vector<float>& values() const { return matrix.values; }

  TypedMatrix matrix;
  SharedArray<std::byte> bytes;
};

std::vector<float> FloatsOf(DType dtype, const SharedArray<std::byte>& array) {
  std::vector<float> values(array.size() / BytesOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) values[i] = ReadAs(dtype, array.data(), i);
  return values;
}

double RoundingOf(DType dtype) { return dtype == DType::kF32 ? 0x1p-23 : 0x1p-8; }

// Positions of 64 blocks at most, ascending, the last one `last`.
std::vector<int32_t> PositionsUpTo(int last, int count) {
  std::vector<int32_t> positions;
  for (int i = 0; i < count; ++i) positions.push_back(last - (count - 1 - i) * 19);
  return positions;
}

TEST(TwinTrainingOpsTest, GatherRowsRoundsRowsByTheirNumber) {
  const std::vector<int32_t> ids = {4, 0, 3, 3, 6};
  for (const BackendUnderTest& under : BackendsUnderTest()) {
    for (const int width : {24, 21}) {
      for (const DType from : {DType::kF32, DType::kBF16, DType::kF16}) {
        for (const DType to : {DType::kF32, DType::kBF16}) {
          constexpr int kStride = 28;
          const Operand source(*under.backend, from, RandomFloats(7 * kStride, 3));
          SharedArray<int32_t> rows(*under.backend, ids);
          SharedArray<std::byte> out(*under.backend, ids.size() * width * BytesOf(to));
          under.backend->training_ops()->GatherRows({.from = source.data(),
                                                     .row_ids = rows.data(),
                                                     .to = out.data(),
                                                     .from_stride = kStride,
                                                     .rows = static_cast<int>(ids.size()),
                                                     .width = width,
                                                     .from_dtype = from,
                                                     .to_dtype = to});
          under.backend->Synchronize();
          std::vector<float> expected;
          for (const int32_t id : ids) {
            const auto row = source.values().begin() + id * kStride;
            expected.insert(expected.end(), row, row + width);
          }
          ASSERT_EQ(FloatsOf(to, out), TypedMatrix(to, expected).values) << under.name;
        }
      }
    }
  }
}

TEST(TwinTrainingOpsTest, WindowKeysWritesWhatTheNewTokensComplete) {
  constexpr int kTokens = 173, kHeads = 2, kDim = 16, kStride = 192, kRowStride = 50;
  const std::vector<float> k = RandomFloats(kTokens * kRowStride, 8);
  for (const BackendUnderTest& under : BackendsUnderTest()) {
    for (const DType dtype : DTypesOf(under)) {
      SharedArray<float> rows(*under.backend, k);
      const size_t bytes = kHeads * kStride * kDim * BytesOf(dtype);
      SharedArray<std::byte> tokens(*under.backend, bytes), fine(*under.backend, bytes),
          coarse(*under.backend, bytes / kWindowStride);
      for (const auto& [first, end] : {std::pair(0, 70), {70, 71}, {71, kTokens}}) {
        under.backend->training_ops()->WindowKeys({.k = rows.data() + first * kRowStride,
                                                   .tokens = tokens.data(),
                                                   .fine = fine.data(),
                                                   .coarse = coarse.data(),
                                                   .key_stride = kStride,
                                                   .row_stride = kRowStride,
                                                   .first_position = first,
                                                   .rows = end - first,
                                                   .num_kv_heads = kHeads,
                                                   .head_dim = kDim,
                                                   .dtype = dtype});
      }
      under.backend->Synchronize();
      const std::vector<float> found = FloatsOf(dtype, tokens), pairs = FloatsOf(dtype, fine),
                               windows = FloatsOf(dtype, coarse);
      const TypedMatrix typed(dtype, k);
      const auto key = [&](int t, int h, int c) {
        return typed.values[t * kRowStride + h * kDim + c];
      };
      for (int h = 0; h < kHeads; ++h) {
        for (int c = 0; c < kDim; ++c) {
          for (int t = 0; t < kTokens; ++t) {
            const size_t at = (size_t(h) * kStride + t) * kDim + c;
            ASSERT_EQ(found[at], key(t, h, c)) << under.name;
            if (t + 1 == kTokens) continue;
            const float pair = (key(t, h, c) + key(t + 1, h, c)) / 2.0f;
            ASSERT_EQ(pairs[at], TypedMatrix(dtype, {pair}).values[0]) << under.name << " " << t;
          }
          for (int j = 0; j < CompleteWindows(kTokens - 1); ++j) {
            double sum = 0;
            for (int t = 0; t < kWindowTokens; ++t) sum += key(kWindowStride * j + t, h, c);
            const double mean = sum / kWindowTokens;
            ASSERT_NEAR(windows[(size_t(h) * kStride / kWindowStride + j + 1) * kDim + c], mean,
                        RoundingOf(dtype) * std::abs(mean) + 1e-6)
                << under.name << " " << j;
          }
        }
      }
      // Nothing behind the last token, nor before the first window.
      ASSERT_TRUE(std::isnan(found[size_t(kTokens) * kDim]));
      ASSERT_TRUE(std::isnan(pairs[size_t(kTokens - 1) * kDim]));
      ASSERT_TRUE(std::isnan(windows[0]));
    }
  }
}

struct TeacherCase {
  int head_dim = 64;
  int kv_heads = 2;
  int group = 4;
  int last = 700;
  int rows = 40;
  bool is_fine = true;
  FineAlignment alignment = {};
};

struct TeacherData {
  TeacherData(Backend& backend, DType dtype, const TeacherCase& which)
      : one(which),
        positions(backend, PositionsUpTo(one.last, one.rows)),
        places(one.is_fine ? one.last : one.last / kWindowStride + 1),
        stride(one.last / kWindowStride + 1),
        q(backend, dtype, RandomFloats(one.rows * width(), 1)),
        keys(backend, dtype, RandomFloats(size_t(one.kv_heads) * places * one.head_dim, 2)),
        windows(backend, size_t(one.rows) * one.kv_heads * stride),
        scratch(backend, TeacherScratchFloats(one.rows, one.kv_heads, one.last)) {
    backend.training_ops()->ForecastTeacher({.q = q.data(),
                                             .positions = positions.data(),
                                             .keys = keys.data(),
                                             .windows = windows.data(),
                                             .scratch = scratch.data(),
                                             .scratch_floats = scratch.size(),
                                             .key_stride = int64_t{places} * one.head_dim,
                                             .window_stride = stride,
                                             .rows = one.rows,
                                             .q_stride = width(),
                                             .num_kv_heads = one.kv_heads,
                                             .heads_per_group = one.group,
                                             .head_dim = one.head_dim,
                                             .last_position = one.last,
                                             .scale = scale,
                                             .is_fine = one.is_fine,
                                             .alignment = one.alignment,
                                             .dtype = dtype});
    backend.Synchronize();
  }
  int width() const { return one.kv_heads * one.group * one.head_dim; }

  // A / sum(A) of one row and kv head, as the header defines it.
  std::vector<double> Expected(int row, int kv_head) const {
    const int position = positions[row], count = CompleteWindows(position);
    const int first = one.is_fine ? 0 : 1, end = one.is_fine ? position : count + 1;
    std::vector<double> total(end, 0.0);
    for (int head = 0; head < one.group; ++head) {
      const float* own = q.values().data() + size_t(row) * width() +
                         size_t(kv_head * one.group + head) * one.head_dim;
      std::vector<double> e(end, 0.0);
      double sum = 0;
      for (int place = first; place < end; ++place) {
        const float* key = keys.values().data() + (size_t(kv_head) * places + place) * one.head_dim;
        double product = 0;
        for (int c = 0; c < one.head_dim; ++c) product += double{own[c]} * key[c];
        sum += e[place] = std::exp(product * scale);
      }
      for (int place = first; place < end; ++place) total[place] += e[place] / sum;
    }
    std::vector<double> aligned(count, 0.0);
    double sum = 0;
    for (int j = 0; j < count; ++j) {
      const int begin = one.is_fine ? kWindowStride * j - one.alignment.before : j + 1;
      const int tokens = one.is_fine ? one.alignment.tokens : 1;
      for (int t = std::max(begin, 0); t < std::min(begin + tokens, end); ++t) {
        aligned[j] = std::max(aligned[j], total[t]);
      }
      sum += aligned[j];
    }
    for (double& value : aligned) value /= sum;
    return aligned;
  }

  static constexpr float scale = 0.25f;
  const TeacherCase one;
  SharedArray<int32_t> positions;
  int places;
  int stride;
  Operand q, keys;
  SharedArray<float> windows, scratch;
};

// Groups that are filled up, one head, long rows in several shares, every way of alignment.
const TeacherCase kTeacherCases[] = {
    {},
    {.alignment = {.before = 0, .tokens = 31}},
    {.group = 16, .is_fine = false},
    {.head_dim = 128, .kv_heads = 1, .group = 16, .last = 2300, .rows = 9},
    {.head_dim = 64, .kv_heads = 3, .group = 1, .last = kSanitized ? 2600 : 4500, .rows = 130},
    {.head_dim = 96, .group = 2, .last = 1200, .rows = 61},
    {.head_dim = 128, .group = 7, .last = 500, .rows = 22},
    {.head_dim = 64, .kv_heads = 1, .group = 8, .last = 90, .rows = 1},
};

TEST(TwinTrainingOpsTest, ForecastTeacherAgreesWithTheDefinition) {
  for (const BackendUnderTest& under : BackendsUnderTest()) {
    for (const DType dtype : DTypesOf(under)) {
      for (const TeacherCase& one : kTeacherCases) {
        const TeacherData data(*under.backend, dtype, one);
        const int step = kSanitized || one.rows > 100 ? 23 : 4;
        for (int row = one.rows - 1; row >= 0; row -= step) {
          for (int kv_head = 0; kv_head < one.kv_heads; ++kv_head) {
            const std::vector<double> expected = data.Expected(row, kv_head);
            const float* found =
                data.windows.data() + (size_t(row) * one.kv_heads + kv_head) * data.stride;
            const double largest = *std::max_element(expected.begin(), expected.end());
            for (size_t j = 0; j < expected.size(); ++j) {
              ASSERT_NEAR(found[j], expected[j], 1e-4 * expected[j] + 1e-7 * largest)
                  << under.name << " d " << one.head_dim << " group " << one.group << " row " << row
                  << " head " << kv_head << " window " << j;
            }
          }
        }
      }
    }
  }
}

struct HeadCase {
  int rows, hidden, kv_heads, head_dim;
};
const HeadCase kHeadCases[] = {{1, 40, 1, 64}, {70, 328, 2, 64}, {33, 64, 1, 128}};

// Angles of positions below `positions`.
struct Angles {
  Angles(Backend& backend, int positions, int half)
      : cos(backend, size_t(positions) * half), sin(backend, size_t(positions) * half) {
    for (size_t i = 0; i < cos.size(); ++i) {
      const double angle = double(i / half) / (1.0 + double(i % half));
      cos[i] = static_cast<float>(std::cos(angle));
      sin[i] = static_cast<float>(std::sin(angle));
    }
  }
  SharedArray<float> cos, sin;
};

TEST(TwinTrainingOpsTest, ProjectForecastTurnsTheProduct) {
  for (const BackendUnderTest& under : BackendsUnderTest()) {
    for (const DType dtype : DTypesOf(under)) {
      for (const auto& [rows, hidden, kv_heads, dim] : kHeadCases) {
        const int width = kv_heads * dim, half = dim / 2;
        const Operand x(*under.backend, dtype, RandomFloats(size_t(rows) * hidden, 4));
        const Operand head(*under.backend, dtype, RandomFloats(size_t(width) * hidden, 5, 0.1f));
        SharedArray<int32_t> positions(*under.backend, PositionsUpTo(19 * rows + 3, rows));
        Angles angles(*under.backend, 19 * rows + 4, half);
        SharedArray<float> products(*under.backend, size_t(rows) * width);
        SharedArray<std::byte> forecasts(*under.backend, size_t(rows) * width * BytesOf(dtype));
        under.backend->training_ops()->ProjectForecast({.x = x.data(),
                                                        .head = head.data(),
                                                        .positions = positions.data(),
                                                        .cos = angles.cos.data(),
                                                        .sin = angles.sin.data(),
                                                        .products = products.data(),
                                                        .forecasts = forecasts.data(),
                                                        .rows = rows,
                                                        .hidden = hidden,
                                                        .num_kv_heads = kv_heads,
                                                        .head_dim = dim,
                                                        .dtype = dtype});
        under.backend->Synchronize();
        const std::vector<float> found = FloatsOf(dtype, forecasts);
        for (int row = 0; row < rows; row += 1 + rows / 5) {
          for (int o = 0; o < width; ++o) {
            const auto product = [&](int output) {
              double sum = 0;
              for (int i = 0; i < hidden; ++i) {
                sum += double{x.values()[row * hidden + i]} *
                       head.values()[size_t(output) * hidden + i];
              }
              return sum;
            };
            const int i = o % dim % half, first = o / dim * dim + i;
            const double a = product(first), b = product(first + half);
            const double c = angles.cos[size_t(positions[row]) * half + i];
            const double s = angles.sin[size_t(positions[row]) * half + i];
            const double expected = o % dim < half ? a * c - b * s : b * c + a * s;
            ASSERT_NEAR(found[row * width + o], expected,
                        RoundingOf(dtype) * std::abs(expected) + 1e-5)
                << under.name << " row " << row << " output " << o;
          }
        }
      }
    }
  }
}

TEST(TwinTrainingOpsTest, AddForecastGradientAddsTheTransposedProduct) {
  for (const BackendUnderTest& under : BackendsUnderTest()) {
    for (const DType dtype : DTypesOf(under)) {
      for (const auto& [rows, hidden, kv_heads, dim] : kHeadCases) {
        const int width = kv_heads * dim, half = dim / 2;
        const Operand x(*under.backend, dtype, RandomFloats(size_t(rows) * hidden, 6));
        SharedArray<float> derivatives(*under.backend, RandomFloats(size_t(rows) * width, 7));
        SharedArray<int32_t> positions(*under.backend, PositionsUpTo(19 * rows + 3, rows));
        Angles angles(*under.backend, 19 * rows + 4, half);
        SharedArray<std::byte> turned(*under.backend, size_t(rows) * width * BytesOf(dtype));
        const std::vector<float> before = RandomFloats(size_t(width) * hidden, 9);
        SharedArray<float> gradient(*under.backend, before);
        under.backend->training_ops()->AddForecastGradient({.derivatives = derivatives.data(),
                                                            .x = x.data(),
                                                            .positions = positions.data(),
                                                            .cos = angles.cos.data(),
                                                            .sin = angles.sin.data(),
                                                            .turned = turned.data(),
                                                            .gradient = gradient.data(),
                                                            .rows = rows,
                                                            .hidden = hidden,
                                                            .num_kv_heads = kv_heads,
                                                            .head_dim = dim,
                                                            .dtype = dtype});
        under.backend->Synchronize();
        for (int o = 0; o < width; o += 1 + width / 9) {
          for (int i = 0; i < hidden; i += 7) {
            double expected = before[size_t(o) * hidden + i], magnitude = 0;
            for (int row = 0; row < rows; ++row) {
              const int pair = o % dim % half, first = o / dim * dim + pair;
              const double a = derivatives[row * width + first];
              const double b = derivatives[row * width + first + half];
              const double c = angles.cos[size_t(positions[row]) * half + pair];
              const double s = angles.sin[size_t(positions[row]) * half + pair];
              const double back = o % dim < half ? a * c + b * s : b * c - a * s;
              const double term = back * x.values()[row * hidden + i];
              expected += term;
              magnitude += std::abs(term);
            }
            ASSERT_NEAR(gradient[size_t(o) * hidden + i], expected,
                        RoundingOf(dtype) * magnitude + 1e-5)
                << under.name << " output " << o << " input " << i;
          }
        }
      }
    }
  }
}

struct LossData {
  static constexpr int kRows = 24, kHeads = 2, kLast = 64 * 21 + 40;
  static constexpr int kDim = 64, kStride = 96;
  static constexpr float kScale = 0.125f;

  LossData(Backend& backend, DType type, const SelectionBudget& which, bool with_gradients)
      : dtype(type),
        budget(which),
        positions(backend, PositionsUpTo(kLast, kRows)),
        forecasts(backend, dtype, RandomFloats(kRows * kHeads * kDim, 11)),
        keys(backend, dtype, RandomFloats(kHeads * kStride * kDim, 12)),
        teacher(backend, kRows * kHeads * kStride),
        derivatives(backend, kRows * kHeads * kDim),
        products(backend, kRows * kHeads * kStride),
        gradients(backend, kRows * kHeads * kStride * BytesOf(dtype)),
        row_tallies(backend, kRows * kHeads),
        tally(backend,
              std::vector<ForecastTally>{{.loss = 2, .recall = 3, .rows = 4, .choices = 5}}) {
    const std::vector<float> scores = RandomFloats(teacher.size(), 13, 2.0f);
    for (int item = 0; item < kRows * kHeads; ++item) {
      const int count = CompleteWindows(positions[item / kHeads]);
      const std::span<float> shares(teacher.data() + item * kStride, count);
      Softmax<float>(std::span(scores).subspan(item * kStride, count), shares);
      if (item == 5) std::fill(shares.begin(), shares.end(), 1.0f / count);  // all tie
    }
    backend.training_ops()->ForecastLoss(
        {.forecasts = forecasts.data(),
         .keys = keys.data(),
         .teacher = teacher.data(),
         .positions = positions.data(),
         .derivatives = with_gradients ? derivatives.data() : nullptr,
         .tally = tally.data(),
         .products = products.data(),
         .gradients = gradients.data(),
         .row_tallies = row_tallies.data(),
         .key_stride = kStride * kDim,
         .window_stride = kStride,
         .rows = kRows,
         .num_kv_heads = kHeads,
         .head_dim = kDim,
         .last_position = kLast,
         .budget = budget,
         .scale = kScale,
         .dtype = dtype});
    backend.Synchronize();
  }

  const DType dtype;
  const SelectionBudget budget;
  SharedArray<int32_t> positions;
  Operand forecasts, keys;
  SharedArray<float> teacher, derivatives, products;
  SharedArray<std::byte> gradients;
  SharedArray<ForecastRowTally> row_tallies;
  SharedArray<ForecastTally> tally;
};

// One (row, kv head) in double: its derivatives are checked, its tally returned.
ForecastTally CheckLossRow(const LossData& data, int item, bool with_gradients) {
  constexpr int kDim = LossData::kDim;
  const int position = data.positions[item / LossData::kHeads];
  const int count = CompleteWindows(position);
  const float* keys =
      data.keys.values().data() + (item % LossData::kHeads * LossData::kStride + 1) * kDim;
  const float* forecast = data.forecasts.values().data() + item * kDim;
  std::vector<double> products(count), shares(count), gradient(count);
  for (int j = 0; j < count; ++j) {
    for (int c = 0; c < kDim; ++c) products[j] += double{forecast[c]} * keys[j * kDim + c];
    products[j] *= LossData::kScale;
  }
  Softmax<double>(products, shares);
  const std::vector<float> scores(data.teacher.data() + item * LossData::kStride,
                                  data.teacher.data() + item * LossData::kStride + count);
  const FreeBlocks free = FreeBlocksAt(position, data.budget);
  if (free.candidates() == 0) {
    EXPECT_EQ(data.row_tallies[item].rows, 0);
    return {};
  }
  std::vector<int32_t> wanted, chosen, kept;
  ChooseFreeBlocks(scores, free, &wanted);
  WindowsOf(wanted, count, &kept);
  const std::vector<double> teacher(scores.begin(), scores.end());
  ForecastTally tally{.loss = PartitionedKl<double>(teacher, shares, kept, gradient), .rows = 1};
  for (int c = 0; c < kDim && with_gradients; ++c) {
    double expected = 0, magnitude = 0;
    for (int j = 0; j < count; ++j) {
      const double term = gradient[j] * keys[j * kDim + c] * LossData::kScale;
      expected += term;
      magnitude += std::abs(term);
    }
    EXPECT_NEAR(data.derivatives[item * kDim + c], expected,
                (RoundingOf(data.dtype) + 1e-4) * magnitude + 1e-7)
        << "item " << item << " element " << c;
  }
  EXPECT_NEAR(data.row_tallies[item].loss, tally.loss, 1e-4 * tally.loss + 1e-6) << item;
  if (!free.is_choice()) return tally;
  const std::vector<float> rounded(products.begin(), products.end());
  ChooseFreeBlocks(rounded, free, &chosen);
  int shared = 0;
  for (const int32_t block : wanted) shared += std::count(chosen.begin(), chosen.end(), block);
  tally.choices = 1;
  tally.recall = double(shared) / double(wanted.size());
  EXPECT_NEAR(data.row_tallies[item].recall, tally.recall, 1e-6) << item;
  return tally;
}

TEST(TwinTrainingOpsTest, ForecastLossAgreesWithItsDefinitionAndDerivative) {
  const SelectionBudget budgets[] = {{.top_k = 6, .init = 1, .local = 2},
                                     {.top_k = 20, .init = 1, .local = 9},
                                     {.top_k = 14, .init = 0, .local = 4}};
  for (const BackendUnderTest& under : BackendsUnderTest()) {
    for (const DType dtype : DTypesOf(under)) {
      for (const SelectionBudget& budget : budgets) {
        for (const bool with_gradients : {true, false}) {
          SCOPED_TRACE(under.name + " top_k " + std::to_string(budget.top_k));
          const LossData data(*under.backend, dtype, budget, with_gradients);
          ForecastTally sum{.loss = 2, .recall = 3, .rows = 4, .choices = 5};
          for (int item = 0; item < LossData::kRows * LossData::kHeads; ++item) {
            const ForecastTally one = CheckLossRow(data, item, with_gradients);
            sum.loss += one.loss;
            sum.recall += one.recall;
            sum.rows += one.rows;
            sum.choices += one.choices;
          }
          EXPECT_NEAR(data.tally[0].loss, sum.loss, 1e-4 * sum.loss);
          EXPECT_NEAR(data.tally[0].recall, sum.recall, 1e-4);
          EXPECT_EQ(data.tally[0].rows, sum.rows);
          EXPECT_EQ(data.tally[0].choices, sum.choices);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

TEST(TwinTrainingOpsTest, TheSameCallsGiveTheSameBits) {
  for (const BackendUnderTest& under : BackendsUnderTest()) {
    const DType dtype = DTypesOf(under).front();
    const SelectionBudget budget{.top_k = 6, .init = 1, .local = 2};
    const LossData first(*under.backend, dtype, budget, true),
        second(*under.backend, dtype, budget, true);
    EXPECT_TRUE(SameBits(first.derivatives.ToVector(), second.derivatives.ToVector()));
    EXPECT_EQ(first.tally[0].loss, second.tally[0].loss);
    const TeacherData one(*under.backend, dtype, kTeacherCases[3]),
        other(*under.backend, dtype, kTeacherCases[3]);
    const size_t count = CompleteWindows(kTeacherCases[3].last);
    const size_t last = size_t(kTeacherCases[3].rows - 1) * one.stride;
    EXPECT_TRUE(SameBits(one.windows.data() + last, other.windows.data() + last, count));
  }
}

}  // namespace
}  // namespace augur::kernels
