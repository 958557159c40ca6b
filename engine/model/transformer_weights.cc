#include "engine/model/transformer_weights.h"

#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/random_weight.h"
#include "memory/base/status_macros.h"

namespace augur::engine {
namespace {

std::vector<float> Widen(const TensorData& tensor) {
  const size_t count = tensor.bytes.size() / kernels::BytesOf(tensor.dtype);
  std::vector<float> values(count);
  if (tensor.dtype == kernels::DType::kF32) {
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  }
  for (size_t i = 0; i < count; ++i) {
    uint16_t bits;
    std::memcpy(&bits, tensor.bytes.data() + 2 * i, sizeof bits);
    values[i] = tensor.dtype == kernels::DType::kBF16 ? kernels::FloatFromBF16(bits)
                                                      : kernels::FloatFromF16(bits);
  }
  return values;
}

// Puts matrices that read the same input under each other, so that one product serves them all.
// Parts of different dtypes are widened to float32.
TensorData StackRows(std::vector<TensorData> parts) {
  bool same = true;
  for (const TensorData& part : parts) same = same && part.dtype == parts[0].dtype;
  TensorData stacked{.dtype = same ? parts[0].dtype : kernels::DType::kF32,
                     .shape = {0, parts[0].shape[1]},
                     .bytes = {}};
  for (const TensorData& part : parts) {
    stacked.shape[0] += part.shape[0];
    if (same) {
      stacked.bytes.insert(stacked.bytes.end(), part.bytes.begin(), part.bytes.end());
      continue;
    }
    const std::vector<float> wide = Widen(part);
    const std::byte* bytes = reinterpret_cast<const std::byte*>(wide.data());
    stacked.bytes.insert(stacked.bytes.end(), bytes, bytes + wide.size() * sizeof(float));
  }
  return stacked;
}

TensorData ConvertTo(kernels::DType dtype, const TensorData& tensor) {
  if (tensor.dtype == dtype) return tensor;
  const std::vector<float> wide = Widen(tensor);
  TensorData converted{.dtype = dtype, .shape = tensor.shape, .bytes = {}};
  converted.bytes.resize(wide.size() * kernels::BytesOf(dtype));
  if (dtype == kernels::DType::kF32) {
    std::memcpy(converted.bytes.data(), wide.data(), converted.bytes.size());
    return converted;
  }
  for (size_t i = 0; i < wide.size(); ++i) {
    const uint16_t bits = dtype == kernels::DType::kBF16 ? kernels::BF16FromFloat(wide[i])
                                                         : kernels::F16FromFloat(wide[i]);
    std::memcpy(converted.bytes.data() + 2 * i, &bits, sizeof bits);
  }
  return converted;
}

template <class T>
absl::StatusOr<kernels::BackendArray<T>> InBackend(kernels::Backend* backend,
                                                   std::span<const T> values) {
  kernels::BackendArray<T> array(backend, values);
  if (array.allocated()) return array;
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for the weights: ", values.size_bytes(), " bytes more"));
}

absl::StatusOr<kernels::BackendArray<float>> FloatsInBackend(kernels::Backend* backend,
                                                             const std::vector<float>& values) {
  return InBackend(backend, std::span<const float>(values));
}

// Logits are linear in it: their multiplier costs nothing there.
absl::StatusOr<kernels::BackendArray<float>> FinalNorm(std::vector<float> values,
                                                       const ModelConfig& config,
                                                       kernels::Backend* backend) {
  for (float& value : values) value = static_cast<float>(value * config.multipliers.logits);
  return FloatsInBackend(backend, values);
}

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const ModelConfig& config, kernels::Backend* backend,
         const ForecastHeads* heads)
      : checkpoint_(checkpoint), config_(config), backend_(backend), heads_(heads) {}

