#include "engine/training/device_forecast_pass.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/cpu/elements.h"
#include "kernels/kv_page.h"
#include "memory/base/clock.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

using kernels::BackendArray;
using kernels::DType;

// The teacher's sums over the group, of all rows of a piece.
constexpr int64_t kPieceBytes = int64_t{1} << 30;
constexpr int kMostPieceRows = 4096;

int64_t CapacityFor(int tokens) {
  // So that rows of windows begin at 16 bytes in any type.
  constexpr int64_t kMultiple = 8 * kernels::kWindowStride;
  return (tokens + kMultiple - 1) / kMultiple * kMultiple;
}

// Of each kind of rows one a stratum, of which two reach over the chunk's ends.
int MostCompared(int chunk_tokens, const ForecastPassOptions& options) {
  const auto strata = [&](int stride) { return (chunk_tokens + stride - 1) / stride + 1; };
  int most = strata(options.row_stride);
  if (options.asked_row_stride > 0) most += strata(options.asked_row_stride);
  return std::min(chunk_tokens, most);
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceForecastPass>> DeviceForecastPass::Create(
    kernels::Backend* backend, const ModelConfig& config, const ForecastPassOptions& options,
    int chunk_tokens, bool timed) {
  const int group = config.num_q_heads / config.num_kv_heads;
  const bool is_served = group <= 16 && config.head_dim % 8 == 0 && config.head_dim <= 128;
  if (backend->IsDevice() && (!is_served || config.hidden_size % 8 != 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--device: cuda trains heads of at most 128 elements, a multiple of 8 like "
                     "the hidden size, at "
                     "most 16 of a group; found head_dim ",
                     config.head_dim, ", hidden size ", config.hidden_size, ", groups of ", group,
                     "; --device cpu serves it"));
  }
  std::unique_ptr<DeviceForecastPass> pass(
      new DeviceForecastPass(backend, config, options, chunk_tokens, timed));
  AUGUR_RETURN_IF_ERROR(pass->Allocate());
  return pass;
}

DeviceForecastPass::DeviceForecastPass(kernels::Backend* backend, const ModelConfig& config,
                                       const ForecastPassOptions& options, int chunk_tokens,
                                       bool timed)
    : backend_(backend),
      ops_(backend->training_ops()),
      config_(config),
      options_(options),
      chunk_tokens_(chunk_tokens),
      timed_(timed),
      dtype_(backend->IsDevice() ? DType::kBF16 : DType::kF32),
      capacity_(CapacityFor(options.max_tokens)),
      window_stride_(capacity_ / kernels::kWindowStride),
      most_rows_(MostCompared(chunk_tokens, options)),
      piece_rows_(static_cast<int>(std::clamp<int64_t>(
          kPieceBytes / (config.num_kv_heads * capacity_ * int64_t{sizeof(float)}), 1,
          std::min(most_rows_, kMostPieceRows)))),
      tallies_(config.num_layers),
      keys_(config.num_layers),
      heads_(config.num_layers),
      gradients_(config.num_layers) {}

absl::Status DeviceForecastPass::Allocate() {
  bool fits = true;
  const auto reserve = [&]<class T>(size_t count, BackendArray<T>* array) {
    *array = BackendArray<T>(backend_, count);
    bytes_ += static_cast<int64_t>(count * sizeof(T));
    fits = fits && array->allocated();
  };
  const size_t kv_heads = config_.num_kv_heads, width = config_.kv_width();
  const size_t head = width * config_.hidden_size, keys = Elements(width * capacity_);
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    reserve(keys, &keys_[layer].tokens);
    reserve(keys, &keys_[layer].fine);
    reserve(keys / kernels::kWindowStride, &keys_[layer].coarse);
    reserve(Elements(head), &heads_[layer]);
    reserve(head, &gradients_[layer]);
  }
  const size_t rows = piece_rows_, windows = rows * kv_heads * window_stride_;
  reserve(most_rows_, &device_positions_);
  reserve(most_rows_, &device_row_ids_);
  reserve(Elements(size_t(most_rows_) * config_.hidden_size), &inputs_);
  reserve(Elements(rows * config_.q_width()), &queries_);
  reserve(kernels::TeacherScratchFloats(piece_rows_, config_.num_kv_heads, capacity_),
          &teacher_scratch_);
  reserve(windows, &windows_);
  reserve(windows, &products_);
  reserve(Elements(windows), &product_gradients_);
  reserve(rows * width, &forecast_products_);
  reserve(Elements(rows * width), &forecasts_);
  reserve(rows * width, &derivatives_);
  reserve(Elements(rows * width), &turned_);
  reserve(rows * kv_heads, &row_tallies_);
  reserve(config_.num_layers, &device_tallies_);
  const size_t chunks = (options_.max_tokens + chunk_tokens_ - 1) / chunk_tokens_;
  const size_t pieces = (most_rows_ + piece_rows_ - 1) / piece_rows_;
  reserve(timed_ ? 2 + chunks * config_.num_layers * (2 + 2 * pieces) : 1, &stamps_);
  if (!fits) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for keys, heads and scratch of training: ", bytes_,
                     " bytes (--length ", options_.max_tokens, ")"));
  }
  // What no window has been written to is finite.
  host_.assign(keys / kernels::kWindowStride, std::byte{0});
  for (LayerKeys& layer : keys_) backend_->Copy(layer.coarse.data(), host_.data(), host_.size());
  backend_->Synchronize();
  ClearGradients();
  return absl::OkStatus();
}

