#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/ops/rope_append.h"
#include "tests/kernels/backends_under_test.h"
#include "tests/kernels/paged_sequence.h"
#include "tests/kernels/twin_tolerances.h"

namespace augur::kernels {
namespace {

struct RopeCase {
  HeadShape heads;
  int num_forecast_heads = 0;
  int rest = 0;                // floats behind the heads of a row
  bool lists_by_head = false;  // [kv_heads][blocks] behind an offset, otherwise [blocks][kv_heads]
  int num_forecasts = 0;       // heads of them that go to a buffer of their own
  bool is_normed = false;      // q and k heads, before they are turned
  int first_angle = 0;         // of every second segment

  int stride() const { return heads.row_floats() + num_forecast_heads * heads.head_dim + rest; }
};

// Lists of a segment's pages lie in one array behind others, as those of a layer do.
constexpr int kOtherEntries = 3;

// A call's rows and a pool in which each segment has blocks of its own.
class RopeCall {
 public:
  // Segments follow one another, with a row that is in none between them.
  RopeCall(Backend& backend, const RopeCase& rope_case, const std::vector<Segment>& pieces)
      : backend_(&backend),
        case_(rope_case),
        table_(kMaxPosition, rope_case.heads.head_dim),
        q_norm_(RandomFloats(rope_case.heads.head_dim, 11)),
        k_norm_(RandomFloats(rope_case.heads.head_dim, 12)),
        cos_(backend, table_.cos),
        sin_(backend, table_.sin),
        device_q_norm_(backend, q_norm_),
        device_k_norm_(backend, k_norm_),
        segments_(backend, pieces.size()),
        forecasts_(backend, CountRows(pieces) * rope_case.num_forecasts * rope_case.heads.head_dim),
        pool_(backend, CountBlocks(pieces) * rope_case.heads.num_kv_heads * page_bytes()) {
    std::byte* next = pool_.data();
    for (size_t s = 0; s < pieces.size(); ++s) {
      const Segment rows{rows_, pieces[s].num_rows, pieces[s].first_position};
      const int blocks = BlocksOf(rows);
      const int kv_heads = case_.heads.num_kv_heads;
      std::vector<std::byte*> list(kOtherEntries + blocks * kv_heads, nullptr);
      for (size_t i = kOtherEntries; i < list.size(); ++i, next += page_bytes()) list[i] = next;
      lists_.emplace_back(backend, list);
      segments_[s] = {rows, lists_.back().data(), 0, 1};
      if (case_.lists_by_head) segments_[s] = {rows, lists_.back().data(), 1, blocks};
      if (s % 2 == 1) segments_[s].first_angle = case_.first_angle;
      rows_ += rows.num_rows + 1;
    }
  }

  std::vector<float> Run(const std::vector<float>& before) {
    SharedArray<float> qkv(*backend_, before);
    backend_->RopeAppend({.qkv = qkv.data(),
                          .segments = segments_.data(),
                          .num_segments = static_cast<int>(segments_.size()),
                          .rows = rows_,
                          .row_stride = case_.stride(),
                          .num_q_heads = case_.heads.num_q_heads,
                          .num_kv_heads = case_.heads.num_kv_heads,
                          .num_forecast_heads = case_.num_forecast_heads,
                          .head_dim = case_.heads.head_dim,
                          .dtype = case_.heads.dtype,
                          .cos = cos_.data(),
                          .sin = sin_.data(),
                          .pages_offset = kOtherEntries,
                          .forecasts = case_.num_forecasts > 0 ? forecasts_.data() : nullptr,
                          .num_forecasts = case_.num_forecasts,
                          .q_norm = case_.is_normed ? device_q_norm_.data() : nullptr,
                          .k_norm = case_.is_normed ? device_k_norm_.data() : nullptr,
                          .norm_epsilon = kNormEpsilon});
    backend_->Synchronize();
    return qkv.ToVector();
  }