  absl::StatusOr<TransformerWeights> Load() {
    TransformerWeights weights;
    const int64_t vocab = config_.vocab_size;
    const int64_t hidden = config_.hidden_size;
    AUGUR_ASSIGN_OR_RETURN(const TensorData embedding,
                           checkpoint_.Read("model.embed_tokens.weight", {vocab, hidden}));
    AUGUR_ASSIGN_OR_RETURN(weights.embedding,
                           InBackend(backend_, std::span<const std::byte>(embedding.bytes)));
    weights.dtype = embedding.dtype;
    num_parameters_ += vocab * hidden;
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      AUGUR_ASSIGN_OR_RETURN(LayerWeights loaded, LoadLayer(layer));
      weights.layers.push_back(std::move(loaded));
    }
    AUGUR_ASSIGN_OR_RETURN(const std::vector<float> norm, HostVector("model.norm.weight", hidden));
    AUGUR_ASSIGN_OR_RETURN(weights.final_norm, FinalNorm(norm, config_, backend_));
    // A checkpoint whose config says "tied" may still carry a copy of the head; transformers
    // ignores it too.
    if (config_.tie_word_embeddings) {
      weights.head = Pack(embedding);
    } else {
      AUGUR_ASSIGN_OR_RETURN(const TensorData head,
                             checkpoint_.Read("lm_head.weight", {vocab, hidden}));
      num_parameters_ += vocab * hidden;
      weights.head = Pack(head);
    }
    weights.num_parameters = num_parameters_;
    return weights;
  }

 private:
  struct Part {
    std::string name;  // without ".weight"
    int64_t rows;
  };

  // Forecast heads that are fused behind q, k and v of the layer.
  std::vector<const TensorData*> HeadsOf(int index) const {
    std::vector<const TensorData*> heads;
    if (heads_ == nullptr || index + 1 == config_.num_layers) return heads;
    heads.push_back(&heads_->next[index]);
    if (index == 0) heads.push_back(&heads_->current);
    return heads;
  }

  absl::StatusOr<LayerWeights> LoadLayer(int index) {
    const std::string prefix = absl::StrCat("model.layers.", index, ".");
    LayerWeights layer;
    const int64_t hidden = config_.hidden_size;
    const int64_t intermediate = config_.intermediate_size;
    const std::string attention = prefix + "self_attn.";
    const std::string mlp = prefix + "mlp.";
    AUGUR_ASSIGN_OR_RETURN(layer.attention_norm, Vector(prefix + "input_layernorm.weight", hidden));
    const int64_t q_width = config_.q_width(), kv_width = config_.kv_width();
    std::vector<Part> qkv = {{attention + "qkv_proj", q_width + 2 * kv_width}};
    std::vector<Part> gate_up = {{mlp + "gate_up_proj", 2 * intermediate}};
    if (!config_.has_fused_projections) {
      qkv = {{attention + "q_proj", q_width},
             {attention + "k_proj", kv_width},
             {attention + "v_proj", kv_width}};
      gate_up = {{mlp + "gate_proj", intermediate}, {mlp + "up_proj", intermediate}};
    }
    AUGUR_ASSIGN_OR_RETURN(layer.qkv, Linear(qkv, hidden, config_.qkv_bias, HeadsOf(index)));
    if (config_.has_head_norms) {
      AUGUR_ASSIGN_OR_RETURN(layer.q_norm, Vector(attention + "q_norm.weight", config_.head_dim));
      AUGUR_ASSIGN_OR_RETURN(layer.k_norm, Vector(attention + "k_norm.weight", config_.head_dim));
    }
    AUGUR_ASSIGN_OR_RETURN(layer.output,
                           Linear({{attention + "o_proj", hidden}}, q_width, config_.output_bias));
    if (config_.has_eviction_heads) {
      AUGUR_ASSIGN_OR_RETURN(layer.eviction, LoadEvictionHead(attention));
    }
    AUGUR_ASSIGN_OR_RETURN(layer.mlp_norm,
                           Vector(prefix + "post_attention_layernorm.weight", hidden));
    AUGUR_ASSIGN_OR_RETURN(layer.gate_up, Linear(gate_up, hidden, config_.mlp_bias));
    AUGUR_ASSIGN_OR_RETURN(layer.down,
                           Linear({{mlp + "down_proj", hidden}}, intermediate, config_.mlp_bias));
    return layer;
  }

  absl::StatusOr<EvictionHead> LoadEvictionHead(const std::string& attention) {
    EvictionHead head;
    const int64_t heads = config_.num_kv_heads, width = config_.kv_width();
    AUGUR_ASSIGN_OR_RETURN(head.gate, Vector(attention + "A", heads));
    AUGUR_ASSIGN_OR_RETURN(const TensorData delta,
                           checkpoint_.Read(attention + "delta.weight", {heads, width}));
    num_parameters_ += heads * width;
    AUGUR_ASSIGN_OR_RETURN(head.weight, FloatsInBackend(backend_, Widen(delta)));
    if (config_.qkv_bias) {
      AUGUR_ASSIGN_OR_RETURN(head.bias, Vector(attention + "delta.bias", heads));
    }
    return head;
  }

  absl::StatusOr<LinearWeights> Linear(const std::vector<Part>& parts, int64_t in_features,
                                       bool bias,
                                       const std::vector<const TensorData*>& heads = {}) {
    LinearWeights linear;
    std::vector<float> biases;
    std::vector<TensorData> matrices;
    for (const Part& part : parts) {
      AUGUR_ASSIGN_OR_RETURN(TensorData matrix,
                             checkpoint_.Read(part.name + ".weight", {part.rows, in_features}));
      num_parameters_ += part.rows * in_features;
      matrices.push_back(std::move(matrix));
      if (!bias) continue;
      AUGUR_ASSIGN_OR_RETURN(const std::vector<float> values,
                             HostVector(part.name + ".bias", part.rows));
      biases.insert(biases.end(), values.begin(), values.end());
    }
    for (const TensorData* head : heads) {
      matrices.push_back(ConvertTo(matrices[0].dtype, *head));
      if (bias) biases.insert(biases.end(), head->shape[0], 0.0f);
    }
    if (bias) {
      AUGUR_ASSIGN_OR_RETURN(linear.bias, FloatsInBackend(backend_, biases));
    }
    linear.weight =
        Pack(matrices.size() == 1 ? std::move(matrices[0]) : StackRows(std::move(matrices)));
    return linear;
  }

  absl::StatusOr<std::vector<float>> HostVector(const std::string& name, int64_t size) {
    AUGUR_ASSIGN_OR_RETURN(const TensorData tensor, checkpoint_.Read(name, {size}));
    num_parameters_ += size;
    return Widen(tensor);
  }
  absl::StatusOr<kernels::BackendArray<float>> Vector(const std::string& name, int64_t size) {
    AUGUR_ASSIGN_OR_RETURN(const std::vector<float> values, HostVector(name, size));
    return FloatsInBackend(backend_, values);
  }

  std::unique_ptr<kernels::PackedWeight> Pack(const TensorData& matrix) const {
    return backend_->PackWeight({.data = matrix.bytes.data(),
                                 .dtype = matrix.dtype,
                                 .out_features = static_cast<int>(matrix.shape[0]),
                                 .in_features = static_cast<int>(matrix.shape[1])});
  }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  kernels::Backend* const backend_;
  const ForecastHeads* const heads_;
  int64_t num_parameters_ = 0;
};

}  // namespace

