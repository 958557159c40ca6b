// Makes InfiniGen's basis (engine/model/infinigen_basis.h) from a model's own activations: for each
// layer and kv head the right singular vectors of the mean of the group's post-RoPE query heads
// over the tokens of a text (OSDI'24 Sec. 4.1; the mean over the group as NOSA's
// infinigen_controllers.py has it), columns by falling singular value.
//
// The papers order the columns by sigma_Q * sigma_K with both spectra falling, and a product of two
// falling sequences falls: the order is that of sigma_Q, and keys need not be observed. A column's
// sign is free; its largest component (the first of equal ones) is made positive, so that the same
// text gives the same file.
//
// Thread: one. Ownership: sums of its own, head_dim^2 doubles for each layer and kv head. Failure:
// WriteInfinigenBasis: a one-line status with path and reason; nothing half-written is left, and a
// file of that name stays until the new one is complete.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/attention/layer_worker.h"
#include "engine/model/infinigen_basis.h"
#include "engine/model/model_config.h"

namespace augur::engine {

// Sums m mT over all rows observed, m the mean query of a (layer, kv head): its eigenvectors are
// the right singular vectors of all m below each other.
class QueryMoments final : public AttentionObserver {
 public:
  explicit QueryMoments(const ModelConfig& config);
  void Observe(int layer, int rows, const float* qkv, int row_stride, const float* input) override;
  InfinigenBasis Solve() const;

 private:
  const int num_kv_heads_;
  const int heads_per_group_;
  const int head_dim_;
  std::vector<std::vector<double>> moments_;  // [layers * kv heads][head_dim * head_dim]
  std::vector<double> mean_;                  // [head_dim]
};

absl::Status WriteInfinigenBasis(const InfinigenBasis& basis, const ModelConfig& config,
                                 const std::string& path);

struct CalibrationOptions {
  std::string model;               // folder
  std::vector<std::string> texts;  // files, read one after the other
  std::string out;
  int tokens = 2048;
  int threads = 1;
};

// Runs the model over the first `tokens` tokens of the texts, whole (dense attention), and writes
// the basis. INVALID_ARGUMENT or NOT_FOUND, one line: a model without tokenizer or of a shape that
// infinigen does not serve, texts too short, a path that cannot be written.
absl::Status CalibrateInfinigen(const CalibrationOptions& options);

}  // namespace augur::engine
