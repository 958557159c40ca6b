#include "kernels/cpu/cpu_training_ops.h"

#include <algorithm>

#include "kernels/check.h"
#include "kernels/cpu/elements.h"
#include "kernels/cpu/forecast_loss.h"
#include "kernels/ops/compress_keys.h"

namespace augur::kernels {
namespace {

const std::byte* ElementAt(const void* data, int64_t index, DType dtype) {
  return static_cast<const std::byte*>(data) + index * static_cast<int64_t>(BytesOf(dtype));
}
std::byte* ElementAt(void* data, int64_t index, DType dtype) {
  return static_cast<std::byte*>(data) + index * static_cast<int64_t>(BytesOf(dtype));
}

// The operand as floats: itself, or widened into `wide`.
const float* Floats(DType dtype, const void* data, size_t count, std::vector<float>* wide) {
  if (dtype == DType::kF32) return static_cast<const float*>(data);
  wide->resize(count);
  WidenElements(dtype, data, count, wide->data());
  return wide->data();
}

// (a, b) of each pair by +angle, or back by `direction` -1: the transpose of the rotation.
void Rotate(const float* from, int head_dim, const float* cos, const float* sin, float direction,
            float* to) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = from[i], b = from[i + half], s = direction * sin[i];
    to[i] = a * cos[i] - b * s;
    to[i + half] = b * cos[i] + a * s;
  }
}

float Dot(const float* a, const float* b, int count) {
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// The mean of `count` keys, rounded.
void MeanOf(const void* keys, int64_t first, int count, int head_dim, DType dtype, void* to,
            int64_t place) {
  std::vector<float> sum(head_dim), key(head_dim);
  for (int t = 0; t < count; ++t) {
    WidenElements(dtype, ElementAt(keys, (first + t) * head_dim, dtype), head_dim, key.data());
    for (int c = 0; c < head_dim; ++c) sum[c] += key[c];
  }
  for (float& value : sum) value /= static_cast<float>(count);
  RoundElements(dtype, sum.data(), head_dim, ElementAt(to, place * head_dim, dtype));
}

// How many of `chosen` are among `wanted`; both ascending.
float SharedPart(std::span<const int32_t> wanted, std::span<const int32_t> chosen) {
  int shared = 0;
  for (const int32_t block : wanted) {
    shared += std::binary_search(chosen.begin(), chosen.end(), block) ? 1 : 0;
  }
  return static_cast<float>(shared) / static_cast<float>(wanted.size());
}

}  // namespace

void CpuTrainingOps::GatherRows(const GatherRowsParams& params) {
  pool_->ParallelFor(params.rows, [&](int row, int) {
    std::vector<float> wide;
    const void* from =
        ElementAt(params.from, params.row_ids[row] * params.from_stride, params.from_dtype);
    RoundElements(params.to_dtype, Floats(params.from_dtype, from, params.width, &wide),
                  params.width, ElementAt(params.to, int64_t{row} * params.width, params.to_dtype));
  });
}

void CpuTrainingOps::WindowKeys(const WindowKeysParams& params) {
  const int dim = params.head_dim;
  AUGUR_CHECK(params.key_stride % kWindowStride == 0 &&
              params.first_position + params.rows <= params.key_stride);
  pool_->ParallelFor(params.num_kv_heads, [&](int head, int) {
    const int64_t first_key = head * params.key_stride;
    const int64_t first_window = first_key / kWindowStride;
    for (int row = 0; row < params.rows; ++row) {
      const int position = params.first_position + row;
      RoundElements(params.dtype, params.k + size_t(row) * params.row_stride + head * dim, dim,
                    ElementAt(params.tokens, (first_key + position) * dim, params.dtype));
      if (position == 0) continue;
      MeanOf(params.tokens, first_key + position - 1, 2, dim, params.dtype, params.fine,
             first_key + position - 1);
      const int windows = CompleteWindows(position);
      if (windows == CompleteWindows(position - 1)) continue;
      MeanOf(params.tokens, first_key + position + 1 - kWindowTokens, kWindowTokens, dim,
             params.dtype, params.coarse, first_window + windows);  // window j at j + 1
    }
  });
}

void CpuTrainingOps::ProjectForecast(const ProjectForecastParams& params) {
  const int width = params.num_kv_heads * params.head_dim, half = params.head_dim / 2;
  const float* const head =
      Floats(params.dtype, params.head, size_t(width) * params.hidden, &wide_);
  const float* const x =
      Floats(params.dtype, params.x, size_t(params.rows) * params.hidden, &wide_rows_);
  pool_->ParallelFor(params.rows, [&](int row, int) {
    float* const products = params.products + size_t(row) * width;
    for (int o = 0; o < width; ++o) {
      products[o] =
          Dot(x + size_t(row) * params.hidden, head + size_t(o) * params.hidden, params.hidden);
    }
    const size_t table = size_t(params.positions[row]) * half;
    for (int h = 0; h < params.num_kv_heads; ++h) {
      std::vector<float> turned(params.head_dim);
      Rotate(products + h * params.head_dim, params.head_dim, params.cos + table,
             params.sin + table, 1, turned.data());
      RoundElements(
          params.dtype, turned.data(), params.head_dim,
          ElementAt(params.forecasts, int64_t{row} * width + h * params.head_dim, params.dtype));
    }
  });
}

