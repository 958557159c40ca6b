// SampledAttention and SumValues on every backend. Given scores, a device draws the very counts
// that the CPU draws; given keys, the scores are its own, and what is drawn has the exact mean.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "kernels/ops/sum_values.h"
#include "tests/kernels/sampled_case.h"
#include "tests/kernels/twin_sampled.h"

namespace augur::kernels {
namespace {

constexpr ValueEstimator kOnDevices[] = {ValueEstimator::kProportional, ValueEstimator::kFlash,
                                         ValueEstimator::kShared};

// What kShared keeps between steps, as if the exact normalisers had been seen at lambda.
std::vector<float> StateOf(const AttentionShape& shape, float lambda, float seen) {
  std::vector<float> state;
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    state.push_back(lambda > 0 ? 1.0f : 0.0f);
    state.push_back(lambda);
    for (int g = 0; g < shape.group; ++g) state.push_back(lambda > 0 ? seen + 0.1f * g : 0.0f);
  }
  return state;
}

// A list whose scores are given, over a few pages of small whole values again and again: with 2^k
// draws every sum is exact, so that equal counts give equal bits whatever the order.
struct ScoredList {
  int tokens, group, head_dim;
  DType dtype;
  float spread;
};

struct ScoredDraws {
  std::vector<float> out;
  std::vector<int32_t> entry_rows;
  SampledCounts counts;
  std::vector<float> state;
};

constexpr int kValuePages = 5;

ScoredDraws DrawScored(Backend& backend, const ScoredList& list, ValueEstimator estimator,
                       int samples, uint64_t seed) {
  const int entries = (list.tokens + kBlockTokens - 1) / kBlockTokens;
  const size_t stride = size_t(entries) * kBlockTokens;
  SharedArray<float> scores(backend, stride * list.group);
  const std::vector<float> random = RandomFloats(scores.size(), 3, list.spread);
  for (int g = 0; g < list.group; ++g) {
    for (size_t t = 0; t < stride; ++t) {
      // Tiles differ in their mass, some have none.
      const float of_tile = t / 64 % 7 == 3 ? -200.0f : 2.0f * std::sin(0.3f * (t / 64) + g);
      const bool is_seen = static_cast<int>(t) < list.tokens;
      scores[g * stride + t] = is_seen ? random[g * stride + t] + of_tile : -INFINITY;
    }
  }
  const size_t half = size_t(kBlockTokens) * list.head_dim * BytesOf(list.dtype);
  std::vector<std::byte> bytes(kValuePages * half, std::byte{0xff});
  for (int page = 0; page < kValuePages; ++page) {
    for (int i = 0; i < kBlockTokens * list.head_dim; ++i) {
      WriteAs(list.dtype, static_cast<float>((page * 31 + i * 7) % 17 - 8),
              bytes.data() + page * half, i);
    }
  }
  const DeviceBytes pages(backend, bytes);
  SharedArray<const std::byte*> values(backend, entries);
  for (int e = 0; e < entries; ++e) values[e] = pages.data() + e % kValuePages * half;
  SharedArray<int32_t> entry_rows(backend, entries);
  SharedArray<SampledCounts> counts(backend, 1);
  const AttentionShape shape{list.group, 1, list.head_dim, list.dtype};
  SharedArray<float> state(
      backend, StateOf(shape, static_cast<float>(samples), std::log2(1.0f + entries / 5.0f)));
  SharedArray<float> out(backend, size_t(list.group) * list.head_dim);
  SharedArray<SampledSegment> segment(
      backend, std::vector<SampledSegment>{{.row = 0,
                                            .position = list.tokens - 1,
                                            .values = values.data(),
                                            .state = state.data(),
                                            .list_stride = entries,
                                            .samples = samples,
                                            .seed = seed,
                                            .entry_rows = entry_rows.data()}});
  SharedArray<float> q(backend, std::vector<float>(list.group * list.head_dim, 0.0f));
  backend.SampledAttention({.q = q.data(),
                            .out = out.data(),
                            .segments = segment.data(),
                            .counts = counts.data(),
                            .num_segments = 1,
                            .rows = 1,
                            .q_stride = list.group * list.head_dim,
                            .num_q_heads = list.group,
                            .num_kv_heads = 1,
                            .head_dim = list.head_dim,
                            .dtype = list.dtype,
                            .layer = 2,
                            .estimator = estimator,
                            .max_entries = entries,
                            .scores = scores.data(),
                            .scores_stride = stride});
  backend.Synchronize();
  return {out.ToVector(), entry_rows.ToVector(), counts[0], state.ToVector()};
}

TEST(TwinSampledTest, GivenScoresDrawWhatTheCpuDraws) {
  const auto cpu = MakeCpuBackend({.num_threads = 2});
  const ScoredList lists[] = {
      {1, 1, 64, DType::kBF16, 1},      {64, 2, 128, DType::kF16, 2},
      {65, 4, 128, DType::kBF16, 3},    {1000, 16, 128, DType::kBF16, 1},
      {4097, 7, 64, DType::kF16, 6},    {2500, 3, 80, DType::kF32, 2},
      {20000, 16, 64, DType::kBF16, 0}, {kSanitized ? 3000 : 1 << 20, 2, 128, DType::kF16, 3}};
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const ScoredList& list : lists) {
      for (const ValueEstimator estimator : kOnDevices) {
        for (const int samples : {1, 128, 4096}) {
          SCOPED_TRACE(testing::Message()
                       << under_test.name << " " << list.tokens << " x " << list.group << " "
                       << NameOf(estimator) << " S " << samples);
          const auto expected = DrawScored(*cpu, list, estimator, samples, 11);
          const auto found = DrawScored(*under_test.backend, list, estimator, samples, 11);
          ASSERT_EQ(found.entry_rows, expected.entry_rows);
          ASSERT_TRUE(found.counts == expected.counts);
          for (const float value : found.out) ASSERT_TRUE(std::isfinite(value));
          if (estimator == ValueEstimator::kProportional) {
            ASSERT_TRUE(SameBits(found.out, expected.out));
            continue;
          }
          for (size_t i = 0; i < found.out.size(); ++i) {
            ASSERT_NEAR(found.out[i], expected.out[i], 1e-5 * (1 + std::fabs(expected.out[i])));
          }
          for (size_t i = 0; i < found.state.size(); ++i) {
            ASSERT_NEAR(found.state[i], expected.state[i], 1e-5 * (1 + expected.state[i]));
          }
        }
      }
    }
  }
}

