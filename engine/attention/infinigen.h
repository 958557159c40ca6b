// InfiniGen in block form (OSDI'24; for groups of heads and blocks as in SparDA's comparison): a
// token's blocks of layer l + 1 are chosen while layer l runs, by layer l + 1's query weights
// applied to layer l's attention input and a quarter of each key.
//
//   prompt      SumChannels: how much each channel of the layer's basis matters to the queries;
//               after its last token ChooseChannels takes a quarter of them for each kv head
//   all tokens  AppendKeys: partial keys, in device frames of their own (memory/kv_layout.h)
//   generated   Approximate: queries of the next layer, of the rows that will choose; Queries:
//   those
//               of some rows as vectors that score partial keys (SelectBlocks, kProduct)
//
// Layer 0 is no one's next layer: it has neither sums nor partial keys. All sums have one order
// (kernels/ops/sum_channels.h and its neighbours), so a choice does not depend on chunks, batch or
// residency. Where ops run on a device it is device_infinigen.cc that calls them.
//
// Thread: the engine's. Ownership: two buffers of queries and one of vectors, allocated by Create;
// per-request state lies in SequenceKv; basis and weights are the caller's. Failure: Create names
// size and knob.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/infinigen_basis.h"
#include "engine/model/rope_tables.h"
#include "engine/model/transformer_weights.h"
#include "kernels/backend.h"
#include "memory/sequence_kv.h"

namespace augur::engine {

struct InfinigenOptions {
  const InfinigenBasis* basis = nullptr;  // null: no policy infinigen
  std::span<const LayerWeights> weights;  // of all layers; q comes first in qkv
  int hidden_size = 0;
  int num_q_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  kernels::DType kv_dtype = kernels::DType::kF32;
  int max_rows = 0;
  RopeAngles rope = {};

  int heads_per_group() const { return num_q_heads / num_kv_heads; }
  int num_channels() const { return head_dim / 4; }
};

class Infinigen {
 public:
  static absl::StatusOr<std::unique_ptr<Infinigen>> Create(kernels::Backend* backend,
                                                           const InfinigenOptions& options);
  ~Infinigen();
  Infinigen(const Infinigen&) = delete;
  Infinigen& operator=(const Infinigen&) = delete;

  int num_channels() const { return options_.num_channels(); }
  // Floats of a row of Queries.
  int vector_width() const { return options_.num_kv_heads * num_channels(); }

  // q: [rows, q_stride] after RoPE.
  void SumChannels(int layer, const float* q, int q_stride,
                   std::span<const kernels::ChannelSegment> segments);
  // All kv heads of `layer` from their sums.
  void ChooseLayerChannels(const memory::KvLayout& layout, int layer, memory::SequenceKv* kv);
  // fp8: pages of the segments that are such.
  void AppendKeys(int layer, std::span<const kernels::ProjectSegment> segments,
                  const kernels::Fp8Pages& fp8);

  // Queries of `layer` for rows [first_row, end_row) from the attention input of the layer before,
  // [rows, hidden_size]. Kept until layer + 2 is approximated.
  void Approximate(int layer, const float* input, int first_row, int end_row);
  // [rows, vector_width], valid until the next call.
  const float* Queries(int layer, std::span<const kernels::QuerySegment> segments);

 private:
  Infinigen(kernels::Backend* backend, const InfinigenOptions& options);
  absl::Status Allocate();

  int q_width() const { return options_.num_q_heads * options_.head_dim; }
  const float* basis(int layer) const { return options_.basis->layers[layer].data(); }

  kernels::Backend* const backend_;
  const InfinigenOptions options_;
  std::array<float*, 2> queries_{};  // [max_rows, q_width], of the layer of that parity
  float* vectors_ = nullptr;         // [max_rows, vector_width]
};

}  // namespace augur::engine
