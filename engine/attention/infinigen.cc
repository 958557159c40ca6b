#include "engine/attention/infinigen.h"

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "memory/base/status_macros.h"

namespace augur::engine {

absl::StatusOr<std::unique_ptr<Infinigen>> Infinigen::Create(kernels::Backend* backend,
                                                             const InfinigenOptions& options) {
  std::unique_ptr<Infinigen> infinigen(new Infinigen(backend, options));
  AUGUR_RETURN_IF_ERROR(infinigen->Allocate());
  return infinigen;
}

Infinigen::Infinigen(kernels::Backend* backend, const InfinigenOptions& options)
    : backend_(backend), options_(options) {
  AUGUR_CHECK(options.basis != nullptr && options.head_dim % 8 == 0);
}

Infinigen::~Infinigen() {
  for (float* buffer : {queries_[0], queries_[1], vectors_}) {
    if (buffer != nullptr) backend_->Free(buffer);
  }
}

absl::Status Infinigen::Allocate() {
  const auto allocate = [&](size_t width, float** to) {
    *to = static_cast<float*>(backend_->Allocate(options_.max_rows * width * sizeof(float)));
    return *to != nullptr;
  };
  if (allocate(q_width(), &queries_[0]) && allocate(q_width(), &queries_[1]) &&
      allocate(vector_width(), &vectors_)) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(absl::StrCat("no memory for infinigen's queries of ",
                                                   options_.max_rows, " rows (batched_tokens)"));
}

void Infinigen::SumChannels(int layer, const float* q, int q_stride,
                            std::span<const kernels::ChannelSegment> segments) {
  if (segments.empty()) return;
  backend_->SumChannels({.q = q,
                         .basis = basis(layer),
                         .segments = segments.data(),
                         .num_segments = static_cast<int>(segments.size()),
                         .q_stride = q_stride,
                         .num_kv_heads = options_.num_kv_heads,
                         .heads_per_group = options_.heads_per_group(),
                         .head_dim = options_.head_dim});
}

void Infinigen::ChooseLayerChannels(const memory::KvLayout& layout, int layer,
                                    memory::SequenceKv* kv) {
  const kernels::ChooseChannelsSegment segment{.sums = kv->sums_of(layout, layer),
                                               .channels = kv->channels_of(layout, layer)};
  backend_->ChooseChannels({.segments = &segment,
                            .num_segments = 1,
                            .num_kv_heads = options_.num_kv_heads,
                            .head_dim = options_.head_dim,
                            .num_channels = num_channels()});
}

void Infinigen::AppendKeys(int layer, std::span<const kernels::ProjectSegment> segments,
                           const kernels::Fp8Pages& fp8) {
  if (segments.empty()) return;
  backend_->ProjectKeys({.basis = basis(layer),
                         .segments = segments.data(),
                         .num_segments = static_cast<int>(segments.size()),
                         .num_kv_heads = options_.num_kv_heads,
                         .head_dim = options_.head_dim,
                         .num_channels = num_channels(),
                         .dtype = options_.kv_dtype,
                         .fp8 = fp8});
}

void Infinigen::Approximate(int layer, const float* input, int first_row, int end_row) {
  const LinearWeights& qkv = options_.weights[layer].qkv;
  backend_->Linear({.x = input + size_t(first_row) * options_.hidden_size,
                    .weight = qkv.weight.get(),
                    .bias = qkv.bias_data(),
                    .y = queries_[layer % 2] + size_t(first_row) * q_width(),
                    .rows = end_row - first_row,
                    .x_stride = options_.hidden_size,
                    .y_stride = q_width(),
                    .columns = q_width()});
}

const float* Infinigen::Queries(int layer, std::span<const kernels::QuerySegment> segments) {
  backend_->ProjectQueries({.q = queries_[layer % 2],
                            .basis = basis(layer),
                            .segments = segments.data(),
                            .out = vectors_,
                            .num_segments = static_cast<int>(segments.size()),
                            .q_stride = q_width(),
                            .num_kv_heads = options_.num_kv_heads,
                            .heads_per_group = options_.heads_per_group(),
                            .head_dim = options_.head_dim,
                            .num_channels = num_channels(),
                            .cos = options_.rope.cos,
                            .sin = options_.rope.sin});
  return vectors_;
}

}  // namespace augur::engine