void CpuTrainingOps::AddForecastGradient(const AddForecastGradientParams& params) {
  const int width = params.num_kv_heads * params.head_dim, half = params.head_dim / 2;
  const float* const x =
      Floats(params.dtype, params.x, size_t(params.rows) * params.hidden, &wide_rows_);
  wide_.resize(size_t(params.rows) * width);
  pool_->ParallelFor(params.rows, [&](int row, int) {
    const size_t table = size_t(params.positions[row]) * half;
    for (int h = 0; h < params.num_kv_heads; ++h) {
      const size_t at = size_t(row) * width + size_t(h) * params.head_dim;
      Rotate(params.derivatives + at, params.head_dim, params.cos + table, params.sin + table, -1,
             wide_.data() + at);
    }
  });
  pool_->ParallelFor(width, [&](int o, int) {
    float* const gradient = params.gradient + size_t(o) * params.hidden;
    for (int row = 0; row < params.rows; ++row) {
      const float derivative = wide_[size_t(row) * width + o];
      const float* const input = x + size_t(row) * params.hidden;
      for (int i = 0; i < params.hidden; ++i) gradient[i] += derivative * input[i];
    }
  });
}

void CpuTrainingOps::ForecastLoss(const ForecastLossParams& params) {
  const int items = params.rows * params.num_kv_heads;
  pool_->ParallelFor(items, [&](int item, int thread) {
    params.row_tallies[item] = CompareRow(params, item / params.num_kv_heads,
                                          item % params.num_kv_heads, &scratch_[thread]);
  });
  for (int item = 0; item < items; ++item) {
    const ForecastRowTally& row = params.row_tallies[item];
    params.tally->loss += row.loss;
    params.tally->recall += row.recall;
    params.tally->rows += row.rows;
    params.tally->choices += row.choices;
  }
}

ForecastRowTally CpuTrainingOps::CompareRow(const ForecastLossParams& params, int row, int kv_head,
                                            RowScratch* scratch) const {
  const int dim = params.head_dim, position = params.positions[row];
  const int count = CompleteWindows(position);
  const int64_t item = int64_t{row} * params.num_kv_heads + kv_head;
  std::vector<float> key(dim);
  const auto read_key = [&](int window) {
    WidenElements(params.dtype,
                  ElementAt(params.keys, kv_head * params.key_stride + int64_t{window + 1} * dim,
                            params.dtype),
                  dim, key.data());
  };
  float* const derivative =
      params.derivatives == nullptr ? nullptr : params.derivatives + item * dim;
  if (derivative != nullptr) std::fill(derivative, derivative + dim, 0.0f);
  const FreeBlocks free = FreeBlocksAt(position, params.budget);
  if (free.candidates() == 0 || free.wanted <= 0 || count == 0) return {};

  scratch->forecast.resize(dim);
  WidenElements(params.dtype, ElementAt(params.forecasts, item * dim, params.dtype), dim,
                scratch->forecast.data());
  const std::span<float> products(params.products + item * params.window_stride, count);
  for (int j = 0; j < count; ++j) {
    read_key(j);
    products[j] = Dot(scratch->forecast.data(), key.data(), dim) * params.scale;
  }
  scratch->shares.resize(count);
  scratch->gradient.resize(count);
  Softmax<float>(products, scratch->shares);
  const std::span<const float> teacher(params.teacher + item * params.window_stride, count);
  ChooseFreeBlocks(teacher, free, &scratch->teacher_blocks);
  WindowsOf(scratch->teacher_blocks, count, &scratch->windows);
  ForecastRowTally tally{.rows = 1};
  tally.loss = PartitionedKl<float>(teacher, scratch->shares, scratch->windows, scratch->gradient);
  for (int j = 0; j < count && derivative != nullptr; ++j) {
    read_key(j);
    for (int c = 0; c < dim; ++c) derivative[c] += scratch->gradient[j] * key[c] * params.scale;
  }
  if (!free.is_choice()) return tally;
  ChooseFreeBlocks(products, free, &scratch->student_blocks);
  tally.choices = 1;
  tally.recall = SharedPart(scratch->teacher_blocks, scratch->student_blocks);
  return tally;
}

}  // namespace augur::kernels
