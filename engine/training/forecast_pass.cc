#include "engine/training/forecast_pass.h"

#include <Eigen/Core>
#include <algorithm>

#include "engine/training/training_draw.h"
#include "kernels/check.h"
#include "kernels/cpu/forecast_loss.h"
#include "kernels/kv_page.h"
#include "kernels/ops/compress_keys.h"

namespace augur::engine {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixView = Eigen::Map<const Matrix>;
using Vector = Eigen::VectorXf;

using kernels::ChooseFreeBlocks, kernels::FreeBlocks, kernels::FreeBlocksAt, kernels::PartitionedKl,
    kernels::Softmax, kernels::WindowsOf;

// (a, b) of each pair by +angle, or back by `direction` -1: the transpose of the rotation.
void Rotate(float* head, int head_dim, const float* cos, const float* sin, float direction) {
  const int half = head_dim / 2;
  for (int i = 0; i < half; ++i) {
    const float a = head[i], b = head[i + half], s = direction * sin[i];
    head[i] = a * cos[i] - b * s;
    head[i + half] = b * cos[i] + a * s;
  }
}

// keys: [count, dim].
void MeanOf(const float* keys, int count, int dim, float* mean) {
  for (int c = 0; c < dim; ++c) {
    float sum = 0;
    for (int t = 0; t < count; ++t) sum += keys[size_t(t) * dim + c];
    mean[c] = sum / static_cast<float>(count);
  }
}

// How many of `chosen` are among `wanted`; both ascending.
double SharedPart(std::span<const int32_t> wanted, std::span<const int32_t> chosen) {
  int shared = 0;
  for (const int32_t block : wanted) {
    shared += std::binary_search(chosen.begin(), chosen.end(), block) ? 1 : 0;
  }
  return static_cast<double>(shared) / static_cast<double>(wanted.size());
}

bool IsInside(std::span<const TokenRange> ranges, int position) {
  return std::any_of(ranges.begin(), ranges.end(), [&](const TokenRange& range) {
    return position >= range.begin && position < range.end;
  });
}

}  // namespace

void LayerTally::Add(const LayerTally& other) {
  loss += other.loss;
  rows += other.rows;
  recall += other.recall;
  choices += other.choices;
}

void ListComparedRows(int num_tokens, uint64_t seed, std::span<const TokenRange> asked,
                      const ForecastPassOptions& options, std::vector<int32_t>* compared) {
  compared->clear();
  const auto draw = [&](int stride, bool of_asked) {
    for (int first = 0; first < num_tokens; first += stride) {
      const uint32_t word =
          TrainingDraw(TrainingPurpose::kComparedRow, seed, static_cast<uint32_t>(first), 0);
      const int position = first + static_cast<int>(word % static_cast<uint32_t>(stride));
      if (position >= num_tokens || IsInside(asked, position) != of_asked) continue;
      if (kernels::FreeBlocksAt(position, options.budget).candidates() > 0) {
        compared->push_back(position);
      }
    }
  };
  draw(options.row_stride, false);
  if (asked.empty()) return;
  draw(options.asked_row_stride > 0 ? options.asked_row_stride : options.row_stride, true);
  std::sort(compared->begin(), compared->end());
}

ForecastPass::ForecastPass(const ModelConfig& config, const ForecastPassOptions& options,
                           kernels::ThreadPool* pool)
    : config_(config),
      options_(options),
      pool_(pool),
      teacher_(pool),
      keys_(config.num_layers),
      scratch_(pool->num_threads()),
      tallies_(config.num_layers) {
  const int blocks = (options.max_tokens + kernels::kBlockTokens - 1) / kernels::kBlockTokens;
  capacity_ = int64_t{blocks} * kernels::kBlockTokens;
  window_stride_ = capacity_ / kernels::kWindowStride;
  for (LayerKeys& keys : keys_) {
    const size_t floats = size_t(config.num_kv_heads) * capacity_ * config.head_dim;
    keys.tokens.resize(floats);
    keys.fine.resize(floats);
    keys.coarse.resize(floats / kernels::kWindowStride);
  }
}

void ForecastPass::BeginSequence(int num_tokens, uint64_t seed, const ForecastMatrices* heads,
                                 ForecastMatrices* gradients, std::span<const TokenRange> asked) {
  AUGUR_CHECK(num_tokens <= options_.max_tokens);
  heads_ = heads;
  gradients_ = gradients;
  ListComparedRows(num_tokens, seed, asked, options_, &compared_);
  std::fill(tallies_.begin(), tallies_.end(), LayerTally());
}