  void Check(const std::vector<float>& before, const std::vector<float>& after) {
    std::vector<bool> is_turned(rows_, false), is_written(pool_.size(), false);
    for (size_t s = 0; s < segments_.size(); ++s) {
      for (int t = 0; t < segments_[s].rows.num_rows; ++t) {
        is_turned[segments_[s].rows.first_row + t] = true;
        CheckRow(segments_[s], t, before, after);
        if (::testing::Test::HasFatalFailure()) return;
        CheckPages(segments_[s], t, before, after, is_written);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
    for (int r = 0; r < rows_; ++r) {
      if (is_turned[r]) continue;
      const size_t offset = size_t(r) * case_.stride();
      ASSERT_TRUE(SameBits(after.data() + offset, before.data() + offset, case_.stride())) << r;
      const size_t width = size_t(case_.num_forecasts) * case_.heads.head_dim;
      for (size_t b = 0; b < width * sizeof(float); ++b) {
        ASSERT_EQ(reinterpret_cast<std::byte*>(forecasts_.data() + r * width)[b], std::byte{0xff});
      }
    }
    for (size_t i = 0; i < is_written.size(); ++i) {
      if (is_written[i]) continue;
      ASSERT_EQ(pool_[i], std::byte{0xff}) << "stray write at " << i;
    }
  }

  int rows() const { return rows_; }

 private:
  static constexpr int kMaxPosition = 4300;
  static constexpr float kNormEpsilon = 1e-3f;

  static int BlocksOf(const Segment& rows) {
    if (rows.num_rows == 0) return 0;
    return (rows.first_position + rows.num_rows - 1) / kBlockTokens -
           rows.first_position / kBlockTokens + 1;
  }
  static size_t CountRows(const std::vector<Segment>& pieces) {
    size_t rows = 0;
    for (const Segment& piece : pieces) rows += piece.num_rows + 1;
    return rows;
  }
  static size_t CountBlocks(const std::vector<Segment>& pieces) {
    size_t blocks = 0;
    for (const Segment& piece : pieces) blocks += BlocksOf(piece);
    return blocks;
  }
  size_t entry_bytes() const { return case_.heads.head_dim * BytesOf(case_.heads.dtype); }
  size_t page_bytes() const { return 2 * kBlockTokens * entry_bytes(); }

  // The row's heads as they are before they are turned.
  std::vector<double> Normed(const float* row) const {
    const int d = case_.heads.head_dim, q_heads = case_.heads.num_q_heads;
    std::vector<double> normed(row, row + case_.stride());
    if (!case_.is_normed) return normed;
    for (int h = 0; h < q_heads + case_.heads.num_kv_heads; ++h) {
      double squares = 0;
      for (int i = 0; i < d; ++i) squares += normed[h * d + i] * normed[h * d + i];
      const double factor = 1 / std::sqrt(squares / d + kNormEpsilon);
      const std::vector<float>& weight = h < q_heads ? q_norm_ : k_norm_;
      for (int i = 0; i < d; ++i) normed[h * d + i] *= factor * weight[i];
    }
    return normed;
  }

  void CheckRow(const AppendSegment& segment, int t, const std::vector<float>& before,
                const std::vector<float>& after) const {
    const int d = case_.heads.head_dim, half = d / 2;
    const int first_v = case_.heads.num_q_heads + case_.heads.num_kv_heads;
    const int first_forecast = first_v + case_.heads.num_kv_heads;
    const size_t offset = size_t(segment.rows.first_row + t) * case_.stride();
    const size_t angles = size_t(segment.first_angle + segment.rows.first_position + t) * half;
    const std::vector<double> row = Normed(before.data() + offset);
    for (int i = 0; i < case_.stride(); ++i) {
      const int h = i / d, c = i % d;
      double expected = before[offset + i];
      double tolerance = 0.0;
      double found = after[offset + i];
      if (h < first_v || (h >= first_forecast && h < first_forecast + case_.num_forecast_heads)) {
        const double* head = row.data() + h * d;
        const double own = head[c];
        const double other = c < half ? -head[c + half] : head[c - half];
        expected = own * table_.cos[angles + c % half] + other * table_.sin[angles + c % half];
        tolerance = (case_.is_normed ? kNormedRopeTolerance : kRopeTolerance).At(expected);
        if (h >= first_forecast && h < first_forecast + case_.num_forecasts) {
          ASSERT_EQ(found, before[offset + i]) << "left as it was, row " << t << " head " << h;
          found = forecasts_[size_t(segment.rows.first_row + t) * case_.num_forecasts * d + i -
                             first_forecast * d];
        }
      }
      ASSERT_NEAR(found, expected, tolerance) << "row " << t << " head " << h;
    }
  }

  // k as it was turned and v as it was, rounded, in the token's place of its page.
  void CheckPages(const AppendSegment& segment, int t, const std::vector<float>& before,
                  const std::vector<float>& after, std::vector<bool>& is_written) const {
    const HeadShape& heads = case_.heads;
    const int position = segment.rows.first_position + t;
    const int touched = position / kBlockTokens - segment.rows.first_position / kBlockTokens;
    const size_t offset = size_t(segment.rows.first_row + t) * case_.stride();
    for (int h = 0; h < heads.num_kv_heads; ++h) {
      const int entry = case_.lists_by_head ? h * segment.head_stride + touched
                                            : touched * heads.num_kv_heads + h;
      const std::byte* k =
          segment.pages[kOtherEntries + entry] + position % kBlockTokens * entry_bytes();
      const std::byte* v = k + kBlockTokens * entry_bytes();
      const size_t k_head = offset + (heads.num_q_heads + h) * heads.head_dim;
      for (int c = 0; c < heads.head_dim; ++c) {
        const size_t place = c * BytesOf(heads.dtype);
        std::byte rounded[2][4];
        WriteAs(heads.dtype, after[k_head + c], rounded[0], 0);
        WriteAs(heads.dtype, before[k_head + heads.num_kv_heads * heads.head_dim + c], rounded[1],
                0);
        ASSERT_EQ(std::memcmp(k + place, rounded[0], BytesOf(heads.dtype)), 0);
        ASSERT_EQ(std::memcmp(v + place, rounded[1], BytesOf(heads.dtype)), 0);
      }
      for (size_t b = 0; b < entry_bytes(); ++b) {
        is_written[k - pool_.data() + b] = is_written[v - pool_.data() + b] = true;
      }
    }
  }

  Backend* backend_;
  RopeCase case_;
  RopeTable table_;
  std::vector<float> q_norm_, k_norm_;
  SharedArray<float> cos_, sin_, device_q_norm_, device_k_norm_;
  SharedArray<AppendSegment> segments_;
  SharedArray<float> forecasts_;  // [rows, num_forecasts, head_dim]
  SharedArray<std::byte> pool_;
  std::vector<SharedArray<std::byte*>> lists_;
  int rows_ = 0;
};

void CheckCall(Backend& backend, const RopeCase& rope_case, const std::vector<Segment>& pieces) {
  RopeCall call(backend, rope_case, pieces);
  const std::vector<float> before = RandomFloats(size_t(call.rows()) * rope_case.stride(), 5);
  call.Check(before, call.Run(before));
}

// Ragged, with segments of no rows; first_row is the call's to say.
std::vector<Segment> RaggedPieces() {
  return {{0, 70, 0}, {0, 0, 5}, {0, 1, 63}, {0, 1, 64}, {0, 0, 0}, {0, 9, 130}, {0, 65, 250}};
}

TEST(TwinRopeAppendTest, RotatesAndWritesEachTokensPlaceOnly) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const int group : {1, 2, 4, 8, 16}) {
        for (const int head_dim : {2, 6, 40, 64, 128}) {
          SCOPED_TRACE(name + " " + NameOf(dtype) + " group " + std::to_string(group) + " d " +
                       std::to_string(head_dim));
          const HeadShape heads{2 * group, 2, head_dim, dtype};
          CheckCall(*backend, {heads}, RaggedPieces());
          CheckCall(*backend, {heads, 2, 5, true}, RaggedPieces());
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(TwinRopeAppendTest, ForecastsGoToABufferOfTheirOwn) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int head_dim : {6, 40, 128}) {
      SCOPED_TRACE(name + " d " + std::to_string(head_dim));
      const HeadShape heads{4, 2, head_dim, DType::kBF16};
      CheckCall(*backend, {heads, 4, 4, true, 2}, RaggedPieces());
      CheckCall(*backend, {heads, 1, 0, false, 1}, RaggedPieces());
      CheckCall(*backend, {heads, 3, 5, false, 2}, RaggedPieces());
      if (HasFatalFailure()) return;
    }
  }
}

// Heads of families that norm them, and sequences that turn by another table than their neighbours.
TEST(TwinRopeAppendTest, HeadsAreNormedAndSegmentsTurnByTheirOwnAngles) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int head_dim : {2, 6, 40, 64, 128, 256}) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(name + " d " + std::to_string(head_dim));
        const HeadShape heads{12, 2, head_dim, dtype};
        CheckCall(*backend, {heads, 3, 5, true, 2, true, 701}, RaggedPieces());
        CheckCall(*backend, {heads, 0, 0, false, 0, true}, RaggedPieces());
        CheckCall(*backend, {heads, 0, 0, false, 0, false, 701}, RaggedPieces());
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(TwinRopeAppendTest, SegmentsOfEverySize) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    for (const int rows : {1, 63, 64, 65, 1000, 4097}) {
      for (const int first : {0, 1, 63, 100}) {
        SCOPED_TRACE(name + " rows " + std::to_string(rows) + " from " + std::to_string(first));
        const HeadShape heads{2, 1, 16, DType::kBF16};
        CheckCall(*backend, {heads, 0, 4, true}, {{0, rows, first}});
        if (HasFatalFailure()) return;
      }
    }
  }
}