std::vector<AttentionShape> Shapes() {
  return {{4, 2, 64, DType::kBF16}, {16, 2, 128, DType::kBF16}, {1, 3, 128, DType::kF16},
          {7, 1, 64, DType::kF16},  {8, 1, 128, DType::kBF16},  {3, 2, 80, DType::kF32},
          {2, 1, 96, DType::kBF16}};
}

std::vector<std::vector<int32_t>> SomeBlocks(const AttentionShape& shape, int blocks) {
  std::vector<std::vector<int32_t>> lists(shape.num_kv_heads);
  for (int h = 0; h < shape.num_kv_heads; ++h) {
    for (int b = 0; b < blocks; ++b) {
      if (b == blocks - 1 || b % 3 != h % 3) lists[h].push_back(b);
    }
  }
  return lists;
}

// As many draws as there may be leave nothing to chance: exact attention, over whole lists, chosen
// blocks, with biases.
TEST(TwinSampledTest, ManyDrawsGiveExactAttention) {
  const int tokens = kSanitized ? 300 : 700;
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : Shapes()) {
      const AttentionSequence sequence(*under_test.backend, shape,
                                       {.tokens = tokens, .score_scale = 1.3f});
      std::vector<SampledRow> rows(4);
      rows[0] = {.sequence = &sequence, .samples = kMaxValueSamples};
      rows[1] = rows[2] = rows[3] = rows[0];
      rows[1].lists = SomeBlocks(shape, (tokens + 63) / 64);
      rows[2].has_biases = true;
      rows[3].position = 77;
      // At such a rate every row is certain.
      rows[1].state = rows[3].state = StateOf(shape, kMaxValueSamples, 1.0f);
      rows[0].has_sums = rows[3].has_sums = true;
      for (const ValueEstimator estimator : kOnDevices) {
        const SampledResult found = Sample(under_test, shape, rows, {.estimator = estimator});
        for (size_t r = 0; r < rows.size(); ++r) {
          const std::vector<double> exact = ExactRow(shape, rows[r]);
          for (size_t i = 0; i < exact.size(); ++i) {
            ASSERT_NEAR(found.Out(r * exact.size() + i), exact[i], 6e-3)
                << under_test.name << " " << Describe(shape) << " " << NameOf(estimator) << " row "
                << r << " at " << i;
          }
        }
      }
    }
  }
}