void ForecastPass::BeginChunk(int first_position, int num_rows) {
  first_position_ = first_position;
  const auto begin = std::lower_bound(compared_.begin(), compared_.end(), first_position);
  const auto end = std::lower_bound(begin, compared_.end(), first_position + num_rows);
  positions_.assign(begin, end);
}

void ForecastPass::Observe(int layer, int rows, const float* qkv, int row_stride,
                           const float* input) {
  AppendKeys(layer, rows, qkv, row_stride);
  if (options_.routes_model) ChooseRoutes(layer, rows, qkv, row_stride);
  if (positions_.empty()) return;
  // Layer 0's own head and the one that looks ahead from it read the same rows.
  if (layer == 0) GatherInputs(input);
  Compare(layer, qkv, row_stride);
  if (layer > 0) GatherInputs(input);
}

void ForecastPass::AppendKeys(int layer, int rows, const float* qkv, int row_stride) {
  LayerKeys& keys = keys_[layer];
  const int dim = config_.head_dim;
  for (int head = 0; head < config_.num_kv_heads; ++head) {
    float* const tokens = keys.tokens.data() + head * capacity_ * dim;
    float* const fine = keys.fine.data() + head * capacity_ * dim;
    float* const coarse = keys.coarse.data() + head * window_stride_ * dim;
    for (int row = 0; row < rows; ++row) {
      const int position = first_position_ + row;
      const float* k = qkv + size_t(row) * row_stride + config_.q_width() + size_t(head) * dim;
      float* const token = tokens + size_t(position) * dim;
      std::copy(k, k + dim, token);
      if (position == 0) continue;
      MeanOf(token - dim, 2, dim, fine + size_t(position - 1) * dim);
      const int windows = kernels::CompleteWindows(position);
      if (windows == kernels::CompleteWindows(position - 1)) continue;
      MeanOf(token + dim - kernels::kWindowTokens * dim, kernels::kWindowTokens, dim,
             coarse + size_t(windows) * dim);  // window j at j + 1
    }
  }
}

// Rows of `input` that are compared.
void ForecastPass::GatherInputs(const float* input) {
  const size_t hidden = config_.hidden_size;
  inputs_.resize(positions_.size() * hidden);
  for (size_t i = 0; i < positions_.size(); ++i) {
    const float* row = input + size_t(positions_[i] - first_position_) * hidden;
    std::copy(row, row + hidden, inputs_.begin() + i * hidden);
  }
}

void ForecastPass::TeachRows(int layer, const float* qkv, int row_stride,
                             std::span<const int32_t> positions, std::vector<float>* windows) {
  const size_t width = config_.q_width();
  queries_.resize(positions.size() * width);
  for (size_t i = 0; i < positions.size(); ++i) {
    const float* row = qkv + size_t(positions[i] - first_position_) * row_stride;
    std::copy(row, row + width, queries_.begin() + i * width);
  }
  windows->resize(positions.size() * config_.num_kv_heads * window_stride_);
  const bool is_fine = options_.has_fine_teacher;
  teacher_.Run({.q = queries_.data(),
                .positions = positions.data(),
                .keys = (is_fine ? keys_[layer].fine : keys_[layer].coarse).data(),
                .windows = windows->data(),
                .key_stride = (is_fine ? capacity_ : window_stride_) * config_.head_dim,
                .window_stride = window_stride_,
                .rows = static_cast<int>(positions.size()),
                .q_stride = static_cast<int>(width),
                .num_kv_heads = config_.num_kv_heads,
                .heads_per_group = config_.num_q_heads / config_.num_kv_heads,
                .head_dim = config_.head_dim,
                .scale = config_.attention_scale(),
                .is_fine = is_fine,
                .alignment = options_.alignment});
}

// What the teacher would have each row of the chunk attend to: its free blocks and the forced ones.
void ForecastPass::ChooseRoutes(int layer, int rows, const float* qkv, int row_stride) {
  routed_positions_.clear();
  for (int position = first_position_; position < first_position_ + rows; ++position) {
    if (FreeBlocksAt(position, options_.budget).is_choice()) routed_positions_.push_back(position);
  }
  TeachRows(layer, qkv, row_stride, routed_positions_, &route_windows_);
  const int kv_heads = config_.num_kv_heads;
  routes_.assign(size_t(rows) * kv_heads, {});
  pool_->ParallelFor(static_cast<int>(routed_positions_.size()) * kv_heads, [&](int item, int) {
    const int position = routed_positions_[item / kv_heads];
    const FreeBlocks free = FreeBlocksAt(position, options_.budget);
    const std::span<const float> windows(route_windows_.data() + size_t(item) * window_stride_,
                                         kernels::CompleteWindows(position));
    std::vector<int32_t> chosen;
    ChooseFreeBlocks(windows, free, &chosen);
    std::vector<int32_t>& route =
        routes_[size_t(position - first_position_) * kv_heads + item % kv_heads];
    for (int block = 0; block < free.begin; ++block) route.push_back(block);
    route.insert(route.end(), chosen.begin(), chosen.end());
    for (int block = free.end; block <= position / kernels::kBlockTokens; ++block) {
      route.push_back(block);
    }
  });
}

