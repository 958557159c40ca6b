// What twin tests of attention ask of an output: near the double reference, and the same bits in
// any company.
#pragma once

#include <gtest/gtest.h>

#include <deque>

#include "tests/kernels/twin_attention.h"

namespace augur::kernels {

// Largest error, in ExpectedAttention::spread. On a device 16-bit pages make q, p and the output
// 16-bit as well: with u the most that one is rounded by (2^-8 of itself for bf16, 2^-11 for fp16),
// q moves a score and p a weight by 0.4 u in the mean, which adds up to 2.5 u in the worst of 10^5
// outputs, and an output of up to 4.5 spreads is rounded by up to 4.5 u. The two seldom meet: such
// arithmetic, tried in double, stays below 3.7 u; the limit is 5.6 u. In float32 the CPU reaches
// half the limit: scores of up to 10 have a last place of 2^-20, chains have up to 256 products.
struct AttentionTolerance {
  double f32;
  double bf16;
  double f16;
};
inline constexpr AttentionTolerance kTolerance{1e-5, 2.2e-2, 2.8e-3};

inline bool IsFastShape(const AttentionShape& shape) {
  return shape.head_dim == 64 || shape.head_dim == 96 || shape.head_dim == 128;
}

inline double ToleranceOf(const BackendUnderTest& under_test, const AttentionShape& shape,
                          DType out) {
  const bool is_exact = !under_test.on_device || !IsFastShape(shape);
  const DType rounding = is_exact ? out : shape.dtype;
  if (rounding == DType::kF32) return kTolerance.f32;
  return rounding == DType::kBF16 ? kTolerance.bf16 : kTolerance.f16;
}

// float32 always; on a device the page type, too.
inline std::vector<DType> OutTypes(const BackendUnderTest& under_test,
                                   const AttentionShape& shape) {
  if (!under_test.on_device || shape.dtype == DType::kF32) return {DType::kF32};
  return {DType::kF32, shape.dtype};
}

inline std::vector<std::byte> Attend(const BackendUnderTest& under_test,
                                     const std::vector<SegmentRows>& rows,
                                     const AttentionCall& call) {
  const AttentionShape& shape = rows[0].sequence->shape();
  return AttentionBatch(*under_test.backend, shape, rows, call).Run();
}

// The first and last rows, those around a block's edge, and one between.
inline std::set<int> SampledRows(const SegmentRows& rows) {
  std::set<int> sampled;
  const int edge = kBlockTokens - rows.first_position % kBlockTokens;
  const int last_edge = rows.last_block() * kBlockTokens - rows.first_position;
  for (const int row : {0, 1, edge - 1, edge, rows.count / 2 + 1, last_edge, rows.count - 1}) {
    if (row >= 0 && row < rows.count) sampled.insert(row);
  }
  return sampled;
}

// Of some rows and heads, in spreads; infinite for a NaN, and for padded rows that were written.
inline double WorstError(const std::vector<SegmentRows>& segments, const AttentionCall& call,
                         const std::vector<std::byte>& out) {
  const AttentionShape& shape = segments[0].sequence->shape();
  const std::set<int> heads{0, shape.group - 1, shape.num_q_heads() - 1};
  double worst = 0.0;
  size_t first_row = 0;
  for (const SegmentRows& rows : segments) {
    for (const int row : SampledRows(rows)) {
      for (const int head : heads) {
        const ExpectedAttention expected = ExpectAttention(rows, call.layer, row, head);
        const size_t place = (first_row + row) * shape.out_floats() + size_t(head) * shape.head_dim;
        for (int c = 0; c < shape.head_dim; ++c) {
          const double value = ReadAs(call.out_dtype, out.data(), place + c);
          const double error = std::abs(value - expected.out[c]) / expected.spread;
          if (!(error <= worst)) worst = std::isnan(error) ? INFINITY : error;
        }
      }
    }
    if (rows.count == 0) {
      const size_t row_bytes = shape.out_floats() * BytesOf(call.out_dtype);
      for (size_t i = 0; i < row_bytes; ++i) {
        if (out[first_row * row_bytes + i] != std::byte{0xff}) worst = INFINITY;
      }
    }
    first_row += rows.q_rows();
  }
  return worst;
}

inline void ExpectCloseToDouble(const BackendUnderTest& under_test,
                                const std::vector<SegmentRows>& segments, AttentionCall call) {
  const AttentionShape& shape = segments[0].sequence->shape();
  for (const DType out : OutTypes(under_test, shape)) {
    call.out_dtype = out;
    ASSERT_LT(WorstError(segments, call, Attend(under_test, segments, call)),
              ToleranceOf(under_test, shape, out))
        << under_test.name << " " << Describe(shape) << " out " << NameOf(out) << " from "
        << segments[0].first_position << " rows " << segments[0].count;
  }
}

// Rows [row, row + count) of a batch's output.
inline std::vector<std::byte> RowsOf(const std::vector<std::byte>& out, const AttentionShape& shape,
                                     DType dtype, size_t row, size_t count) {
  const size_t row_bytes = shape.out_floats() * BytesOf(dtype);
  const auto begin = out.begin() + static_cast<ptrdiff_t>(row * row_bytes);
  return {begin, begin + static_cast<ptrdiff_t>(count * row_bytes)};
}

// Every segment alone (with the call's other parameters) has the bits that it has in the batch.
inline void ExpectSegmentsStandAlone(const BackendUnderTest& under_test,
                                     const std::vector<SegmentRows>& segments, AttentionCall call) {
  const AttentionShape& shape = segments[0].sequence->shape();
  for (const DType out : OutTypes(under_test, shape)) {
    call.out_dtype = out;
    const std::vector<std::byte> together = Attend(under_test, segments, call);
    size_t row = 0;
    for (const SegmentRows& rows : segments) {
      if (rows.count > 0) {
        ASSERT_EQ(Attend(under_test, {rows}, call), RowsOf(together, shape, out, row, rows.count))
            << under_test.name << " " << Describe(shape) << " out " << NameOf(out) << " from "
            << rows.first_position << " rows " << rows.count;
      }
      row += rows.q_rows();
    }
  }
}

// A sequence for each of some lengths.
inline std::deque<AttentionSequence> Sequences(const BackendUnderTest& under_test,
                                               const AttentionShape& shape,
                                               const std::vector<int>& lengths) {
  std::deque<AttentionSequence> sequences;
  for (const int tokens : lengths) {
    const auto seed = static_cast<uint32_t>(sequences.size() + 1);
    sequences.emplace_back(*under_test.backend, shape,
                           SequenceContent{.seed = seed, .tokens = tokens});
  }
  return sequences;
}

}  // namespace augur::kernels