// Draws follow from a row's own list: the same bits alone, among others, under any bound, and
// again.
TEST(TwinSampledTest, RowsStandAlone) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape : Shapes()) {
      std::deque<AttentionSequence> sequences;
      std::vector<SampledRow> rows;
      for (const int tokens : {1, 64, 65, 300, 1100, under_test.on_device ? 8100 : 500}) {
        sequences.emplace_back(*under_test.backend, shape,
                               SequenceContent{.seed = 3u + tokens, .tokens = tokens});
        rows.push_back({.sequence = &sequences.back(), .samples = tokens == 65 ? 0 : 64});
        rows.push_back({});
      }
      // So many pages that each CTA's ring of them comes round.
      for (int i = 1; i < (under_test.on_device ? 40 : 3); ++i) {
        rows.push_back({.sequence = &sequences.back(),
                        .samples = 64,
                        .seed = 100u + i,
                        .position = sequences.back().tokens() - 11 * i});
      }
      rows[8].lists = SomeBlocks(shape, 18);
      rows[6].state = rows[8].state = StateOf(shape, 40, 1.5f);
      rows[6].has_sums = true;
      for (const ValueEstimator estimator : kOnDevices) {
        SampledOptions options{.estimator = estimator};
        const SampledResult together = Sample(under_test, shape, rows, options);
        ASSERT_EQ(Sample(under_test, shape, rows, options).out, together.out);
        SampledCounts sum;
        const size_t width = shape.out_floats() * sizeof(float);
        for (size_t r = 0; r < rows.size(); ++r) {
          if (rows[r].sequence == nullptr) {
            for (size_t i = 0; i < width; ++i) {
              ASSERT_EQ(together.out[r * width + i], std::byte{0xff});
            }
            continue;
          }
          for (const int bound : {0, 150, 2049}) {
            options.max_entries = bound;
            const SampledResult alone = Sample(under_test, shape, {rows[r]}, options);
            ASSERT_TRUE(
                std::equal(alone.out.begin(), alone.out.end(), together.out.begin() + r * width))
                << under_test.name << " " << Describe(shape) << " row " << r;
            ASSERT_TRUE(alone.counts[0] == together.counts[r]);
            ASSERT_TRUE(SameBits(alone.states.data(),
                                 together.states.data() + r * alone.states.size(),
                                 alone.states.size()));
          }
          options.max_entries = 0;
          sum.draws += together.counts[r].draws;
          sum.rows += together.counts[r].rows;
          sum.distinct += together.counts[r].distinct;
          if (estimator == ValueEstimator::kProportional) {
            const int samples = rows[r].samples > 0 ? rows[r].samples : 32;
            ASSERT_EQ(together.counts[r].draws, int64_t{samples} * shape.num_q_heads());
          }
        }
        ASSERT_TRUE(sum == together.totals);
      }
    }
  }
}