std::span<const int32_t> ForecastPass::Route(int /*layer*/, int row, int kv_head) {
  if (!options_.routes_model) return {};
  return routes_[size_t(row) * config_.num_kv_heads + kv_head];
}

void ForecastPass::Compare(int layer, const float* qkv, int row_stride) {
  TeachRows(layer, qkv, row_stride, positions_, &windows_);
  const int rows = static_cast<int>(positions_.size());
  const int width = config_.kv_width(), half = config_.head_dim / 2;
  forecasts_.resize(size_t(rows) * width);
  derivatives_.resize(forecasts_.size());
  Eigen::Map<Matrix>(forecasts_.data(), rows, width).noalias() =
      MatrixView(inputs_.data(), rows, config_.hidden_size) *
      MatrixView(heads_->layers[layer].data(), width, config_.hidden_size).transpose();
  row_tallies_.assign(size_t(rows) * config_.num_kv_heads, LayerTally());
  pool_->ParallelFor(rows * config_.num_kv_heads, [&](int item, int thread) {
    const int row = item / config_.num_kv_heads, kv_head = item % config_.num_kv_heads;
    const size_t table = size_t(positions_[row]) * half;
    const size_t head = size_t(item) * config_.head_dim;
    Rotate(forecasts_.data() + head, config_.head_dim, options_.cos + table, options_.sin + table,
           1);
    CompareRow(layer, row, kv_head, &scratch_[thread]);
    Rotate(derivatives_.data() + head, config_.head_dim, options_.cos + table, options_.sin + table,
           -1);
  });
  for (const LayerTally& tally : row_tallies_) tallies_[layer].Add(tally);
  if (gradients_ != nullptr) AddGradient(layer);
}

void ForecastPass::CompareRow(int layer, int row, int kv_head, RowScratch* scratch) {
  const int dim = config_.head_dim, position = positions_[row];
  const int count = kernels::CompleteWindows(position);
  const size_t item = size_t(row) * config_.num_kv_heads + kv_head;
  const MatrixView keys(keys_[layer].coarse.data() + (kv_head * window_stride_ + 1) * dim, count,
                        dim);
  const float scale = config_.attention_scale();
  scratch->products.resize(count);
  scratch->shares.resize(count);
  scratch->gradient.resize(count);
  Eigen::Map<Vector>(scratch->products.data(), count).noalias() =
      keys * Eigen::Map<const Vector>(forecasts_.data() + item * dim, dim) * scale;
  Softmax<float>(scratch->products, scratch->shares);

  const std::span<const float> teacher(windows_.data() + item * window_stride_, count);
  const FreeBlocks free = FreeBlocksAt(position, options_.budget);
  ChooseFreeBlocks(teacher, free, &scratch->teacher_blocks);
  WindowsOf(scratch->teacher_blocks, count, &scratch->windows);
  LayerTally& tally = row_tallies_[item];
  Eigen::Map<Vector> derivative(derivatives_.data() + item * dim, dim);
  derivative.setZero();
  if (scratch->windows.empty()) return;
  tally.rows = 1;
  tally.loss = PartitionedKl<float>(teacher, scratch->shares, scratch->windows, scratch->gradient);
  derivative.noalias() =
      keys.transpose() * Eigen::Map<const Vector>(scratch->gradient.data(), count) * scale;
  if (!free.is_choice()) return;
  ChooseFreeBlocks(scratch->products, free, &scratch->student_blocks);
  tally.choices = 1;
  tally.recall = SharedPart(scratch->teacher_blocks, scratch->student_blocks);
}

void ForecastPass::AddGradient(int layer) {
  const int rows = static_cast<int>(positions_.size());
  const int width = config_.kv_width(), hidden = config_.hidden_size;
  Eigen::Map<Matrix>(gradients_->layers[layer].data(), width, hidden).noalias() +=
      MatrixView(derivatives_.data(), rows, width).transpose() *
      MatrixView(inputs_.data(), rows, hidden);
}

}  // namespace augur::engine
