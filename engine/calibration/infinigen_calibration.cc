#include "engine/calibration/infinigen_calibration.h"

#include <fcntl.h>
#include <unistd.h>

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/model_loader.h"
#include "engine/model/transformer_runner.h"
#include "engine/tokenizer/utf8.h"
#include "kernels/backend.h"
#include "kernels/check.h"
#include "memory/base/clock.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

constexpr int kChunkTokens = 256;

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  }
  if (!IsValidUtf8(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected UTF-8 text, found other bytes"));
  }
  return text;
}

absl::StatusOr<std::vector<TokenId>> ReadTokens(const CalibrationOptions& options,
                                                const Tokenizer& tokenizer) {
  std::string text;
  for (const std::string& path : options.texts) {
    AUGUR_ASSIGN_OR_RETURN(const std::string part, ReadText(path));
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

// One dense prefill in chunks, in device frames.
void RunPrompt(const std::vector<TokenId>& tokens, LoadedModel* model,
               AttentionObserver* observer) {
  auto* runner = static_cast<TransformerRunner*>(model->runner.get());
  runner->set_observer(observer);
  memory::KvStore* store = model->kv->store();
  const int num_tokens = static_cast<int>(tokens.size());
  const int blocks = (num_tokens + kernels::kBlockTokens - 1) / kernels::kBlockTokens;
  AUGUR_CHECK(store->Open(
      {.id = 1, .demand = {}, .keys = {}, .hits = 0, .blocks = blocks, .most_blocks = blocks}));
  const AttentionChoice dense;
  StepOutputs outputs;
  for (int first = 0; first < num_tokens; first += kChunkTokens) {
    const int count = std::min(kChunkTokens, num_tokens - first);
    StepSegment segment;
    segment.rows = {.first_row = 0, .num_rows = count, .first_position = first};
    segment.kv = &store->sequence(1);
    segment.attention = &dense;
    segment.prompt_tokens = num_tokens;
    runner->Run({.token_ids = std::span(tokens).subspan(first, count), .segments = {&segment, 1}},
                &outputs);
  }
  store->Release(1);
  runner->set_observer(nullptr);
}

absl::Status NotWritten(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": cannot be written: ", std::strerror(errno)));
}

// All bytes are on disk when this returns OK, else there is no file.
bool WriteAll(const std::string& path, const std::string& bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  bool written = true;
  for (size_t at = 0; at < bytes.size() && written;) {
    const ssize_t wrote = write(fd, bytes.data() + at, bytes.size() - at);
    if (wrote >= 0) at += wrote;
    written = wrote >= 0 || errno == EINTR;
  }
  written = written && fsync(fd) == 0;
  const int reason = errno;
  if (close(fd) == 0 && written) return true;
  unlink(path.c_str());
  if (!written) errno = reason;
  return false;
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
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (size_t layer = 0; layer < basis.layers.size(); ++layer) {
    const std::vector<float>& values = basis.layers[layer];
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    header[absl::StrCat("layers.", layer, ".basis")] = {
        {"dtype", "F32"},
        {"shape", {config.num_kv_heads, config.head_dim, config.head_dim}},
        {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // numbers are aligned in a mapped file
  const uint64_t length = text.size();
  const std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".tmp");
  if (!WriteAll(temporary, bytes + text + data)) return NotWritten(path);
  if (rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  absl::Status status = NotWritten(path);
  unlink(temporary.c_str());
  return status;
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
  const memory::KvLayout layout =
      memory::MakeKvLayout(config.num_layers, config.num_kv_heads, config.head_dim, sizeof(float));
  const int64_t blocks = options.tokens / kernels::kBlockTokens + 2;
  ModelOptions model_options;
  model_options.folder = options.model;
  model_options.kv.dtype = kernels::DType::kF32;
  model_options.kv.device_bytes = blocks * static_cast<int64_t>(layout.frame_bytes());
  model_options.compute_threads = options.threads;
  model_options.max_batch = 1;
  model_options.max_batched_tokens = kChunkTokens;
  AUGUR_ASSIGN_OR_RETURN(LoadedModel model, LoadModel(backend.get(), &clock, model_options));
  if (model.tokenizer == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(options.model, "/tokenizer.json: expected a tokenizer, found none"));
  }
  AUGUR_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens, ReadTokens(options, *model.tokenizer));
  QueryMoments moments(config);
  RunPrompt(tokens, &model, &moments);
  return WriteInfinigenBasis(moments.Solve(), config, options.out);
}

}  // namespace augur::engine
