#include "engine/calibration/infinigen_calibration.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/model_loader.h"
#include "engine/model/observed_prompt.h"
#include "engine/model/safetensors_writer.h"
#include "kernels/backend.h"
#include "kernels/check.h"
#include "memory/base/clock.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

absl::StatusOr<std::vector<TokenId>> ReadTokens(const CalibrationOptions& options,
                                                const Tokenizer& tokenizer) {
  std::string text;
  for (const std::string& path : options.texts) {
    AUGUR_ASSIGN_OR_RETURN(const std::string part, ReadUtf8File(path));
    text += part;
  }
  std::vector<TokenId> tokens = tokenizer.Encode(text, {});
  if (static_cast<int>(tokens.size()) < options.tokens) {
    return absl::InvalidArgumentError(absl::StrCat("the text is too short: expected at least ",
                                                   options.tokens, " tokens (--tokens), found ",
                                                   tokens.size()));
  }
  tokens.resize(options.tokens);
  return tokens;
}

}  // namespace

QueryMoments::QueryMoments(const ModelConfig& config)
    : num_kv_heads_(config.num_kv_heads),
      heads_per_group_(config.num_q_heads / config.num_kv_heads),
      head_dim_(config.head_dim),
      moments_(size_t(config.num_layers) * config.num_kv_heads,
               std::vector<double>(size_t(config.head_dim) * config.head_dim)),
      mean_(config.head_dim) {}

void QueryMoments::Observe(int layer, int rows, const float* qkv, int row_stride, const float*) {
  for (int row = 0; row < rows; ++row) {
    const float* q = qkv + size_t(row) * row_stride;
    for (int kv_head = 0; kv_head < num_kv_heads_; ++kv_head) {
      std::fill(mean_.begin(), mean_.end(), 0.0);
      for (int head = 0; head < heads_per_group_; ++head, q += head_dim_) {
        for (int d = 0; d < head_dim_; ++d) mean_[d] += q[d];
      }
      for (double& value : mean_) value /= heads_per_group_;
      double* moment = moments_[size_t(layer) * num_kv_heads_ + kv_head].data();
      for (int i = 0; i < head_dim_; ++i) {
        for (int j = 0; j < head_dim_; ++j) moment[i * head_dim_ + j] += mean_[i] * mean_[j];
      }
    }
  }
}

InfinigenBasis QueryMoments::Solve() const {
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const size_t size = size_t(head_dim_) * head_dim_;
  InfinigenBasis basis;
  for (size_t group = 0; group < moments_.size(); ++group) {
    if (group % num_kv_heads_ == 0) basis.layers.emplace_back(num_kv_heads_ * size);
    float* out = basis.layers.back().data() + group % num_kv_heads_ * size;
    const Eigen::Map<const Matrix> moment(moments_[group].data(), head_dim_, head_dim_);
    const Eigen::SelfAdjointEigenSolver<Matrix> solver{Matrix(moment)};
    AUGUR_CHECK(solver.info() == Eigen::Success);
    for (int column = 0; column < head_dim_; ++column) {
      // The solver's values rise.
      const auto vector = solver.eigenvectors().col(head_dim_ - 1 - column);
      Eigen::Index largest = 0;
      vector.cwiseAbs().maxCoeff(&largest);
      const double sign = vector[largest] < 0 ? -1.0 : 1.0;
      for (int d = 0; d < head_dim_; ++d) {
        out[d * head_dim_ + column] = static_cast<float>(sign * vector[d]);
      }
    }
  }
  return basis;
}

absl::Status WriteInfinigenBasis(const InfinigenBasis& basis, const ModelConfig& config,
                                 const std::string& path) {
  std::vector<TensorToWrite> tensors;
  for (size_t layer = 0; layer < basis.layers.size(); ++layer) {
    tensors.push_back({.name = absl::StrCat("layers.", layer, ".basis"),
                       .shape = {config.num_kv_heads, config.head_dim, config.head_dim},
                       .values = basis.layers[layer]});
  }
  return WriteSafetensors(path, tensors);
}

absl::Status CalibrateInfinigen(const CalibrationOptions& options) {
  AUGUR_ASSIGN_OR_RETURN(const ModelConfig config, LoadModelConfig(options.model));
  AUGUR_RETURN_IF_ERROR(CheckInfinigenShape(config));
  if (options.tokens < config.head_dim || options.tokens > config.max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--tokens: expected ", config.head_dim, " (head_dim) to ", config.max_position_embeddings,
        " (the model's context), found ", options.tokens));
  }
  const auto backend = kernels::MakeCpuBackend({.num_threads = options.threads});
  const memory::SteadyClock clock;
  AUGUR_ASSIGN_OR_RETURN(ObservedModel model, LoadObservedModel({.folder = options.model,
                                                                 .tokens = options.tokens,
                                                                 .threads = options.threads,
                                                                 .kv_dtype = kernels::DType::kF32},
                                                                backend.get(), &clock));
  AUGUR_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, ReadTokens(options, *model.tokenizer));
  QueryMoments moments(config);
  ObservePrompt(tokens, /*choice=*/{}, &model, &moments, [](int, int) {});
  return WriteInfinigenBasis(moments.Solve(), config, options.out);
}

}  // namespace augur::engine