absl::StatusOr<TransformerWeights> LoadTransformerWeights(const Checkpoint& checkpoint,
                                                          const ModelConfig& config,
                                                          kernels::Backend* backend,
                                                          const ForecastHeads* heads) {
  return Loader(checkpoint, config, backend, heads).Load();
}

absl::StatusOr<TransformerWeights> RandomTransformerWeights(const ModelConfig& config,
                                                            kernels::DType dtype, uint64_t seed,
                                                            bool has_forecast,
                                                            kernels::Backend* backend) {
  TransformerWeights weights;
  weights.dtype = dtype;
  uint64_t next_seed = seed << 16;  // a model has fewer than 65,536 matrices
  const auto matrix = [&](int64_t out, int64_t in) {
    weights.num_parameters += out * in;
    return backend->PackWeight({.dtype = dtype,
                                .out_features = static_cast<int>(out),
                                .in_features = static_cast<int>(in),
                                .random_seed = next_seed++,
                                .random_scale = 1.0f / std::sqrt(static_cast<float>(in))});
  };
  const auto linear = [&](int64_t out, int64_t in, bool bias) -> absl::StatusOr<LinearWeights> {
    LinearWeights made{.weight = matrix(out, in), .bias = {}};
    if (!bias) return made;
    AUGUR_ASSIGN_OR_RETURN(made.bias, FloatsInBackend(backend, std::vector<float>(out, 0.0f)));
    return made;
  };
  const int64_t hidden = config.hidden_size, vocab = config.vocab_size;
  const std::vector<float> ones(hidden, 1.0f), head_ones(config.head_dim, 1.0f);
  TensorData embedding{.dtype = kernels::DType::kF32, .shape = {vocab, hidden}, .bytes = {}};
  embedding.bytes.resize(size_t(vocab) * hidden * sizeof(float));
  for (int64_t i = 0; i < vocab * hidden; ++i) {
    const float value = kernels::RandomWeight(next_seed, i);
    std::memcpy(embedding.bytes.data() + i * sizeof value, &value, sizeof value);
  }
  embedding = ConvertTo(dtype, embedding);
  AUGUR_ASSIGN_OR_RETURN(weights.embedding,
                         InBackend(backend, std::span<const std::byte>(embedding.bytes)));
  ++next_seed;
  weights.num_parameters += vocab * hidden;
  for (int i = 0; i < config.num_layers; ++i) {
    LayerWeights layer;
    AUGUR_ASSIGN_OR_RETURN(layer.attention_norm, FloatsInBackend(backend, ones));
    AUGUR_ASSIGN_OR_RETURN(layer.mlp_norm, FloatsInBackend(backend, ones));
    // Forecast heads for the next layer and, in layer 0, for itself.
    const int heads = !has_forecast || i + 1 == config.num_layers ? 0 : i == 0 ? 2 : 1;
    AUGUR_ASSIGN_OR_RETURN(layer.qkv, linear(config.q_width() + (2 + heads) * config.kv_width(),
                                             hidden, config.qkv_bias));
    if (config.has_head_norms) {
      AUGUR_ASSIGN_OR_RETURN(layer.q_norm, FloatsInBackend(backend, head_ones));
      AUGUR_ASSIGN_OR_RETURN(layer.k_norm, FloatsInBackend(backend, head_ones));
      weights.num_parameters += 2 * config.head_dim;
    }
    AUGUR_ASSIGN_OR_RETURN(layer.output, linear(hidden, config.q_width(), config.output_bias));
    AUGUR_ASSIGN_OR_RETURN(layer.gate_up,
                           linear(2 * int64_t{config.intermediate_size}, hidden, config.mlp_bias));
    AUGUR_ASSIGN_OR_RETURN(layer.down, linear(hidden, config.intermediate_size, config.mlp_bias));
    weights.num_parameters += 2 * hidden;
    weights.layers.push_back(std::move(layer));
  }
  AUGUR_ASSIGN_OR_RETURN(weights.final_norm, FinalNorm(ones, config, backend));
  weights.head = matrix(vocab, hidden);
  return weights;
}

}  // namespace augur::engine