void DeviceForecastPass::ClearGradients() {
  host_.assign(gradients_[0].size() * sizeof(float), std::byte{0});
  for (BackendArray<float>& layer : gradients_) {
    backend_->Copy(layer.data(), host_.data(), host_.size());
  }
  backend_->Synchronize();
}

void DeviceForecastPass::SetHeads(const ForecastMatrices& heads) {
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const std::vector<float>& values = heads.layers[layer];
    host_.resize(Elements(values.size()));
    kernels::RoundElements(dtype_, values.data(), values.size(), host_.data());
    backend_->Copy(heads_[layer].data(), host_.data(), host_.size());
    backend_->Synchronize();
  }
}

void DeviceForecastPass::TakeGradients(ForecastMatrices* gradients) {
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    std::vector<float>& values = gradients->layers[layer];
    AUGUR_CHECK(values.size() == gradients_[layer].size());
    backend_->Copy(values.data(), gradients_[layer].data(), values.size() * sizeof(float));
  }
  backend_->Synchronize();
  ClearGradients();
}

void DeviceForecastPass::BeginSequence(int num_tokens, uint64_t seed, bool with_gradients,
                                       std::span<const TokenRange> asked) {
  AUGUR_CHECK(num_tokens <= options_.max_tokens);
  with_gradients_ = with_gradients;
  ListComparedRows(num_tokens, seed, asked, options_, &compared_);
  const std::vector<kernels::ForecastTally> none(config_.num_layers);
  backend_->Copy(device_tallies_.data(), none.data(), none.size() * sizeof(none[0]));
  backend_->Synchronize();
  stamped_.clear();
  Stamp(TrainingPart::kBackbone);
}

void DeviceForecastPass::BeginChunk(int first_position, int num_rows) {
  AUGUR_CHECK(num_rows <= chunk_tokens_);
  first_position_ = first_position;
  const auto begin = std::lower_bound(compared_.begin(), compared_.end(), first_position);
  const auto end = std::lower_bound(begin, compared_.end(), first_position + num_rows);
  positions_.assign(begin, end);
  row_ids_.resize(positions_.size());
  pieces_.clear();
  const int rows = static_cast<int>(positions_.size());
  AUGUR_CHECK(rows <= most_rows_);
  for (int i = 0; i < rows; ++i) row_ids_[i] = positions_[i] - first_position;
  for (int first = 0; first < rows; first += piece_rows_) {
    const int count = std::min(piece_rows_, rows - first);
    pieces_.push_back({first, count, positions_[first + count - 1]});
  }
  if (rows == 0) return;
  backend_->Copy(device_positions_.data(), positions_.data(), rows * sizeof(int32_t));
  backend_->Copy(device_row_ids_.data(), row_ids_.data(), rows * sizeof(int32_t));
}

void DeviceForecastPass::Observe(int layer, int rows, const float* qkv, int row_stride,
                                 const float* input) {
  ObserveOnDevice(layer, rows, qkv, row_stride, input, DType::kF32);
}

void DeviceForecastPass::ObserveOnDevice(int layer, int rows, const float* qkv, int row_stride,
                                         const void* input, DType input_dtype) {
  Stamp(TrainingPart::kBackbone);
  LayerKeys& keys = keys_[layer];
  ops_->WindowKeys({.k = qkv + config_.q_width(),
                    .tokens = keys.tokens.data(),
                    .fine = keys.fine.data(),
                    .coarse = keys.coarse.data(),
                    .key_stride = capacity_,
                    .row_stride = row_stride,
                    .first_position = first_position_,
                    .rows = rows,
                    .num_kv_heads = config_.num_kv_heads,
                    .head_dim = config_.head_dim,
                    .dtype = dtype_});
  if (pieces_.empty()) return;
  // Layer 0's own head and the one that looks ahead from it read the same rows.
  if (layer == 0) GatherInputs(input, input_dtype);
  for (const Piece& piece : pieces_) {
    Teach(layer, piece, qkv, row_stride);
    Stamp(TrainingPart::kTeacher);
    Compare(layer, piece);
    Stamp(TrainingPart::kStudent);
  }
  if (layer > 0) GatherInputs(input, input_dtype);
}

void DeviceForecastPass::GatherInputs(const void* input, DType input_dtype) {
  ops_->GatherRows({.from = input,
                    .row_ids = device_row_ids_.data(),
                    .to = inputs_.data(),
                    .from_stride = config_.hidden_size,
                    .rows = static_cast<int>(positions_.size()),
                    .width = config_.hidden_size,
                    .from_dtype = input_dtype,
                    .to_dtype = dtype_});
}

