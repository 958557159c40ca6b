#include "kernels/ops/linear.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/random_weight.h"

namespace augur::kernels {
namespace {

// Below this many multiply-adds (about 2 us on one core) a second thread does not pay for its
// hand-over.
constexpr int64_t kProductsPerItem = 64 << 10;
// One row takes up to four panels at once; more rows gain nothing from a larger item.
constexpr int kPanelsPerItem = 4;

}  // namespace

std::unique_ptr<PackedWeight> CpuBackend::PackWeight(const WeightSource& source) {
  if (source.data != nullptr) return std::make_unique<CpuPackedWeight>(source, isa_, pool_);
  const size_t row_bytes = source.in_features * BytesOf(source.dtype);
  AlignedBuffer random(source.out_features * row_bytes);
  AUGUR_CHECK(random.data() != nullptr);
  pool_.ParallelFor(source.out_features, [&](int row, int) {
    std::vector<float> values(source.in_features);
    for (int i = 0; i < source.in_features; ++i) {
      const uint64_t index = uint64_t(row) * source.in_features + i;
      values[i] = RandomWeight(source.random_seed, index) * source.random_scale;
    }
    isa_.narrow(source.dtype, values.data(), random.data() + row * row_bytes, source.in_features);
  });
  WeightSource filled = source;
  filled.data = random.data();
  return std::make_unique<CpuPackedWeight>(filled, isa_, pool_);
}

// Items are row blocks x runs of panels, rows outermost so that a block's x stays in cache. Never
// parts of in_features: an output is one chain of sums.
void CpuBackend::Linear(const LinearParams& params) {
  const auto& weight = static_cast<const CpuPackedWeight&>(*params.weight);
  AUGUR_CHECK(weight.panel_columns() == isa_.panel_columns);
  AUGUR_CHECK(params.columns >= 0 && params.columns <= weight.out_features());
  const int columns = params.columns == 0 ? weight.out_features() : params.columns;
  AUGUR_CHECK(params.rows >= 0 && params.x_stride >= weight.in_features() &&
              params.y_stride >= columns);
  AUGUR_CHECK(params.x_dtype == DType::kF32 && params.y_dtype == DType::kF32);
  if (params.rows == 0) return;
  const auto* x = static_cast<const float*>(params.x);
  auto* y = static_cast<float*>(params.y);
  const int row_blocks = (params.rows + kLinearMaxRows - 1) / kLinearMaxRows;
  const int num_panels = (columns + isa_.panel_columns - 1) / isa_.panel_columns;
  const int64_t products = int64_t{params.rows} * weight.in_features() * columns;
  const int threads =
      static_cast<int>(std::min<int64_t>(pool_.num_threads(), products / kProductsPerItem + 1));
  // Runs of equal length, a multiple of the threads in number.
  int runs = (num_panels + kPanelsPerItem - 1) / kPanelsPerItem;
  runs = std::min((runs + threads - 1) / threads * threads, num_panels);

  const auto run_item = [&](int item, int thread) {
    const int row_block = item / runs;
    const int run = item % runs;
    const int first_row = static_cast<int>(int64_t{row_block} * params.rows / row_blocks);
    const int end_row = static_cast<int>(int64_t{row_block + 1} * params.rows / row_blocks);
    const int first_panel = run * num_panels / runs;
    const int end_panel = (run + 1) * num_panels / runs;
    const int first_column = first_panel * isa_.panel_columns;
    LinearBlock block;
    block.x = x + size_t(first_row) * params.x_stride;
    block.panels = weight.panel(first_panel);
    block.bias = params.bias == nullptr ? nullptr : params.bias + first_column;
    block.y = y + size_t(first_row) * params.y_stride + first_column;
    block.scratch = thread_scratch_[thread].floats();
    block.x_stride = params.x_stride;
    block.y_stride = params.y_stride;
    block.rows = end_row - first_row;
    block.columns = std::min(end_panel * isa_.panel_columns, columns) - first_column;
    block.in_features = weight.in_features();
    block.is_bf16 = weight.is_bf16();
    block.accumulate = params.accumulate;
    isa_.linear(block);
  };
  if (threads == 1) {
    for (int item = 0; item < row_blocks * runs; ++item) run_item(item, 0);
  } else {
    pool_.ParallelFor(row_blocks * runs, run_item);
  }
}

}  // namespace augur::kernels