// The same call again and again, over so many pages that each CTA's ring of them comes round.
TEST(TwinSampledTest, ACrowdIsTheSameEachTime) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    const int count = under_test.on_device ? 40 : 3, repeats = under_test.on_device ? 100 : 2;
    for (const AttentionShape& shape :
         {AttentionShape{4, 2, 64, DType::kBF16}, AttentionShape{16, 2, 128, DType::kBF16}}) {
      const AttentionSequence sequence(*under_test.backend, shape,
                                       {.seed = 9, .tokens = under_test.on_device ? 8100 : 500});
      std::vector<SampledRow> rows;
      for (int i = 0; i < count; ++i) {
        rows.push_back(
            {.sequence = &sequence, .samples = 64, .position = sequence.tokens() - 1 - 11 * i});
      }
      for (const ValueEstimator estimator : kOnDevices) {
        SampledBatch batch(*under_test.backend, shape, rows, {.estimator = estimator});
        const SampledResult expected = batch.Run();
        int other_out = 0, other_counts = 0;
        for (int i = 0; i < repeats; ++i) {
          batch.ResetStates();
          const SampledResult found = batch.Run();
          other_out += found.out != expected.out;
          other_counts += !(found.counts == expected.counts);
        }
        EXPECT_EQ(other_out, 0) << under_test.name << " " << Describe(shape) << " "
                                << NameOf(estimator);
        EXPECT_EQ(other_counts, 0) << under_test.name << " " << Describe(shape);
      }
    }
  }
}

// Values in pinned memory, plain and in fp8, are the values of a page.
TEST(TwinSampledTest, WhereValuesLieChangesNothing) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    Backend& backend = *under_test.backend;
    for (const AttentionShape& shape :
         {AttentionShape{4, 2, 64, DType::kBF16}, AttentionShape{16, 1, 128, DType::kF16}}) {
      const AttentionSequence sequence(backend, shape, {.tokens = 500});
      const int blocks = sequence.num_blocks();
      const size_t half = shape.page_bytes() / 2, fp8_half = Fp8HalfBytes(shape.head_dim);
      const size_t halves = size_t(blocks) * shape.num_kv_heads;
      std::vector<std::byte> rounded(halves * half, std::byte{0});
      for (size_t i = 0; i < halves; ++i) {
        std::byte* const rows = rounded.data() + i * half;
        for (int t = 0; t < kBlockTokens; ++t) {
          const int token = static_cast<int>(i) % blocks * kBlockTokens + t;
          for (int c = 0; c < shape.head_dim && token < 500; ++c) {
            WriteAs(shape.dtype, sequence.Value(0, static_cast<int>(i) / blocks, token, c), rows,
                    size_t(t) * shape.head_dim + c);
          }
          RoundRowToFp8(shape.dtype, shape.head_dim,
                        rows + t * shape.head_dim * BytesOf(shape.dtype));
        }
      }
      const DeviceBytes on_device(backend, rounded);
      SharedArray<std::byte> pinned(backend, rounded), packed(backend, halves * fp8_half);
      for (size_t i = 0; i < halves; ++i) {
        PackHalfPage(shape.dtype, shape.head_dim, rounded.data() + i * half,
                     packed.data() + i * fp8_half);
      }
      const Fp8Pages fp8{packed.data(), packed.data() + packed.size(), shape.head_dim, shape.dtype};
      SampledRow row{.sequence = &sequence, .samples = 100};
      row.values.resize(halves);
      const auto run = [&](const std::byte* begin, size_t bytes) {
        for (size_t i = 0; i < halves; ++i) row.values[i] = begin + i * bytes;
        return Sample(under_test, shape, {row}, {.fp8 = fp8});
      };
      const SampledResult expected = run(on_device.data(), half);
      ASSERT_EQ(run(pinned.data(), half).out, expected.out) << under_test.name;
      ASSERT_EQ(run(packed.data(), fp8_half).out, expected.out) << under_test.name;
      ASSERT_GT(expected.totals.distinct, 100);
    }
  }
}

// One row of ones a token, so that the output is the coefficients themselves.
class Coefficients {
 public:
  Coefficients(const BackendUnderTest& under_test, const AttentionShape& shape,
               const AttentionSequence& sequence, int samples, ValueEstimator estimator)
      : num_floats_(shape.out_floats()),
        values_(*under_test.backend, Ones(shape, sequence)),
        batch_(*under_test.backend, shape, {Row(shape, sequence, samples)},
               {.estimator = estimator}) {}

  std::vector<float> At(int64_t offset) {
    batch_.ResetStates();
    batch_.SetDraws(/*first=*/1, offset);
    const SampledResult found = batch_.Run();
    std::vector<float> out;
    for (int i = 0; i < num_floats_; ++i) out.push_back(found.Out(i));
    return out;
  }