void DeviceForecastPass::Teach(int layer, const Piece& piece, const float* qkv, int row_stride) {
  ops_->GatherRows({.from = qkv,
                    .row_ids = device_row_ids_.data() + piece.first,
                    .to = queries_.data(),
                    .from_stride = row_stride,
                    .rows = piece.rows,
                    .width = config_.q_width(),
                    .to_dtype = dtype_});
  const bool is_fine = options_.has_fine_teacher;
  LayerKeys& keys = keys_[layer];
  ops_->ForecastTeacher({.q = queries_.data(),
                         .positions = device_positions_.data() + piece.first,
                         .keys = (is_fine ? keys.fine : keys.coarse).data(),
                         .windows = windows_.data(),
                         .scratch = teacher_scratch_.data(),
                         .scratch_floats = teacher_scratch_.size(),
                         .key_stride = (is_fine ? capacity_ : window_stride_) * config_.head_dim,
                         .window_stride = window_stride_,
                         .rows = piece.rows,
                         .q_stride = config_.q_width(),
                         .num_kv_heads = config_.num_kv_heads,
                         .heads_per_group = config_.num_q_heads / config_.num_kv_heads,
                         .head_dim = config_.head_dim,
                         .last_position = piece.last_position,
                         .scale = config_.attention_scale(),
                         .is_fine = is_fine,
                         .alignment = options_.alignment,
                         .dtype = dtype_});
}

void DeviceForecastPass::Compare(int layer, const Piece& piece) {
  const int32_t* const positions = device_positions_.data() + piece.first;
  ops_->ProjectForecast({.x = InputsOf(piece),
                         .head = heads_[layer].data(),
                         .positions = positions,
                         .cos = options_.cos,
                         .sin = options_.sin,
                         .products = forecast_products_.data(),
                         .forecasts = forecasts_.data(),
                         .rows = piece.rows,
                         .hidden = config_.hidden_size,
                         .num_kv_heads = config_.num_kv_heads,
                         .head_dim = config_.head_dim,
                         .dtype = dtype_});
  ops_->ForecastLoss({.forecasts = forecasts_.data(),
                      .keys = keys_[layer].coarse.data(),
                      .teacher = windows_.data(),
                      .positions = positions,
                      .derivatives = with_gradients_ ? derivatives_.data() : nullptr,
                      .tally = device_tallies_.data() + layer,
                      .products = products_.data(),
                      .gradients = product_gradients_.data(),
                      .row_tallies = row_tallies_.data(),
                      .key_stride = window_stride_ * config_.head_dim,
                      .window_stride = window_stride_,
                      .rows = piece.rows,
                      .num_kv_heads = config_.num_kv_heads,
                      .head_dim = config_.head_dim,
                      .last_position = piece.last_position,
                      .budget = options_.budget,
                      .scale = config_.attention_scale(),
                      .dtype = dtype_});
  if (!with_gradients_) return;
  ops_->AddForecastGradient({.derivatives = derivatives_.data(),
                             .x = InputsOf(piece),
                             .positions = positions,
                             .cos = options_.cos,
                             .sin = options_.sin,
                             .turned = turned_.data(),
                             .gradient = gradients_[layer].data(),
                             .rows = piece.rows,
                             .hidden = config_.hidden_size,
                             .num_kv_heads = config_.num_kv_heads,
                             .head_dim = config_.head_dim,
                             .dtype = dtype_});
}

void DeviceForecastPass::Stamp(TrainingPart part) {
  if (!timed_) return;
  AUGUR_CHECK(stamped_.size() < stamps_.size());
  backend_->Stamp({.at_ns = stamps_.data() + stamped_.size()});
  stamped_.push_back(part);
}

std::span<const LayerTally> DeviceForecastPass::EndSequence() {
  Stamp(TrainingPart::kBackbone);
  std::vector<kernels::ForecastTally> tallies(config_.num_layers);
  backend_->Copy(tallies.data(), device_tallies_.data(), tallies.size() * sizeof(tallies[0]));
  stamp_values_.resize(stamped_.size());
  if (timed_) {
    backend_->Copy(stamp_values_.data(), stamps_.data(), stamp_values_.size() * sizeof(int64_t));
  }
  backend_->Synchronize();
  for (size_t i = 1; i < stamp_values_.size(); ++i) {
    seconds_[static_cast<int>(stamped_[i])] +=
        static_cast<double>(stamp_values_[i] - stamp_values_[i - 1]) / memory::kNsPerSecond;
  }
  for (int layer = 0; layer < config_.num_layers; ++layer) {
    const kernels::ForecastTally& tally = tallies[layer];
    tallies_[layer] = {
        .loss = tally.loss, .rows = tally.rows, .recall = tally.recall, .choices = tally.choices};
  }
  return tallies_;
}

}  // namespace augur::engine