// More segments than a CTA has threads.
TEST(TwinRopeAppendTest, ManySegmentsOfOneRow) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    std::vector<Segment> pieces;
    for (int i = 0; i < 600; ++i) pieces.push_back({0, i % 3 == 2 ? 0 : 1, i * 7});
    SCOPED_TRACE(name);
    CheckCall(*backend, {HeadShape{4, 1, 16, DType::kF16}}, pieces);
  }
}

TEST(TwinRopeAppendTest, ARowAloneHasTheSameBits) {
  for (const auto& [name, backend, on_device] : BackendsUnderTest()) {
    const RopeCase rope_case{.heads = HeadShape{8, 2, 64, DType::kBF16}, .is_normed = true};
    RopeCall all(*backend, rope_case, {{0, 130, 37}});
    const std::vector<float> before = RandomFloats(size_t(all.rows()) * rope_case.stride(), 8);
    const std::vector<float> after = all.Run(before);
    const size_t stride = rope_case.stride();
    for (const int r : {0, 26, 27, 64, 129}) {
      RopeCall one(*backend, rope_case, {{0, 1, 37 + r}});
      std::vector<float> row(before.begin() + r * stride, before.begin() + (r + 1) * stride);
      row.resize(one.rows() * stride);
      ASSERT_TRUE(SameBits(one.Run(row).data(), after.data() + r * stride, stride)) << name << r;
    }
  }
}

}  // namespace
}  // namespace augur::kernels