 private:
  static std::vector<std::byte> Ones(const AttentionShape& shape,
                                     const AttentionSequence& sequence) {
    std::vector<std::byte> ones(size_t(sequence.num_blocks()) * shape.page_bytes() / 2);
    for (int t = 0; t < sequence.tokens(); ++t) {
      WriteAs(shape.dtype, 1.0f, ones.data(), size_t(t) * shape.head_dim + t);
    }
    return ones;
  }
  SampledRow Row(const AttentionShape& shape, const AttentionSequence& sequence,
                 int samples) const {
    SampledRow row{.sequence = &sequence,
                   .samples = samples,
                   .state = StateOf(shape, static_cast<float>(samples), 0.3f)};
    for (int b = 0; b < sequence.num_blocks(); ++b) {
      row.values.push_back(values_.data() + b * shape.page_bytes() / 2);
    }
    return row;
  }

  const int num_floats_;
  const DeviceBytes values_;
  SampledBatch batch_;
};

// E[w_j] = p_j over every offset there is, with the backend's own scores.
TEST(TwinSampledTest, MeanCoefficientsAreTheProbabilities) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    for (const AttentionShape& shape :
         {AttentionShape{2, 1, 128, DType::kBF16}, AttentionShape{3, 1, 80, DType::kF32}}) {
      const int tokens = kSanitized ? 30 : shape.head_dim - 13;
      const AttentionSequence sequence(*under_test.backend, shape,
                                       {.tokens = tokens, .score_scale = 1.5f});
      // Its values are one-hot: exact attention gives probabilities.
      std::vector<std::vector<double>> p(shape.group);
      for (int g = 0; g < shape.group; ++g) {
        double sum = 0;
        for (int t = 0; t < tokens; ++t) {
          double score = 0;
          for (int c = 0; c < shape.head_dim; ++c) {
            score += double{RoundedQuery(sequence, tokens - 1, g, c)} * sequence.Key(0, 0, t, c);
          }
          p[g].push_back(std::exp(score / std::sqrt(double(shape.head_dim))));
          sum += p[g].back();
        }
        for (double& value : p[g]) value /= sum;
      }
      for (const ValueEstimator estimator : kOnDevices) {
        Coefficients coefficients(under_test, shape, sequence, 8, estimator);
        const std::vector<double> mean =
            MeanOverOffsets([&](int64_t offset) { return coefficients.At(offset); });
        for (int g = 0; g < shape.group; ++g) {
          for (int t = 0; t < tokens; ++t) {
            ASSERT_NEAR(mean[size_t(g) * shape.head_dim + t], p[g][t], 2e-6)
                << under_test.name << " " << Describe(shape) << " " << NameOf(estimator) << " " << g
                << " " << t;
          }
        }
      }
    }
  }
}

// NaN scores reach their kv head alone; what lies behind the last token and in rows that nobody
// draws never does.
TEST(TwinSampledTest, NanStaysInItsKvHead) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    const AttentionShape shape{4, 1, 128, DType::kBF16};
    const AttentionSequence good(*under_test.backend, shape, {.tokens = 200});
    const AttentionSequence bad(*under_test.backend, shape, {.tokens = 200, .bad_token = 70});
    const SampledResult found = Sample(under_test, shape, {{&good, 64}, {&bad, 64}, {&good, 64}});
    for (int i = 0; i < shape.out_floats(); ++i) {
      ASSERT_TRUE(std::isfinite(found.Out(i)));
      ASSERT_TRUE(std::isnan(found.Out(shape.out_floats() + i)));
      ASSERT_TRUE(std::isfinite(found.Out(2 * shape.out_floats() + i)));
    }
    ASSERT_EQ(found.counts[1].draws, 0);
  }
}

// A million tokens: the same few pages of keys and values over and over.
TEST(TwinSampledTest, AMillionTokens) {
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    const int blocks = under_test.on_device ? 16384 : 512;
    const AttentionShape shape{16, 1, 128, DType::kBF16};
    Backend& backend = *under_test.backend;
    const AttentionSequence sequence(backend, shape, {.tokens = 4096, .score_scale = 1.2f});
    SharedArray<float> q(backend, shape.out_floats()), out(backend, shape.out_floats());
    for (int i = 0; i < shape.out_floats(); ++i) {
      q[i] = RoundedQuery(sequence, 4095, i / shape.head_dim, i % shape.head_dim);
    }
    SharedArray<const std::byte*> keys(backend, blocks);
    for (int b = 0; b < blocks; ++b) keys[b] = sequence.Page(0, 0, b % 64);
    SharedArray<SampledCounts> totals(backend, std::vector<SampledCounts>(1));
    SharedArray<float> state(backend, StateOf(shape, 512, 10.0f));
    for (const ValueEstimator estimator : kOnDevices) {
      SharedArray<SampledSegment> segment(
          backend, std::vector<SampledSegment>{{.row = 0,
                                                .position = blocks * kBlockTokens - 1,
                                                .keys = keys.data(),
                                                .state = state.data(),
                                                .list_stride = blocks,
                                                .samples = 512,
                                                .seed = 9}});
      backend.SampledAttention({.q = q.data(),
                                .out = out.data(),
                                .segments = segment.data(),
                                .totals = totals.data(),
                                .num_segments = 1,
                                .rows = 1,
                                .q_stride = shape.out_floats(),
                                .num_q_heads = shape.group,
                                .num_kv_heads = 1,
                                .head_dim = shape.head_dim,
                                .dtype = shape.dtype,
                                .scale = 1.0f / std::sqrt(128.0f),
                                .estimator = estimator,
                                .max_entries = blocks});
      backend.Synchronize();
      for (int i = 0; i < shape.out_floats(); ++i) ASSERT_LT(std::fabs(out[i]), 4.0f) << i;
    }
    ASSERT_GE(totals[0].draws, 2 * 512 * 16);
  }
}

TEST(TwinSumValuesTest, SumsAreOneChainWhateverTheChunks) {
  const auto cpu = MakeCpuBackend({.num_threads = 1});
  for (const BackendUnderTest& under_test : BackendsUnderTest()) {
    Backend& backend = *under_test.backend;
    for (const AttentionShape& shape :
         {AttentionShape{1, 2, 128, DType::kBF16}, AttentionShape{1, 3, 24, DType::kF32}}) {
      const AttentionSequence sequence(backend, shape, {.tokens = 300});
      const int blocks = sequence.num_blocks(), heads = shape.num_kv_heads;
      std::vector<std::vector<float>> results;
      for (const int chunk : {300, 64, 7, 1}) {
        SharedArray<float> sums(backend, size_t(heads) * blocks * shape.head_dim);
        SharedArray<const std::byte*> pages(backend, heads * blocks);
        SharedArray<float*> targets(backend, heads * blocks + 1);
        for (int i = 0; i < heads * blocks; ++i) {
          pages[i] = sequence.Page(0, i / blocks, i % blocks);
          targets[i + 1] = sums.data() + size_t(i) * shape.head_dim;
        }
        for (int first = 0; first < 300; first += chunk) {
          const int block = first / kBlockTokens;
          SharedArray<SumValuesSegment> segments(
              backend,
              std::vector<SumValuesSegment>{{},
                                            {.rows = {0, std::min(chunk, 300 - first), first},
                                             .pages = pages.data() + block,
                                             .sums = targets.data() + block,
                                             .block_stride = 1,
                                             .head_stride = blocks}});
          backend.SumValues({.segments = segments.data(),
                             .num_segments = 2,
                             .num_kv_heads = heads,
                             .head_dim = shape.head_dim,
                             .dtype = shape.dtype,
                             .sums_offset = 1});
          backend.Synchronize();
        }
        results.push_back(sums.ToVector());
        ASSERT_TRUE(SameBits(results.back(), results.front())) << under_test.name << " " << chunk;
      }
      for (int h = 0; h < heads; ++h) {
        for (int c = 0; c < shape.head_dim; ++c) {
          for (int b = 0; b < blocks; ++b) {
            float sum = 0.0f;
            for (int t = b * 64; t < std::min(300, b * 64 + 64); ++t) {
              sum += sequence.Value(0, h, t, c);
            }
            ASSERT_EQ(results[0][(size_t(h) * blocks + b) * shape.head_dim + c], sum);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace augur::kernels
